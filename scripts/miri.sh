#!/usr/bin/env bash
# Miri over the code that handles host memory by pointer (src/cpu/arena/), the allocator it
# trusts (src/memory/), and work that threads share (src/cpu/helpers.rs), in a crate of their own
# (tests/miri/): scripts/miri.sh [seeds]
#
#   seeds              schedules tried for threads (default 4)
#   ORLOP_NO_MIRI=1    do not run; the only way to pass without Miri
#   ORLOP_NO_INSTALL=1 install nothing
#   ORLOP_NIGHTLY      the toolchain (default nightly)
#
# Installs what it needs through rustup: a nightly toolchain with miri and rust-src. Where that
# cannot be had it fails and says so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${ORLOP_NO_MIRI:-}" = 1 ]; then
    echo "miri: not run (ORLOP_NO_MIRI=1)"
    exit 0
fi
seeds=${1:-4}
nightly=${ORLOP_NIGHTLY:-nightly}

if ! cargo "+$nightly" miri --version >/dev/null 2>&1 \
    || [ ! -d "$(rustc "+$nightly" --print sysroot)/lib/rustlib/src" ]; then
    if [ "${ORLOP_NO_INSTALL:-}" != 1 ]; then
        rustup component add --toolchain "$nightly" miri rust-src 2>/dev/null \
            || rustup toolchain install "$nightly" --profile minimal --component miri --component rust-src || true
    fi
    if ! cargo "+$nightly" miri --version >/dev/null 2>&1; then
        echo "miri: there is none and it could not be installed (rustup toolchain install $nightly --component miri,rust-src)."
        echo "miri: ORLOP_NO_MIRI=1 leaves it out."
        exit 1
    fi
fi

# Its build is of its own kind: apart from the others, so that neither throws the other's away.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/miri"
logs=$(mktemp -d "${TMPDIR:-/tmp}/orlop-miri.XXXXXX")
trap 'rm -rf "$logs"' EXIT
miri=(cargo "+$nightly" miri test --manifest-path tests/miri/Cargo.toml --locked --lib)
run() { # log, flags, what the test program gets
    local log="$logs/$1" flags=$2
    shift 2
    # Leaks and wrong provenance are errors by default; strict provenance also refuses integers
    # made into pointers.
    MIRIFLAGS="-Zmiri-strict-provenance $flags" "${miri[@]}" -- "$@" | tee "$log" || return 1
    # Seeds run side by side, and so may their lines.
    grep -qE '[1-9][0-9]* passed' "$log" || { echo "miri: not one test ran"; return 1; }
}
# Compiled once, before two wait for it.
MIRIFLAGS="-Zmiri-strict-provenance" "${miri[@]}" -- --list >/dev/null
# Miri runs all threads of a program on one: two programs, so that both cores have work.
run moves '' memory::relocate >"$logs/beside" &
beside=$!
status=0
run others '' memory:: cpu::arena turns:: --skip memory::relocate || status=$?
wait "$beside" || status=$?
cat "$logs/beside"
[ "$status" -eq 0 ] || exit "$status"
run threads "-Zmiri-many-seeds=0..$seeds" cpu::arena::tests::threads cpu::helpers::tests::callers
