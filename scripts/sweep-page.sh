#!/usr/bin/env bash
# Writes docs/sweep.md from every sweep that came to its end, here or on another machine: a whole kernel in all modes takes
# more hours than one machine has. docs/sweep/ keeps the lines of these sweeps, without those of single boots.
# The argument is the command `rig`.
set -euo pipefail
rig=$(realpath "$1")
readonly rig
cd "$(dirname "$0")/.."

# When the last run of the sweep in a file began; nothing if there is none.
began() { grep -so '"type":"run",.*"date":"[^"]*"' "$1" | tail -n 1 | sed 's/.*"date":"\([^"]*\)"/\1/'; }
# A sweep that goes on has a new run and a new plan behind the sum of the one before.
has_ended() {
    local last
    last=$(grep -so '"type":"run"\|"step":"\(plan\|sum\|cannot\)"' "$1" | tail -n 1)
    [ "$last" = '"step":"sum"' ] || [ "$last" = '"step":"cannot"' ]
}

mkdir -p docs/sweep
for lines in target/rigs/sweep-*.jsonl; do
    kept=docs/sweep/${lines##*/}
    if has_ended "$lines" && [[ "$(began "$lines")" > "$(began "$kept" || true)" ]]; then
        grep -v '"step":"\(booting\|booted\|batch\)"' "$lines" >"$kept"
    fi
done
"$rig" sweep-page --results docs/sweep --write
