# `make demo` shows what hyprobe does, `make test` tests it. Both install what is missing first; see scripts/setup.sh.

CARGO ?= cargo
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# .cargo/config.toml names the target.
HYPROBE := $(TARGET_DIR)/x86_64-unknown-linux-gnu/release/hyprobe

help:
	@echo 'make demo      boot a stock Debian kernel and watch probes fire in it'
	@echo 'make test      everything that is checked before a commit counts, with two stock kernels; STOCK=all: with all four'
	@echo 'make build     the command alone: $(HYPROBE)'
	@echo 'make dist      what is released: static binary, Debian package, man pages, completions, bill of materials, checksums, in $(TARGET_DIR)/dist'
	@echo 'make setup     install what building, testing and nested runs need'
	@echo 'make images    fetch the stock kernels that tests boot'
	@echo 'make lint      formatting, clippy, the documentation, the imports among files, and the rules for dependencies'
	@echo 'make rig-…    the engine on other kinds of KVM, see docs/rigs.md: rig-intel, rig-amd, rig-nested, rig-local'
	@echo 'make soak      five minutes of random probes in a busy guest: SECONDS=300 SEED=1'
	@echo 'make stress    five minutes of jumps on hundreds of hot functions, switched: SECONDS=300 SEED=1, BUSY_ON=intel or amd for Bochs'
	@echo 'make sweep     every function of a stock kernel is probed, in every mode: KERNEL=debian-6.1 MODES=return,live SEED=1 CPUS=2, docs/sweep.md'
	@echo 'make fuzz      a fuzz target, or all: TARGET=kallsyms SECONDS=600, docs/security.md'
	@echo 'make hostile   five minutes of guests that attack the VMM while probes come and go: SECONDS=300 SEED=1, HOSTILE_ON=local or nested'
	@echo 'make bench     what probes cost, measured here and nested: docs/overhead.md; BENCH_ON="intel amd" for Bochs'
	@echo 'make clean     remove what was built (fetched kernels stay: ~/.cache/hyprobe)'

demo:
	@scripts/setup.sh demo
	$(CARGO) build --release --locked
	$(HYPROBE) images fetch debian-6.1 busybox-static
	$(HYPROBE) run guest-images/demo.toml

build:
	@scripts/setup.sh build
	$(CARGO) build --release --locked

dist:
	@scripts/setup.sh build
	@scripts/dist.sh

room:
	@scripts/setup.sh room

setup:
	@scripts/setup.sh

images:
	$(CARGO) run --locked -p hyprobe-guest-images --bin fetch-guest-images -- --all

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --workspace --no-deps --document-private-items
	@scripts/words.sh
	@scripts/modules.py --check
	@scripts/deny.sh

# The cheap checks first.
test: room setup lint
	@scripts/test.sh

# kvm_intel and kvm_amd in Bochs, kvm_amd in QEMU, and this machine's own KVM. RIG_ARGS='-- --only calls' chooses cases.
rig-intel rig-amd rig-nested rig-local:
	$(CARGO) build --release --locked -p hyprobe-rigs
	$(dir $(HYPROBE))rig $(@:rig-%=%) $(RIG_ARGS)

# Probes come and go at random in a busy stock guest, nested in QEMU: make soak SECONDS=300 SEED=7
SECONDS ?= 300
SEED ?= 1
soak:
	$(CARGO) build --release --locked -p hyprobe-rigs
	$(dir $(HYPROBE))rig busy --timeout $$(($(SECONDS) + 1200)) $(RIG_ARGS) -- --only soak --seconds $(SECONDS) --seed $(SEED)

# Jumps on the hottest functions are switched while the guest works. In Bochs, so many turns: make stress BUSY_ON=intel
BUSY_ON ?= nested
TURNS ?= 40
stress:
	$(CARGO) build --release --locked -p hyprobe-rigs
	$(dir $(HYPROBE))rig busy --on $(BUSY_ON) --timeout $$(($(SECONDS) + 2400)) $(RIG_ARGS) -- --only hot --seed $(SEED) \
		$(if $(filter intel amd,$(BUSY_ON)),--seconds 100000 --turns $(TURNS),--seconds $(SECONDS))

# Guests that attack the VMM, each in a `hyprobe run` of its own: docs/security.md. Without HOSTILE_ON, on KVM and nested in turns.
# This hyprobe panics at each overflow and failed assertion: profile `fuzz`.
HOSTILE_ON ?=
hostile:
	$(CARGO) build --profile fuzz --locked -p hyprobe -p hyprobe-rigs
	$(TARGET_DIR)/x86_64-unknown-linux-gnu/fuzz/hostile $(if $(HOSTILE_ON),--on $(HOSTILE_ON)) --seconds $(SECONDS) --seed $(SEED)

# Every function of a kernel, probed in each mode; docs/sweep.md is written anew, from docs/sweep/. Hours for all modes: MODES chooses.
# SWEEP_ARGS=--resume goes on where the last run ended; SWEEP_ARGS='--on intel --sample 200' runs a sample on VT-x.
KERNEL ?= debian-6.1
MODES ?=
CPUS ?=
SWEEP_SECONDS ?= 86400
# Without a seed from the command line, each run has a new one.
sweep: SWEEP_SEED = $(if $(filter command line environment,$(origin SEED)),--seed $(SEED))
sweep:
	$(CARGO) build --release --locked -p hyprobe-rigs
	$(dir $(HYPROBE))rig sweep --image $(KERNEL) $(if $(MODES),--modes $(MODES)) $(SWEEP_SEED) $(if $(CPUS),--cpus $(CPUS)) \
		--timeout $(SWEEP_SECONDS) $(SWEEP_ARGS); code=$$?; scripts/sweep-page.sh $(dir $(HYPROBE))rig && exit $$code

# Hostile input of every kind, by libFuzzer. Without a target, each for a minute. FUZZ_ARGS=-timeout=60 on a busy machine.
TARGET ?=
FUZZ_SECONDS = $(if $(filter command line environment,$(origin SECONDS)),$(SECONDS),60)
fuzz:
	@scripts/setup.sh fuzz
	for target in $(or $(TARGET),$(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))); do \
		scripts/fuzz.sh $$target $(FUZZ_SECONDS) $(FUZZ_ARGS) || exit; done

# What probes cost; docs/overhead.md is written anew. BENCH_ARGS='-- --calls 200 --rounds 31' says how much is measured.
BENCH_ON ?= local nested
bench:
	$(CARGO) build --release --locked -p hyprobe-rigs
	for on in $(BENCH_ON); do $(dir $(HYPROBE))rig bench --on $$on $(BENCH_ARGS) || exit; done
	$(dir $(HYPROBE))rig overhead --write

# What the last run of each found.
rig-table:
	$(CARGO) build --release --locked -p hyprobe-rigs
	$(dir $(HYPROBE))rig table

clean:
	$(CARGO) clean

.PHONY: help demo build dist room setup images lint test rig-intel rig-amd rig-nested rig-local rig-table bench soak stress hostile sweep fuzz clean
