#!/usr/bin/env bash
# Runs every test that this machine can run. What failed is in the tests' own output, whose last lines are the runner's.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

say() { printf 'test: %s\n' "$*" >&2; }

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
    "$cargo" nextest run "${selection[@]}" -E 'not binary(nested_plumbing)'
else
    "$cargo" test "${selection[@]}" --tests
fi
