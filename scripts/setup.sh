#!/usr/bin/env bash
# Installs what hyprobe is built and run with. Says what and why, and does nothing where nothing is missing.
#
#   scripts/setup.sh room    nothing; looks whether the disk has room for a build of the tests
#   scripts/setup.sh build   what compiles it: gcc, a static C library, make; looks whether Rust is new enough
#   scripts/setup.sh qemu    what nested runs need: QEMU 10 or later
#   scripts/setup.sh rigs    what the engine is tested on besides: Bochs, which interprets VT-x and SVM, and a CD for it
#   scripts/setup.sh fuzz    build, and a C++ compiler for libFuzzer
#   scripts/setup.sh demo    build, and qemu unless this machine has hardware virtualisation
#   scripts/setup.sh         build, qemu and rigs, and what checks outputs, for the tests
set -euo pipefail
cd "$(dirname "$0")/.."

readonly qemu_package=qemu-system-x86
readonly qemu_oldest=10

say() { printf 'setup: %s\n' "$*" >&2; }

stop() {
    say "$@"
    exit 1
}

# at_least VERSION OLDEST
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

is_root() { [ "$(id -u)" = 0 ]; }

# stop_unless_root WHAT COMMAND: nobody's password is asked for in the middle of a build.
stop_unless_root() {
    is_root && return
    stop "$1 missing, and installing takes root. Run this, then the same command again:

    $2
"
}

stop_without_apt() {
    command -v apt-get >/dev/null ||
        stop "$1 missing, and there is no apt-get here. Install it with this system's package manager, then run the same command again."
}

# install PACKAGE…
install() {
    # Lists from weeks ago name packages that mirrors no longer have. A third party's source may be out of order, though.
    apt-get -q update || say "apt-get update failed; trying with the package lists that are here"
    DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install "$@"
}

static_libc() { [ -e "$(gcc -print-file-name=libc.a 2>/dev/null)" ]; }

set_up_build() {
    local packages=()
    if ! command -v gcc >/dev/null; then
        say "gcc is missing; Rust links with it, and it compiles the test guest"
        packages+=(gcc)
    fi
    # hyprobe is one static file, so that nested runs can boot it as the init of their outer Linux.
    if ! static_libc; then
        say "a static C library is missing; hyprobe is linked with it"
        packages+=(libc6-dev)
    fi
    if ! command -v make >/dev/null; then
        say "make is missing"
        packages+=(make)
    fi
    # Debian has it anyway.
    if command -v apt-get >/dev/null && ! compgen -G '/usr/share/keyrings/debian-archive-keyring.*' >/dev/null; then
        say "Debian's keys are missing; the package lists that stock kernels come from are signed with them"
        packages+=(debian-archive-keyring)
    fi
    if [ ${#packages[@]} != 0 ]; then
        stop_without_apt "${packages[*]}"
        stop_unless_root "${packages[*]}" "sudo apt-get install --no-install-recommends ${packages[*]}"
        install "${packages[@]}"
    fi
    check_rust
}

check_rust() {
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    command -v cargo >/dev/null ||
        stop "there is no cargo; install Rust $wanted or later from https://rustup.rs, then run the same command again."
    found=$(cargo --version | cut -d ' ' -f 2)
    at_least "$found" "$wanted" ||
        stop "Rust $found is too old, $wanted or later is needed; \`rustup update stable\`, then run the same command again."
}

check_rust_tools() {
    if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
        stop "rustfmt or clippy is missing, which the tests begin with; \`rustup component add rustfmt clippy\`, then run the same command again."
    fi
}

# A compiler that the disk has no room for ends with pages of errors, of which one line says so.
check_room() {
    local target needed_mib=6144 free_mib
    target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
    # The last build came to its end.
    [ ! -e "$target/x86_64-unknown-linux-gnu/debug/rig" ] || return 0
    while [ ! -d "$target" ]; do target=$(dirname "$target"); done
    free_mib=$(df --output=avail --block-size=1M "$target" | tail -n 1 | tr -d ' ')
    [[ $free_mib =~ ^[0-9]+$ ]] || return 0
    [ "$free_mib" -ge "$needed_mib" ] ||
        stop "$target has $free_mib MiB free, and a build of the tests takes up to $needed_mib; make room or name another directory in CARGO_TARGET_DIR, then run the same command again."
}

# The version of the QEMU that hyprobe would use, or 0.
qemu_version() {
    { "${HYPROBE_QEMU:-qemu-system-x86_64}" --version 2>/dev/null || true; } |
        sed -n 's/^QEMU emulator version \([0-9.]*\).*/\1/p' | grep . || echo 0
}

set_up_qemu() {
    at_least "$(qemu_version)" "$qemu_oldest" && return
    say "QEMU $qemu_oldest or later is missing; it is what stock kernels run in where there is no hardware virtualisation"
    stop_without_apt "$qemu_package"
    # shellcheck source=/dev/null
    . /etc/os-release
    if [ "${VERSION_CODENAME-}" = bookworm ]; then
        stop_unless_root "$qemu_package" "sudo $PWD/scripts/setup.sh qemu"
        install_from_backports
    else
        stop_unless_root "$qemu_package" "sudo apt-get install --no-install-recommends $qemu_package"
        install "$qemu_package"
    fi
    at_least "$(qemu_version)" "$qemu_oldest" ||
        stop "this system's package $qemu_package is QEMU $(qemu_version); nested runs need $qemu_oldest or later (Debian 12 with backports, Debian 13, Ubuntu 25.04). Install one and name it in HYPROBE_QEMU."
}

# Debian 12 has QEMU 10 in its backports only. They are read by an apt with sources and lists of its own, so that the
# system's sources stay as they are, and nothing else of the system comes from there later.
install_from_backports() {
    local own mirror security keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -r "$keyring" ] ||
        stop "$keyring is missing, with which Debian's package lists are checked; \`apt-get install debian-archive-keyring\`, then run the same command again."
    # apt downloads as the user _apt, who must be able to enter the directory; apt gives it the directories `partial`.
    own=$(mktemp -d -p /var/tmp)
    # shellcheck disable=SC2064  # the value of now is meant
    trap "rm -rf '$own'" EXIT
    mkdir -p "$own/lists/partial" "$own/cache/archives/partial"
    chmod 711 "$own" "$own"/lists "$own"/cache "$own"/cache/archives
    mirror=$(configured_mirror bookworm)
    security=$(configured_mirror bookworm-security)
    {
        echo "deb [signed-by=$keyring] ${mirror:=http://deb.debian.org/debian} bookworm main"
        echo "deb [signed-by=$keyring] $mirror bookworm-backports main"
        # What is installed may have come from here, and what is to be installed must fit it.
        [ -z "$security" ] || echo "deb [signed-by=$keyring] $security bookworm-security main"
    } >"$own/sources.list"
    say "installing $qemu_package from bookworm-backports on $mirror; the system's apt sources stay as they are"
    local options=(
        -q
        -o "Dir::Etc::sourcelist=$own/sources.list"
        -o Dir::Etc::sourceparts=-
        -o "Dir::State::lists=$own/lists"
        -o "Dir::Cache=$own/cache"
        -o Acquire::Languages=none
        -o APT::Update::Error-Mode=any
    )
    apt-get "${options[@]}" update
    DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" -y --no-install-recommends \
        -t bookworm-backports install "$qemu_package"
}

# configured_mirror SUITE: the first mirror that the system's apt takes SUITE from, whichever way it is written down.
configured_mirror() {
    apt-get update --print-uris 2>/dev/null | sed -n "s|^'\(http[^']*\)/dists/$1/InRelease'.*|\1|p" | head -n 1
}

# What the rigs look for, see rigs/src/launch/, and the packages that bring it.
readonly rigs_packages=(bochs bochs-term bochsbios vgabios isolinux syslinux-common xorriso)
readonly rigs_files=(
    /usr/bin/bochs
    /usr/share/bochs/BIOS-bochs-latest
    /usr/share/bochs/VGABIOS-lgpl-latest
    /usr/lib/ISOLINUX/isolinux.bin
    /usr/lib/syslinux/modules/bios/ldlinux.c32
)

has_rigs() {
    local file
    for file in "${rigs_files[@]}"; do
        [ -e "$file" ] || return
    done
    compgen -G '/usr/lib/*/bochs/plugins/libbx_term*' >/dev/null && command -v xorriso >/dev/null
}

set_up_rigs() {
    has_rigs && return
    say "Bochs, or what a CD for it is made with, is missing; it is what the engine is tested on where there is no VT-x or SVM"
    stop_without_apt "${rigs_packages[*]}"
    stop_unless_root "${rigs_packages[*]}" "sudo apt-get install --no-install-recommends ${rigs_packages[*]}"
    install "${rigs_packages[@]}"
    has_rigs || stop "this system's packages (${rigs_packages[*]}) do not bring what the rigs look for: ${rigs_files[*]}"
}

# A report for CI systems is checked against a schema.
set_up_xmllint() {
    local package=libxml2-utils
    command -v xmllint >/dev/null && return
    say "xmllint is missing; reports for CI systems are checked with it"
    stop_without_apt "$package"
    stop_unless_root "$package" "sudo apt-get install --no-install-recommends $package"
    install "$package"
}

# The imports among files are checked by a script.
set_up_python() {
    local package=python3
    command -v python3 >/dev/null && return
    say "python3 is missing; it checks the imports among the project's files"
    stop_without_apt "$package"
    stop_unless_root "$package" "sudo apt-get install --no-install-recommends $package"
    install "$package"
}

# Dumps of guests are read by the programs that users read dumps with.
set_up_dump_readers() {
    local packages=()
    command -v makedumpfile >/dev/null || packages+=(makedumpfile)
    command -v gdb >/dev/null || packages+=(gdb)
    [ ${#packages[@]} != 0 ] || return 0
    say "${packages[*]} missing; dumps of guests are read with makedumpfile and gdb"
    stop_without_apt "${packages[*]}"
    stop_unless_root "${packages[*]}" "sudo apt-get install --no-install-recommends ${packages[*]}"
    install "${packages[@]}"
}

set_up_fuzz() {
    local package=g++
    command -v c++ >/dev/null && return
    say "a C++ compiler is missing; libFuzzer is compiled with it"
    stop_without_apt "$package"
    stop_unless_root "$package" "sudo apt-get install --no-install-recommends $package"
    install "$package"
}

# Kernel and device agree that ring 0 runs at the processor's speed.
has_hardware_virtualisation() { [ -e /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; }

[ "$(uname -sm)" = 'Linux x86_64' ] || stop "hyprobe needs Linux on x86-64; this is $(uname -sm)."
case ${1-all} in
build) set_up_build ;;
qemu) set_up_qemu ;;
rigs) set_up_rigs ;;
fuzz)
    set_up_build
    set_up_fuzz
    ;;
demo)
    set_up_build
    has_hardware_virtualisation || set_up_qemu
    ;;
room) check_room ;;
all)
    set_up_build
    check_rust_tools
    set_up_qemu
    set_up_rigs
    set_up_xmllint
    set_up_python
    set_up_dump_readers
    ;;
*) stop "there is no part '$1'; the parts are room, build, qemu, rigs, fuzz and demo." ;;
esac
