#!/usr/bin/env bash
# The CPU device's own tests on processors that this machine is not, by QEMU: scripts/processors.sh
#
#   ORLOP_NO_INSTALL=1   install nothing
#
# AArch64 by its own vectors; x86-64 with FMA but without AVX2, and without either.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "$(uname -m)" != x86_64 ]; then
    echo "processors: not run (this machine is no x86-64)"
    exit 0
fi
# shellcheck source=scripts/apt.sh
source scripts/apt.sh
target=aarch64-unknown-linux-gnu
has_all() {
    local program
    for program in "$@"; do command -v "$program" >/dev/null || return 1; done
}
if ! has_all qemu-x86_64 qemu-aarch64 aarch64-linux-gnu-gcc \
    && ! _orlop_apt_install qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross; then
    echo "processors: there is no QEMU (Debian: qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross)"
    exit 1
fi
if ! rustup target list --installed | grep -qx "$target"; then
    if [ "${ORLOP_NO_INSTALL:-}" = 1 ] || ! rustup target add "$target"; then
        echo "processors: there is no standard library for $target (rustup target add $target)"
        exit 1
    fi
fi

# Functions number by number, and products of all sizes or of millions of terms, take too long here; the others go through
# all loops.
tests=(cpu:: --skip cpu::double --skip cpu::single --skip long_sums --skip every_way)
# There is no GPU here.
export VK_DRIVER_FILES=/nonexistent LIBGL_DRIVERS_PATH=/nonexistent
built=(--profile checked --all-features --locked --lib)
# Runs them by cargo's arguments; none that ran is no test.
log=$(mktemp "${TMPDIR:-/tmp}/orlop-processors.XXXXXX")
trap 'rm -f "$log"' EXIT
run() {
    cargo test "${built[@]}" "$@" -- "${tests[@]}" | tee "$log"
    awk '/^test result: / { passed += $4 } END { exit passed == 0 }' "$log" || { echo "processors: not one test ran"; exit 1; }
}
host=$(rustc -vV | sed -n 's/^host: //p')
host=${host//-/_}
for processor in Opteron_G5 Nehalem; do
    echo "processors: $processor"
    export "CARGO_TARGET_${host^^}_RUNNER=qemu-x86_64 -cpu $processor"
    run
done
echo "processors: AArch64"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
run --target "$target"
