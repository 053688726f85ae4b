#!/usr/bin/env bash
# Kernels through compilers of hardware, without a GPU: scripts/hardware.sh [--full]
#
# Mesa's driver for AMD compiles for a GPU that is not there (RADV_FORCE_FAMILY, up to Mesa 25). Some of the kernels
# that hardware is given, with --full (or ORLOP_TEST_FULL=1) all, for two generations: each must compile, and find
# room in registers. Prints what each template needs.
#
#   VK_DRIVER_FILES       the manifest of another such driver than the system's
#   ORLOP_NO_HARDWARE=1   do not run; the only way to pass where there is no such driver
set -euo pipefail
case "$#:${1:-}" in
    0: | 1:--full) ;;
    *) echo "usage: scripts/hardware.sh [--full]" >&2 && exit 2 ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${ORLOP_NO_HARDWARE:-}" = 1 ]; then
    echo "hardware: not run (ORLOP_NO_HARDWARE=1)"
    exit 0
fi
# Not a power of two, which the order of the kernels has many of.
every=17
[ "${1:-}" != --full ] && [ "${ORLOP_TEST_FULL:-0}" = 0 ] || every=1
driver=${VK_DRIVER_FILES:-}
for manifest in "/usr/share/vulkan/icd.d/radeon_icd.$(uname -m).json" /usr/share/vulkan/icd.d/radeon_icd.json; do
    if [ -z "$driver" ] && [ -e "$manifest" ]; then driver=$manifest; fi
done
if [ -z "$driver" ]; then
    echo "hardware: Mesa's Vulkan driver for AMD is missing (Debian: mesa-vulkan-drivers)."
    echo "hardware: ORLOP_NO_HARDWARE=1 leaves it out."
    exit 1
fi
# Nothing from a cache: how long it takes is told.
export VK_DRIVER_FILES="$driver" MESA_SHADER_CACHE_DISABLE=true
for family in VEGA10 NAVI21; do
    RADV_FORCE_FAMILY=${family,,} cargo bench --profile checked --all-features --locked --bench compiled -- \
        --device "Null hardware (RADV $family)" --every "$every" || {
        echo "hardware: $family failed; from Mesa 26 on the driver needs a GPU (ORLOP_NO_HARDWARE=1 leaves it out)"
        exit 1
    }
done
