#!/usr/bin/env bash
# How scripts install what Debian and Ubuntu have: source it, then `_orlop_apt_install PACKAGE...`.

# apt-get as root, directly or through sudo; 1 when neither is possible.
_orlop_apt() {
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 || return 1
        as_root=(sudo)
        [ -t 2 ] || as_root=(sudo -n) # nobody there to type a password
    fi
    ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -qq \
        -o DPkg::Lock::Timeout=120 -o Acquire::Retries=2 "$@" </dev/null >&2
}

# Runs a command up to three times.
_orlop_thrice() {
    local try
    for try in 1 2 3; do
        if "$@"; then return 0; fi
        [ "$try" -eq 3 ] || sleep $((try * 3))
    done
    return 1
}

# Whatever one of the machine's sources says: another may have them.
# shellcheck disable=SC2317  # reached through _orlop_thrice
_orlop_apt_once() { _orlop_apt update || true; _orlop_apt install -y --no-install-recommends "$@"; }

# Installs packages; 1 when ORLOP_NO_INSTALL=1 forbids it, or it cannot be done.
_orlop_apt_install() {
    [ "${ORLOP_NO_INSTALL:-}" != 1 ] && command -v apt-get >/dev/null 2>&1 || return 1
    printf 'apt: installing %s\n' "$*" >&2
    _orlop_thrice _orlop_apt_once "$@"
}
