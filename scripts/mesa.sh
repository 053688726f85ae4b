#!/usr/bin/env bash
# Tests on a newer lavapipe than the system's: scripts/mesa.sh [FILTER ...]
#
# Debian's backports have a Mesa whose lavapipe has cooperative matrices, and whose compiler rewrites more. It is
# unpacked with all libraries that it needs into the cache (63 MB to fetch, once), installs nothing, needs no root, and runs
# below its own loader of programs, where the system's libc is no newer. FILTERs are of the suite's trials (default: a
# choice of about three minutes).
#
#   ORLOP_NO_MESA=1      do not run; the only way to pass without that Mesa
#   ORLOP_NO_INSTALL=1   fetch nothing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${ORLOP_NO_MESA:-}" = 1 ]; then
    echo "mesa: not run (ORLOP_NO_MESA=1)"
    exit 0
fi
if [ "$(uname -m)" != x86_64 ]; then
    echo "mesa: not run (this machine is no x86-64)"
    exit 0
fi
suite=trixie-backports
home=~
cache="${XDG_CACHE_HOME:-$home/.cache}/orlop/mesa-$suite"
libraries="$cache/usr/lib/x86_64-linux-gnu"
driver="$cache/usr/share/vulkan/icd.d/lvp_icd.json"
loader="$libraries/ld-linux-x86-64.so.2"
is_there() { [ -s "$driver" ] && [ -s "$loader" ]; }
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# With apt's own resolver, on lists and a state of packages (none) of its own.
fetch() (
    set -e # what calls it must not be a condition
    command -v apt-get >/dev/null
    command -v dpkg-deb >/dev/null
    # Where the cache is, so that what is whole comes there by a rename.
    mkdir -p "${cache%/*}"
    apt=$(mktemp -d "${cache%/*}/.mesa.XXXXXX")
    trap 'rm -rf "$apt"' EXIT
    mkdir -p "$apt/etc/apt.conf.d" "$apt/etc/preferences.d" "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/root"
    : >"$apt/status"
    for name in trixie "$suite"; do
        echo "deb [signed-by=$keyring] http://deb.debian.org/debian $name main"
    done >"$apt/etc/sources.list"
    # A mirror may be a copy of another day: signatures are looked at, dates are not.
    cat >"$apt/apt.conf" <<-END
		Dir "$apt";
		Dir::State "$apt/state";
		Dir::State::status "$apt/status";
		Dir::Cache "$apt/cache";
		Dir::Etc "$apt/etc";
		Acquire::Check-Valid-Until "false";
		Acquire::Languages "none";
		Acquire::Retries "2";
		APT::Architecture "amd64";
		APT::Architectures { "amd64"; };
		APT::Sandbox::User "";
		Debug::NoLocking "true";
	END
    apt-config dump | grep -E '^Acquire::https?::Proxy' >>"$apt/apt.conf" || true
    export APT_CONFIG="$apt/apt.conf"
    apt-get -qq update </dev/null >&2
    apt-get -qq install -y --download-only --no-install-recommends -t "$suite" mesa-vulkan-drivers libvulkan1 </dev/null >&2
    for package in "$apt"/cache/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar xf - -C "$apt/root" --exclude='./usr/share/doc*'
    done
    # Other drivers are half of it.
    find "$apt/root" -name 'libvulkan_*.so' ! -name libvulkan_lvp.so -delete
    [ -s "$apt/root/usr/share/vulkan/icd.d/lvp_icd.json" ]
    [ -s "$apt/root/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" ]
    # Another run may have been faster, and use it.
    if ! is_there; then
        rm -rf "$cache"
        mv -T "$apt/root" "$cache"
    fi
)

if ! is_there && [ "${ORLOP_NO_INSTALL:-}" != 1 ]; then
    if ! [ -s "$keyring" ]; then
        # shellcheck source=scripts/apt.sh
        source scripts/apt.sh
        _orlop_apt_install debian-archive-keyring || echo "mesa: $keyring, by which Debian's packages are known, is missing"
    fi
    for try in 1 2 3; do
        set +e
        fetch
        fetched=$?
        set -e
        [ "$fetched" -ne 0 ] || break
        [ "$try" -eq 3 ] || sleep $((try * 3))
    done
fi
if ! is_there; then
    echo "mesa: there is no newer Mesa in $cache, and it could not be fetched from Debian's $suite."
    echo "mesa: ORLOP_NO_MESA=1 leaves it out."
    exit 1
fi

binary=$(scripts/binary.sh suite)
temp=$(mktemp -d "${TMPDIR:-/tmp}/orlop-mesa.XXXXXX")
trap 'rm -rf "$temp"' EXIT
filters=("$@")
[ "$#" -gt 0 ] || filters=(lavapipe::cooperative lavapipe::cast lavapipe::functions lavapipe::reduce::specials lavapipe::user)
# Side by side: trials of one family wait for its device's one compiler.
one() { # number, filter
    # Vulkan alone: the GL of the system is not for this libc.
    env -u VK_ADD_DRIVER_FILES -u ORLOP_TEST_FULL VK_DRIVER_FILES="$driver" WGPU_BACKEND=vulkan ORLOP_TEST_REQUIRE=lavapipe \
        "$loader" --library-path "$libraries" "$binary" "$2" >"$temp/$1" 2>&1
}
running=()
for at in "${!filters[@]}"; do
    one "$at" "${filters[at]}" &
    running+=("$!")
done
failed=''
for at in "${!filters[@]}"; do
    wait "${running[at]}" || failed+=" ${filters[at]}"
    tee -a "$temp/log" <"$temp/$at"
done
[ -z "$failed" ] || { echo "mesa:$failed failed"; exit 1; }
grep -h -o 'lavapipe (llvmpipe[^,]*' "$temp/log" | sort -u
# No trial of the cooperative kernels is no test of them.
if [ "$#" -eq 0 ] && ! grep -q '^test lavapipe::cooperative::edges.*ok$' "$temp/log"; then
    echo "mesa: this lavapipe has no cooperative matrices"
    exit 1
fi
awk '/^test result: / { passed += $4 } END { printf "mesa: %d trials\n", passed; exit passed == 0 }' "$temp/log"
