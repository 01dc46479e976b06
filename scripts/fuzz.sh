#!/usr/bin/env bash
# Runs a fuzz target: scripts/fuzz.sh TARGET [SECONDS [OPTION…]], 60 seconds if nothing is said. The options are libFuzzer's.
# Stable Rust is enough.
#
# The flags of the compiler are those of `cargo fuzz run --sanitizer none`. Only an address sanitizer would need nightly Rust,
# and the code under test has hardly any `unsafe`.
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1?which target? $(ls fuzz/fuzz_targets)}
seconds=${2:-60}
options=("${@:3}")
[ -e "fuzz/fuzz_targets/$name.rs" ] || {
    echo "fuzz: there is no target '$name'; there are: $(basename -s .rs fuzz/fuzz_targets/*.rs | xargs)" >&2
    exit 1
}

# What one input may take. The time is that of a clock: where other programs keep all processors busy, it is too short. Memory is in MiB: of the process, and of one allocation.
rss=1024 allocation=256 input_seconds=10
# A kernel of 512 MiB may be unpacked, and its vector doubles its capacity.
[ "$name" != boot_image ] || rss=3072 allocation=1100

# The greatest length of an input. libFuzzer's length control stays off: it grows the length with the number of runs, so a slow target would
# see inputs of some bytes only.
max_len=1024
[ ! -d "fuzz/seeds/$name" ] || max_len=4096
# Rust pads a text to 65 535 characters at most, and panics beyond.
[ "$name" != inner_run ] || max_len=262144

# RUSTFLAGS replaces the flags in .cargo/config.toml.
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 -Cforce-frame-pointers=yes \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cllvm-args=-simplifycfg-branch-fold-threshold=0"
target=${CARGO_TARGET_DIR:-target}/fuzz
"${CARGO:-cargo}" build --locked -p hyprobe-fuzz --profile fuzz --target-dir "$target" --bin "$name"

corpus=$target/corpus/$name findings=$target/findings/$name
mkdir -p "$corpus" "$findings"
seeds=()
[ ! -d "fuzz/seeds/$name" ] || seeds=("fuzz/seeds/$name")
exec "$target/x86_64-unknown-linux-gnu/fuzz/$name" -max_total_time="$seconds" -print_final_stats=1 \
    -len_control=0 -max_len="$max_len" -timeout="$input_seconds" -rss_limit_mb="$rss" -malloc_limit_mb="$allocation" \
    -artifact_prefix="$findings/" "${options[@]}" "$corpus" "${seeds[@]}"
