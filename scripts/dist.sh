#!/usr/bin/env bash
# Builds what is released, into target/dist/: the static binary, man pages, completions, a Debian package, a bill of materials and
# checksums. The same sources and the same compiler give the same bytes in every directory.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly target=x86_64-unknown-linux-gnu out=target/dist
cargo=${CARGO:-cargo}
target_dir=$(realpath -m "${CARGO_TARGET_DIR:-target}")
readonly cargo target_dir

say() { printf 'dist: %s\n' "$*" >&2; }

# The time of all files is that of the last commit, or of the changelog where there is no repository.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH
umask 022

scripts/deny.sh check

# Directories of this machine are not part of the binary. A configuration file cannot name them, and Cargo's option trim-paths is
# not stable yet.
"$cargo" build --release --locked -p hyprobe --bin hyprobe --target "$target" --config \
    "target.$target.rustflags=[\"--remap-path-prefix=$PWD=/hyprobe\", \"--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}/registry/src=/crates\"]"

rm -rf "$out"
mkdir -p "$out"
install -m 755 "$target_dir/$target/release/hyprobe" "$out/hyprobe"
"$out/hyprobe" package-files "$out"

for tool in cargo-cyclonedx cargo-deb; do
    directory=$(scripts/tool.sh "$tool")
done
PATH=$directory:$PATH
# It writes a file beside each Cargo.toml of the workspace; that of the command is in the top directory.
"$cargo" cyclonedx --quiet --format json --spec-version 1.5 --target "$target" --override-filename hyprobe-dist.cdx
# The names of the project's own crates have the directory of this checkout.
sed "s#path+file://$PWD#path+file:///hyprobe#g" hyprobe-dist.cdx.json >"$out/hyprobe.cdx.json"
rm hyprobe-dist.cdx.json
rm -f ./*/hyprobe-dist.cdx.json ./*/*/hyprobe-dist.cdx.json
# The assets of the package are listed in Cargo.toml.
"$cargo" deb --quiet --no-build --no-strip --locked --target "$target" --output "$out/"

(cd "$out" && find . -type f ! -name SHA256SUMS -printf '%P\0' | sort -z | xargs -0 sha256sum >SHA256SUMS)
say "$(stat -c '%n, %s bytes' "$out/hyprobe" "$out"/*.deb | paste -sd ';')"
cat "$out/SHA256SUMS"
