#!/usr/bin/env bash
# Runs every test that this machine can run; of the tests that each stock kernel has, those of two kernels, unless STOCK is `all`. What failed
# is in the tests' own output; behind its last lines come two more, one for each kind of hardware virtualisation that Bochs stands in for.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

say() { printf 'test: %s\n' "$*" >&2; }

# Of the tests that each stock kernel has, `some` are those of 6.1 and of another by turns. The longest have one of the two.
stock=${STOCK:-some}
readonly stock
long='^(counts|cpus|detector|dump|module_tracepoints|own_kprobes|same_boot|source_lines|stacks|tracepoint_fields|tracepoints|uprobes|views)::'
readonly long
[[ $stock = some || $stock = all ]] || {
    say "STOCK is '$stock', not 'some' or 'all'"
    exit 2
}

# A test whose feature is on fails when what it needs is missing; so the features are what this machine has.
features=test-nested
if [ -r /dev/kvm ] && [ -w /dev/kvm ]; then
    features+=,test-kvm
else
    say "there is no /dev/kvm that this user may open: the tests on this machine's own KVM are left out"
fi
# The same selection each time, so that cargo builds each dependency once.
selection=(--locked --workspace --features "$features")

"$cargo" build "${selection[@]}" --all-targets

# The tests of symbol tables and patch sites look at real kernels, unpacked.
programs=$target/x86_64-unknown-linux-gnu/debug
images=$("$programs/fetch-guest-images" --all)
mkdir -p "$target/kernels"
kernels=()
while IFS=$'\t' read -r name release path; do
    case $path in
    */vmlinuz)
        unpacked=$target/kernels/$name-$release
        if [ ! -e "$unpacked" ]; then
            "$programs/examples/unpack" "$path" "$unpacked.part"
            mv "$unpacked.part" "$unpacked"
        fi
        kernels+=("$unpacked")
        ;;
    esac
done <<<"$images"
HYPROBE_TEST_KERNELS=$(IFS=:; echo "${kernels[*]}")
export HYPROBE_TEST_KERNELS

# The documentation's examples first: no other runner has them, and their closing lines say little.
"$cargo" test "${selection[@]}" --doc
if command -v cargo-nextest >/dev/null; then
    # nextest cannot run a binary that brings its own main.
    "$cargo" test "${selection[@]}" --test nested_plumbing
    chosen='not binary(nested_plumbing)'
    if [ "$stock" = some ]; then
        # The same for the same commit. Without git, by the day.
        number=$((16#$({ git rev-parse --verify --quiet HEAD 2>/dev/null || date +%j; } | cut -c 1-7)))
        others=(5_10 6_12 sid)
        other=${others[number % 3]}
        two=(6_1 "$other")
        long_on=${two[number / 3 % 2]}
        say "stock kernels: debian_6_1 and debian_$other, the longest tests with debian_$long_on; \`make test STOCK=all\` has all tests of all four"
        for kernel in 6_1 "${others[@]}"; do
            left_out="binary(stock) and test(/debian_$kernel(_|\$)/)"
            case $kernel in
            "$long_on") continue ;;
            6_1 | "$other") left_out+=" and test(/$long/)" ;;
            esac
            chosen+=" and not ($left_out)"
        done
    fi
    "$cargo" nextest run "${selection[@]}" -E "$chosen"
else
    # This runner would leave out tests of other crates with the names of kernels, too: all run.
    "$cargo" test "${selection[@]}" --tests
fi

# The engine's cases on VT-x and SVM, as many as there is time for, most with one kind of trap; `make rig-intel rig-amd` runs all. A Bochs
# keeps one processor busy, and the sweep below one more: the faster of the two leaves it. With one vCPU: two that wait for each other take
# Bochs minutes, and longer than that on SVM.
cases=recurse/int3/1,calls/port/1,calls/int3/1,flags/int3/1,own-int3/port/1,selfpatch/int3/1,ring3/int3/1,exits/int3/1,handlers/int3/1,raise/int3/1,handler-raise-swallowed/int3/1,relocated/int3/1,recorded/port/1,recorded-returns/port/1,programs/port/1,optimised-int3/auto/1,text-hidden/hidden/1,looks-kprobe/int3/1,looks-jump/auto/1,registers/auto/1,registers-ring3/auto/1
readonly cases limit_s=900
rigs=(intel amd)
running=()
for rig in "${rigs[@]}"; do
    "$programs/rig" "$rig" --results "$target/rigs" --timeout "$limit_s" -- --only "$cases" >"$target/rig-$rig.log" 2>&1 &
    running+=($!)
done

# Other functions of a stock kernel each time, and those that once harmed a guest: the guest must not notice their probes.
once_harmful=start_secondary,cr4_init,cr4_set_bits,cr4_update_irqsoff,native_load_tr_desc,cpu_init_exception_handling,set_bringup_idt_handler.constprop.0,memset,memset_erms,memset_orig,int3_selftest_ip
seed=$(date +%s)
readonly once_harmful seed
say "sweep: seed $seed (rig sweep --modes entry-counted,boundary --sample 300 --with $once_harmful --seed $seed)"
code=0
if "$programs/rig" sweep --modes entry-counted,boundary --sample 300 --with "$once_harmful" --seed "$seed" \
    --results "$target/rigs" --timeout 1200 >"$target/rig-sweep.log" 2>&1; then
    sed -n '/^FOUND/p' "$target/rig-sweep.log" >&2
    say "sweep: $(grep -c '^batch' "$target/rig-sweep.log") batches, no function harmed"
else
    sed -n '/HARMED/p; /^FOUND/p; /^rig: error: /,$p' "$target/rig-sweep.log" >&2
    say "sweep: a function harms the guest, or the sweep did not come to its end, see $target/rig-sweep.log"
    code=1
fi

for rig in "${running[@]}"; do
    wait "$rig" || code=1
done
for rig in "${rigs[@]}"; do
    sed -n '/^FAIL/p; /^rig: error: /,$p' "$target/rig-$rig.log" >&2
    said=$(sed -n 's/^\(.* cases, .* failed, .*\);.*/\1/p' "$target/rig-$rig.log")
    say "rig $rig: ${said:-it did not come to its end, see $target/rig-$rig.log}"
done
exit "$code"
