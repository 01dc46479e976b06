#!/usr/bin/env bash
# Checks the dependencies against deny.toml. The advisories need a download, and are left out where it fails.
#
#   scripts/deny.sh          nothing, if deny.checked has the digest of all that is checked, and cargo-deny would have to be built, which takes
#                            minutes. New advisories are not seen then
#   scripts/deny.sh check    checks in any case
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'deny: %s\n' "$*" >&2; }

readonly checked=deny.checked
# Before the check: a file that changes meanwhile has another digest.
export LC_ALL=C
digest=$(cat Cargo.lock deny.toml scripts/tool.sh Cargo.toml ./*/Cargo.toml ./*/*/Cargo.toml | sha256sum)
readonly digest
if [ "${1-}" != check ] && [ "$digest" = "$(cat "$checked" 2>/dev/null)" ] &&
    ! compgen -G "${CARGO_TARGET_DIR:-target}/tools/bin/cargo-deny" >/dev/null; then
    say "the dependencies and their rules are those that have passed ($checked); \`scripts/deny.sh check\` looks again, also for new advisories"
    exit
fi

tools=$(scripts/tool.sh cargo-deny)
PATH=$tools:$PATH
"${CARGO:-cargo}" deny --locked check --hide-inclusion-graph licenses bans sources
# Without a network, the download waits for its own limits.
if timeout 60 "${CARGO:-cargo}" deny fetch db >/dev/null 2>&1; then
    "${CARGO:-cargo}" deny --locked check --hide-inclusion-graph advisories
else
    say "the database of advisories cannot be downloaded, so advisories are not checked."
fi
[ "$digest" = "$(cat "$checked" 2>/dev/null)" ] || say "$checked is new: commit it, or each fresh machine builds cargo-deny"
printf '%s\n' "$digest" >"$checked"
