#!/usr/bin/env bash
# Makes sure that the software adapters of the tests are there: lavapipe (Vulkan), llvmpipe (GL through
# EGL), SwiftShader (Vulkan); a C linker, which cargo needs; and Python, which reads what is written for it, with
# pip, which fetches ONNX's tests (scripts/onnx.sh).
#
#   source scripts/adapters.sh           sets VK_ADD_DRIVER_FILES and XDG_RUNTIME_DIR in this shell (bash)
#   eval "$(scripts/adapters.sh)"        the same; run by hand it prints what to export
#
# ORLOP_NO_INSTALL=1: look only; install and download nothing.
#
# It never fails: what could not be had is said on stderr, and the test run fails for the missing adapter.
# It leaves the shell options, traps and working directory of the shell that sources it alone.

# shellcheck source=scripts/apt.sh
source "$(dirname "${BASH_SOURCE[0]}")/apt.sh"

_orlop_say() { printf 'adapters: %s\n' "$*" >&2; }

_orlop_may_install() { [ "${ORLOP_NO_INSTALL:-}" != 1 ]; }

_orlop_packages_debian() {
    local package missing=() architecture
    architecture=$(dpkg --print-architecture)
    for package in mesa-vulkan-drivers libegl1 libgl1-mesa-dri libvulkan1; do
        # shellcheck disable=SC2016  # dpkg-query's own placeholder
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package:$architecture" 2>/dev/null)" = installed ] || missing+=("$package")
    done
    command -v cc >/dev/null 2>&1 || missing+=(gcc libc6-dev)
    # Compiles kernels as Metal may (tests/shaders/fast_math.rs).
    command -v clang++ >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || missing+=(g++)
    command -v python3 >/dev/null 2>&1 || missing+=(python3) # reads a snapshot's pickle
    python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
    [ "${#missing[@]}" -gt 0 ] || return 0
    if _orlop_apt_install "${missing[@]}"; then return 0; fi
    _orlop_say "missing; as root: apt-get install --no-install-recommends ${missing[*]}"
}

_orlop_packages_elsewhere() {
    local like=''
    # shellcheck source=/dev/null
    [ ! -r /etc/os-release ] || like=$(. /etc/os-release && echo " ${ID:-} ${ID_LIKE:-} ")
    case "$(uname -s)$like" in
        Linux*' fedora '* | Linux*' rhel '*)
            _orlop_say 'needed: dnf install mesa-vulkan-drivers mesa-libEGL mesa-dri-drivers vulkan-loader gcc-c++ python3-pip' ;;
        Linux*' arch '*)
            _orlop_say 'needed: pacman -S vulkan-swrast mesa vulkan-icd-loader gcc python-pip' ;;
        Linux*suse*)
            _orlop_say 'needed: zypper install libvulkan_lvp Mesa-libEGL1 Mesa-dri libvulkan1 gcc-c++ python3-pip' ;;
        Linux*' alpine '*)
            _orlop_say 'needed: apk add mesa-vulkan-swrast mesa-egl mesa-dri-gallium vulkan-loader build-base py3-pip' ;;
        Linux*)
            _orlop_say "needed: Mesa's lavapipe (Vulkan), Mesa's EGL and GL drivers, the Vulkan loader, a C++ compiler, Python with pip" ;;
        Darwin*)
            _orlop_say 'macOS has no software adapters for the tests: xcode-select --install for the linker, ORLOP_TEST_REQUIRE=cpu and each ORLOP_NO_... that scripts/test.sh --help names for what is missing' ;;
        *)
            _orlop_say 'on Windows and elsewhere: install what you have (Windows brings WARP) and name in ORLOP_TEST_REQUIRE what must run, e.g. cpu; scripts/test.sh --help names what can be left out' ;;
    esac
}

# Is there a whole SwiftShader in folder $1?
_orlop_swiftshader_in() { [ -s "$1/libvk_swiftshader.so" ] && [ -s "$1/vk_swiftshader_icd.json" ]; }

# Puts the SwiftShader library that lies in folder $1 into the cache $2. Files arrive there by rename only, the
# json last, so that an interrupted run leaves nothing that looks whole. The manifest is our own: SwiftShader's
# one-liner, with a path relative to the json.
_orlop_swiftshader_keep() (
    mkdir -p "$2" && stage=$(mktemp -d "$2/.new.XXXXXX") || exit 1
    trap 'rm -rf "$stage"' EXIT
    manifest='{"file_format_version": "1.0.0", "ICD": {"library_path": "./libvk_swiftshader.so", "api_version": "1.0.5"}}'
    cp "$1/libvk_swiftshader.so" "$stage/" \
        && printf '%s\n' "$manifest" >"$stage/vk_swiftshader_icd.json" \
        && chmod 644 "$stage"/* \
        && mv -f "$stage/libvk_swiftshader.so" "$2/" \
        && mv -f "$stage/vk_swiftshader_icd.json" "$2/"
)

# Downloads Debian's chromium-common (it is not installed) and keeps the library in the cache $1.
_orlop_swiftshader_download() (
    command -v dpkg-deb >/dev/null 2>&1 || exit 1
    if ! apt-cache show chromium-common >/dev/null 2>&1; then
        _orlop_thrice _orlop_apt update || true # lists may be empty
        apt-cache show chromium-common >/dev/null 2>&1 || exit 1 # Ubuntu has it as a snap only
    fi
    unpacked=$(mktemp -d) || exit 1
    trap 'rm -rf "$unpacked"' EXIT
    cd "$unpacked" || exit 1
    _orlop_say 'downloading SwiftShader (in chromium-common, 30 MB)'
    for try in 1 2 3; do
        rm -f ./*.deb
        if apt-get -qq -o APT::Sandbox::User=root -o Acquire::Retries=2 download chromium-common </dev/null >&2 \
            && dpkg-deb --fsys-tarfile chromium-common*.deb | tar xf - ./usr/lib/chromium/libvk_swiftshader.so \
            && [ -s usr/lib/chromium/libvk_swiftshader.so ]; then
            _orlop_swiftshader_keep "$unpacked/usr/lib/chromium" "$1"
            exit
        fi
        [ "$try" -lt 3 ] || exit 1
        sleep $((try * 3))
        _orlop_apt update || true # old lists name a file that is gone
    done
)

# Copies the library of an installed browser or Electron program into the cache $1 (or takes the one that
# somebody put there by hand, without a json).
_orlop_swiftshader_from_browser() {
    local folder
    for folder in "$1" /usr/lib/chromium /usr/lib/chromium-browser /usr/lib64/chromium-browser /usr/lib64/chromium \
        /opt/google/chrome /opt/google/chrome-beta /opt/chromium.org/chromium /opt/microsoft/msedge /opt/brave.com/brave \
        /snap/chromium/current/usr/lib/chromium-browser /usr/share/code /usr/lib/electron* /opt/*; do
        if [ -s "$folder/libvk_swiftshader.so" ]; then
            _orlop_say "taking SwiftShader from $folder"
            if _orlop_swiftshader_keep "$folder" "$1"; then return 0; fi
        fi
    done
    return 1
}

_orlop_swiftshader() {
    local home=~
    local cache="${XDG_CACHE_HOME:-$home/.cache}/orlop/swiftshader"
    if ! _orlop_swiftshader_in "$cache" \
        && ! { _orlop_may_install && command -v apt-get >/dev/null 2>&1 && _orlop_swiftshader_download "$cache"; } \
        && ! _orlop_swiftshader_from_browser "$cache"; then
        _orlop_say "no SwiftShader. Install a Chromium or Chrome (on Ubuntu: snap install chromium), or put a"
        _orlop_say "libvk_swiftshader.so (from Debian's chromium-common or any Electron program) into $cache; run again."
        return 0
    fi
    _orlop_swiftshader_in "$cache" || return 0
    local json="$cache/vk_swiftshader_icd.json"
    case ":${VK_ADD_DRIVER_FILES:-}:" in
        *":$json:"*) ;;
        *) VK_ADD_DRIVER_FILES="${VK_ADD_DRIVER_FILES:+$VK_ADD_DRIVER_FILES:}$json" ;;
    esac
    export VK_ADD_DRIVER_FILES
    if [ -n "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}" ]; then
        _orlop_say 'VK_DRIVER_FILES or VK_ICD_FILENAMES is set: the Vulkan loader then ignores VK_ADD_DRIVER_FILES (SwiftShader)'
    fi
}

# EGL prints a line for every context when XDG_RUNTIME_DIR is unset. The folder is ours alone and always the
# same, so that nobody has to clean it up.
_orlop_runtime_dir() {
    [ -z "${XDG_RUNTIME_DIR:-}" ] || return 0
    local folder
    folder="${TMPDIR:-/tmp}/orlop-runtime-$(id -u)"
    mkdir -m 700 "$folder" 2>/dev/null || true
    if [ -L "$folder" ] || [ ! -d "$folder" ] || [ ! -O "$folder" ]; then
        folder=$(mktemp -d) || return 0 # somebody else's
    fi
    chmod 700 "$folder" || true
    export XDG_RUNTIME_DIR="$folder"
}

_orlop_adapters() {
    if [ "$(uname -s)" = Linux ] && command -v apt-get >/dev/null 2>&1 && command -v dpkg-query >/dev/null 2>&1; then
        _orlop_packages_debian
    else
        _orlop_packages_elsewhere
    fi
    if [ "$(uname -s)" = Linux ]; then
        _orlop_swiftshader
        _orlop_runtime_dir
    fi
}

_orlop_adapters || true
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    for name in VK_ADD_DRIVER_FILES XDG_RUNTIME_DIR; do
        [ -z "${!name:-}" ] || printf 'export %s=%q\n' "$name" "${!name}"
    done
fi
unset -f _orlop_say _orlop_may_install _orlop_apt _orlop_thrice _orlop_apt_once _orlop_apt_install \
    _orlop_packages_debian _orlop_packages_elsewhere _orlop_swiftshader_in _orlop_swiftshader_keep _orlop_swiftshader_download \
    _orlop_swiftshader_from_browser _orlop_swiftshader _orlop_runtime_dir _orlop_adapters
