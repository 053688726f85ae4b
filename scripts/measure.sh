#!/usr/bin/env bash
# Runs the programs that scripts/bundle.sh laid beside it: ./measure.sh DEVICE [STEP]...
#
#   DEVICE        a selector: gpu, gpu:1, lavapipe, cpu
#   STEP          devices, matmul, figures, products, kernels, suite, peers, tune; all that are there but tune without one
#   OUT           where logs go (default: measured, beside this script)
#   LIMIT         seconds that a step may take (default: 1800)
#
# A step that fails does not stop the next; the last lines are a table of steps, and the exit status is 1 if one failed.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
device=${1:-}
if [ -z "$device" ] || [ "${device#-}" != "$device" ]; then
    sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
shift
if [ $# = 0 ]; then
    set -- devices matmul figures products kernels suite
    [ ! -x "$here/peers-matmul" ] || set -- "$@" peers
fi
out=${OUT:-$here/measured}
mkdir -p "$out"

summary=() failed=0
# step NAME COMMAND...: its output is shown and kept.
step() {
    local name=$1 rc from=$SECONDS
    shift
    if [ ! -x "$here/$1" ]; then
        summary+=("$name: not in the bundle") failed=1
        return
    fi
    echo "== $name: $*"
    timeout "${LIMIT:-1800}" "$here/$1" "${@:2}" 2>&1 | tee "$out/$name.log"
    rc=${PIPESTATUS[0]}
    [ "$rc" = 0 ] || failed=1
    summary+=("$name: exit status $rc, $((SECONDS - from)) s")
}

{
    echo "orlop $(cat "$here/commit"), $(date -u +%FT%TZ)"
    uname -srm
    grep -m 1 'model name' /proc/cpuinfo
    # Clocks as found: before, and after below.
    command -v nvidia-smi >/dev/null && nvidia-smi
} 2>&1 | tee "$out/machine.log"

for name in "$@"; do
    case "$name" in
        devices) step devices devices ;;
        matmul) step matmul matmul --device "$device" --size 4096 --repeat 20 ;;
        figures | products | kernels) step "$name" "$name" --device "$device" ;;
        # Trials are named by the class of the adapter.
        suite)
            trials=${device%:0} trials=${trials/:/}
            # Where the suite finds its files and ONNX's cases.
            cache=$out/cache
            if mkdir -p "$cache/orlop" && tar -xzf "$here/onnx.tar.gz" -C "$cache/orlop"; then
                CARGO_MANIFEST_DIR=$here XDG_CACHE_HOME=$cache step suite suite "$trials::"
                if grep -q '^test result: ok\. 0 passed' "$out/suite.log" 2>/dev/null; then
                    summary+=("suite: no trial is named $trials:: (those are cpu, lavapipe, swiftshader, gl, gpu, gpu1, ...)") failed=1
                fi
            else
                summary+=("suite: its files are not in the bundle") failed=1
            fi
            ;;
        peers)
            pytorch=() sees=''
            case "$device" in
                cpu) sees='import torch' ;;
                gpu | gpu:0) sees='import torch; assert torch.cuda.is_available()' ;;
            esac
            if [ -n "$sees" ] && "${ORLOP_PYTHON:-python3}" -c "$sees" 2>/dev/null; then pytorch=(--pytorch); fi
            step peers-matmul peers-matmul --device "$device" "${pytorch[@]}"
            step peers-matmul-f16 peers-matmul --device "$device" --dtype f16 "${pytorch[@]}"
            step peers-first peers-matmul --device "$device" --first
            case "$device" in
                cpu | gpu:[1-9]*) summary+=("peers-kernels: left out, burn cannot be told to take $device") ;;
                *) step peers-kernels peers-kernels --device "$device" ;;
            esac
            ;;
        tune) step tune tune --device "$device" --times --batches 1 --sizes 512,1024,4096 --out "$out/table.toml" ;;
        *) summary+=("$name: no such step") failed=1 ;;
    esac
done

command -v nvidia-smi >/dev/null && nvidia-smi -q -d CLOCK,TEMPERATURE,POWER >"$out/after.log" 2>&1
printf '%s\n' "${summary[@]}" | tee "$out/steps.log"
exit "$failed"
