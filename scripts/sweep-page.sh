#!/usr/bin/env bash
# Writes docs/sweep.md from every sweep that came to its end, here or on another machine: a whole kernel in all modes takes
# more hours than one machine has. docs/sweep/ keeps the lines of these sweeps, without those of single boots.
# The argument is the command `rig`.
set -euo pipefail
rig=$(realpath "$1")
readonly rig
cd "$(dirname "$0")/.."

mkdir -p docs/sweep
for lines in target/rigs/sweep-*.jsonl; do
    if grep -qs '"step":"sum"' "$lines"; then
        grep -v '"step":"\(booting\|booted\|batch\)"' "$lines" >"docs/sweep/${lines##*/}"
    fi
done
"$rig" sweep-page --results docs/sweep --write
