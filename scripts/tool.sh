#!/usr/bin/env bash
# Builds a cargo tool into target/tools, if it is not there in this version, and prints the directory of its binary.
#
#   scripts/tool.sh cargo-deb
#
# The versions are fixed here: the same sources are released and checked in the same way everywhere.
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A versions=(
    [cargo-cyclonedx]=0.5.9
    [cargo-deb]=3.8.0
    [cargo-deny]=0.20.2
)
readonly name=$1
readonly version=${versions[$name]}
root=$(realpath -m "${CARGO_TARGET_DIR:-target}")/tools
readonly root

if ! grep -qsF "\"$name $version " "$root/.crates.toml"; then
    printf 'tool: %s %s is missing; building it into %s\n' "$name" "$version" "$root" >&2
    # A debug build takes a third of the time. Elsewhere, so that the project's flags and toolchain do not apply to a tool.
    (cd / && "${CARGO:-cargo}" install --quiet --locked --debug --root "$root" "$name@$version") >&2
fi
echo "$root/bin"
