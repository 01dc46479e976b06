#!/usr/bin/env bash
# Checks the dependencies against deny.toml. The advisories need a download, and are left out where it fails.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'deny: %s\n' "$*" >&2; }

tools=$(scripts/tool.sh cargo-deny)
PATH=$tools:$PATH
"${CARGO:-cargo}" deny --locked check --hide-inclusion-graph licenses bans sources
# Without a network, the download waits for its own limits.
if timeout 60 "${CARGO:-cargo}" deny fetch db >/dev/null 2>&1; then
    "${CARGO:-cargo}" deny --locked check --hide-inclusion-graph advisories
else
    say "the database of advisories cannot be downloaded, so advisories are not checked."
fi
