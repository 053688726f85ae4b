#!/usr/bin/env bash
# The device suite under Vulkan's validation layers, which must say nothing: scripts/layers.sh [--full]
#
# First a program makes a mistake on purpose, and the layers must see it: so they are on. Then
# trials on lavapipe and SwiftShader run: some of each family, with --full (or ORLOP_TEST_FULL=1)
# all at their usual sizes, those of threads, of gibibytes and of every variant among them: half an
# hour.
#
#   ORLOP_TEST_REQUIRE   of these adapters trials must run (default: cpu,lavapipe,swiftshader,gl; those without Vulkan do not count)
#   ORLOP_NO_LAYERS=1    do not run; the only way to pass without the layers
#   ORLOP_NO_INSTALL=1   install nothing (Debian: vulkan-validationlayers)
set -euo pipefail
case "$#:${1:-}" in
    0: | 1:--full) ;;
    *) echo "usage: scripts/layers.sh [--full]" >&2 && exit 2 ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${ORLOP_NO_LAYERS:-}" = 1 ]; then
    echo "layers: not run (ORLOP_NO_LAYERS=1)"
    exit 0
fi
full=${ORLOP_TEST_FULL:-0}
[ "${1:-}" != --full ] || full=1
# shellcheck source=scripts/adapters.sh
source scripts/adapters.sh

manifest() { ls /usr/share/vulkan/explicit_layer.d/*khronos_validation.json /etc/vulkan/explicit_layer.d/*khronos_validation.json 2>/dev/null; }
if [ -z "$(manifest)" ]; then
    # shellcheck source=scripts/apt.sh
    source scripts/apt.sh
    _orlop_apt_install vulkan-validationlayers || true
fi
if [ -z "$(manifest)" ]; then
    echo "layers: there are none and they could not be installed (apt-get install vulkan-validationlayers)."
    echo "layers: ORLOP_NO_LAYERS=1 leaves them out."
    exit 1
fi

temp=$(mktemp -d "${TMPDIR:-/tmp}/orlop-layers.XXXXXX")
trap 'rm -rf "$temp"' EXIT
suite=$(scripts/binary.sh suite)
processes=$(scripts/binary.sh processes)

# With missing barriers as errors. Every message goes to stdout, since a log file begins anew with each instance.
printf 'khronos_validation.%s\n' 'debug_action = VK_DBG_LAYER_ACTION_LOG_MSG' 'log_filename = stdout' \
    'report_flags = error,warn,perf' 'enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT' \
    >"$temp/vk_layer_settings.txt"
export VK_LAYER_SETTINGS_PATH="$temp/vk_layer_settings.txt" VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation
required=$(tr ',' ' ' <<<"${ORLOP_TEST_REQUIRE-cpu,lavapipe,swiftshader,gl}")
unset ORLOP_TEST_FULL ORLOP_TEST_REQUIRE

ORLOP_TEST_CASE=vulkan_mistake "$processes" >"$temp/mistake"
if ! grep -q 'VUID-VkBufferCreateInfo-size-00912' "$temp/mistake"; then
    echo "layers: they do not see a buffer of no bytes, so they are not on:"
    cat "$temp/mistake"
    exit 1
fi
echo "layers: on (a mistake made on purpose was seen)"

filters=(order:: memory:: full:: transfer:: futures:: interop:: threads::eight checks::elementwise checks::order checks::create
    checks::cast matmul::edges)
adapters=(lavapipe swiftshader)
skipped=(--skip stress:: --skip large::)
if [ "$full" != 0 ]; then
    filters=('')
    adapters+=(all)
    skipped=()
fi
for adapter in "${adapters[@]}"; do
    for filter in "${filters[@]}"; do
        # SwiftShader has no kernel cache on disk: its variants wait for --full.
        case "$full$adapter$filter" in 0swiftshader*::?*) continue ;; esac
        "$suite" "$adapter::$filter" ${skipped[@]+"${skipped[@]}"} >>"$temp/log" || {
            grep -A20 '^failures:' "$temp/log" || tail -30 "$temp/log"
            echo "layers: $adapter::$filter failed"
            exit 1
        }
    done
done
awk '/^test result: / { passed += $4 } END { printf "layers: %d trials\n", passed; exit passed == 0 }' "$temp/log"
for adapter in lavapipe swiftshader; do
    case " $required " in *" $adapter "*) ;; *) continue ;; esac
    if ! grep -q "^test $adapter::" "$temp/log"; then
        echo "layers: not one trial ran on $adapter, which ORLOP_TEST_REQUIRE names"
        exit 1
    fi
done
# Known messages that are not ours would be left out here, by their exact id with a reason: none.
if grep -n -E 'VUID|UNASSIGNED|SYNC-HAZARD|Validation (Error|Warning|Performance)' "$temp/log"; then
    echo "layers: they have something to say"
    exit 1
fi
echo "layers: they say nothing"
