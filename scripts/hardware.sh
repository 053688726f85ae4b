#!/usr/bin/env bash
# Kernels through compilers of hardware, without a GPU: scripts/hardware.sh [--full]
#
# Mesa's driver for AMD compiles for a GPU that is not there (RADV_FORCE_FAMILY, up to Mesa 25). Some of the kernels
# that hardware is given, with --full (or ORLOP_TEST_FULL=1) all, for two generations: each must compile, and find
# room in registers. Prints what each template needs.
#
#   ORLOP_NO_HARDWARE=1   do not run; the only way to pass where there is no such driver
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${ORLOP_NO_HARDWARE:-}" = 1 ]; then
    echo "hardware: not run (ORLOP_NO_HARDWARE=1)"
    exit 0
fi
every=16
[ "${1:-}" != --full ] && [ "${ORLOP_TEST_FULL:-0}" = 0 ] || every=1
# shellcheck source=scripts/adapters.sh
source scripts/adapters.sh
driver=$(ls /usr/share/vulkan/icd.d/radeon_icd*.json 2>/dev/null | head -n 1)
if [ -z "$driver" ]; then
    echo "hardware: Mesa's Vulkan driver for AMD is missing (Debian: mesa-vulkan-drivers)."
    echo "hardware: ORLOP_NO_HARDWARE=1 leaves it out."
    exit 1
fi
export VK_DRIVER_FILES="$driver"
for family in vega10 navi21; do
    RADV_FORCE_FAMILY=$family cargo bench --profile checked --all-features --locked --bench compiled -- --every "$every" || {
        echo "hardware: $family failed; from Mesa 26 on the driver needs a GPU (ORLOP_NO_HARDWARE=1 leaves it out)"
        exit 1
    }
done
