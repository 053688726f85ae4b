#!/usr/bin/env bash
# Every check of the project, from a clean checkout: scripts/test.sh [--full]
#
#   --full               sets ORLOP_TEST_FULL=1: the long versions of the tests; benches/peers, and the library for
#                        Windows and macOS, must compile (scripts/targets.sh); the CPU device's tests run on other
#                        processors, by QEMU (scripts/processors.sh)
#   ORLOP_TEST_REQUIRE   adapters on which the device suite must pass and examples run (default: cpu,lavapipe,swiftshader,gl)
#   ORLOP_NO_INSTALL=1   install and download nothing (scripts/adapters.sh, scripts/onnx.sh)
#   ORLOP_NO_MIRI=1      leave Miri out, where there is no nightly toolchain (scripts/miri.sh)
#   ORLOP_NO_BROWSER=1   leave the page of snapshots out, where there is no Chromium (scripts/page.sh)
#   ORLOP_NO_LAYERS=1    leave Vulkan's validation layers out (scripts/layers.sh)
#   ORLOP_NO_MESA=1      leave the newer Mesa out, where it cannot be fetched (scripts/mesa.sh)
#   ORLOP_NO_HARDWARE=1  leave compilers of hardware out, where Mesa has none without a GPU (scripts/hardware.sh)
#   ORLOP_NO_OLDEST=1    leave the oldest Rust out, where it cannot be installed (scripts/oldest.sh)
#   ORLOP_NO_FUZZ=1      leave the fuzzer out (scripts/fuzz.sh)
#
# Stops at the first stage that fails. The last line is always "N passed, M failed"; M is 0 only when all is
# green (a stage that fails without a failed test, such as clippy, counts as one).
set -euo pipefail

case "${1:-}" in
    '') ;;
    --full) export ORLOP_TEST_FULL=1 ;;
    -h | --help) sed -n '2,18s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
    *) echo "usage: scripts/test.sh [--full]" >&2 && exit 2 ;;
esac

cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
export CARGO_TERM_COLOR=never CARGO_TERM_PROGRESS_WHEN=never NO_COLOR=1
export ORLOP_TEST_REQUIRE="${ORLOP_TEST_REQUIRE-cpu,lavapipe,swiftshader,gl}"

temp=$(mktemp -d "${TMPDIR:-/tmp}/orlop-test.XXXXXX")
trap 'rm -rf "$temp"' EXIT
suite_log="${CARGO_TARGET_DIR:-target}/suite.log"
mkdir -p "${suite_log%/*}"
rm -f "$suite_log"

# --- reading what the tests print ------------------------------------------------------------------------

# Sums the "test result:" lines of the files: "passed failed ignored". Miri's seeds run side by side, so that one's may
# stand within another's.
results() {
    awk '/test result: / {
            for (i = 2; i <= NF; i++) {
                if ($i ~ /^passed/) passed += $(i - 1)
                if ($i ~ /^failed/) failed += $(i - 1)
                if ($i ~ /^ignored/) ignored += $(i - 1)
            }
        }
        END { printf "%d %d %d\n", passed, failed, ignored }' "$@"
}

# Trials of the suite per adapter: lines "adapter passed failed ignored". A trial is "test lavapipe::matmul::edges
# ... ok"; its verdict may stand on a later line when something else printed in between.
trials() {
    awk 'function count(verdict) {
            if (!(adapter in seen)) { seen[adapter] = 1; order[++adapters] = adapter }
            n[adapter, verdict]++
            adapter = ""
        }
        /^test result: / { next }
        /^test .* \.\.\. / || /^test .* \.\.\.$/ {
            name = substr($0, 6)
            sub(/^\[[^]]*\] /, "", name)
            adapter = index(name, "::") ? substr(name, 1, index(name, "::") - 1) : "(none)"
        }
        adapter != "" && /(^|[^A-Za-z])ok$/ { count("passed"); next }
        adapter != "" && /(^|[^A-Za-z])FAILED$/ { count("failed"); next }
        adapter != "" && /(^|[^A-Za-z])ignored(,.*)?$/ { count("ignored"); next }
        END {
            for (i = 1; i <= adapters; i++) {
                a = order[i]
                printf "%s %d %d %d\n", a, n[a, "passed"], n[a, "failed"], n[a, "ignored"]
            }
        }' "$1"
}

# --- stages ----------------------------------------------------------------------------------------------

stage_format() {
    local workspace
    for workspace in . benches/peers fuzz tests/miri; do
        cargo fmt --check --manifest-path "$workspace/Cargo.toml"
    done
}

# One profile (release, where overflows panic) and all features for all that runs; clippy, check and doc share the metadata
# of the dev profile.
built=(--profile checked --all-features --locked)

stage_lints() {
    cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
    cargo clippy --locked --no-default-features --lib -- -D warnings
    # What `cargo test` alone builds.
    cargo check --locked --tests --examples
}

# Without burn, which takes 18 CPU-minutes.
stage_peers() {
    cargo check --manifest-path benches/peers/Cargo.toml --locked --no-default-features --bins
}

stage_shaders() {
    cargo test "${built[@]}" --test shaders | tee "$temp/shaders"
    some_passed "$temp/shaders"
}

stage_docs() {
    cargo test "${built[@]}" --doc
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --all-features --locked
}

# Everything in tests/ that no other stage runs, by its name in the folder.
stage_tests() {
    local path name targets=()
    for path in tests/*.rs tests/*/main.rs; do
        [ -e "$path" ] || continue
        name=${path#tests/}
        name=${name%/main.rs}
        name=${name%.rs}
        case "$name" in shaders | suite) continue ;; esac
        targets+=(--test "$name")
    done
    cargo test "${built[@]}" --no-fail-fast --lib ${targets[@]+"${targets[@]}"}
}

stage_suite() {
    local status=0
    cargo test "${built[@]}" --test suite | tee "$suite_log" || status=$?
    some_passed "$suite_log" || status=1
    if [ "$(results "$suite_log")" != "$(trials "$suite_log" | awk '{ p += $2; f += $3; i += $4 } END { printf "%d %d %d\n", p, f, i }')" ]; then
        echo "the suite's trials and its result line do not agree: see $suite_log"
        status=1
    fi
    local adapter
    for adapter in $(tr ',' ' ' <<<"$ORLOP_TEST_REQUIRE"); do
        if ! trials "$suite_log" | awk -v a="$adapter" '$1 == a && $2 > 0 { ok = 1 } END { exit !ok }'; then
            echo "no trial passed on the required adapter $adapter"
            status=1
        fi
    done
    return "$status"
}

stage_page() { ORLOP_PAGES_ARE_NEW=1 scripts/page.sh; }

stage_model() { scripts/model.sh; }

stage_layers() { scripts/layers.sh; }

stage_mesa() { scripts/mesa.sh; }

stage_hardware() { scripts/hardware.sh; }

stage_miri() { scripts/miri.sh; }

stage_oldest() { scripts/oldest.sh; }

stage_targets() { scripts/targets.sh; }

stage_processors() { scripts/processors.sh; }

stage_fuzz() { scripts/fuzz.sh 30; }

# On an adapter that is required, since the others need not be there.
stage_examples() {
    local device
    case " $(tr ',' ' ' <<<"$ORLOP_TEST_REQUIRE") " in
        *' lavapipe '* | *' swiftshader '* | *' gl '*) device=soft:0 ;;
        *' gpu'*) device=gpu ;;
        *) device=cpu ;;
    esac
    cargo run "${built[@]}" --example devices
    cargo run "${built[@]}" --example matmul -- --size 256
    cargo run "${built[@]}" --example matmul -- --size 256 --device "$device" --json >"$temp/matmul.json"
    cat "$temp/matmul.json"
    check_json "$temp/matmul.json"
    if [ "$device" = cpu ]; then
        echo "tune: not run (ORLOP_TEST_REQUIRE names no adapter with kernels)"
        return
    fi
    local tune=(cargo run "${built[@]}" --example tune -- --device "$device" --sizes 64 --rounds 1)
    "${tune[@]}" --margin -1000 --out "$temp/table.toml"
    grep -q '^kernel = ' "$temp/table.toml"
    # What it wrote, it reads.
    "${tune[@]}" --batches 1 --base "$temp/table.toml" >/dev/null
}

# A test binary that runs nothing proves nothing.
some_passed() {
    local passed
    read -r passed _ < <(results "$1")
    [ "$passed" -gt 0 ] || { echo "not one test passed"; return 1; }
}

# One JSON object with all the keys of the example, and an error within its bound.
check_json() {
    if python3 -c 'import json' 2>/dev/null; then
        python3 -c '
import json, sys
report = json.load(open(sys.argv[1]))
keys = "device adapter backend m k n dtype seconds gflops error error_bound memory".split()
missing = [key for key in keys if key not in report]
if missing:
    sys.exit("matmul --json: missing " + ", ".join(missing))
if [report["m"], report["k"], report["n"]] != [256, 256, 256]:
    sys.exit("matmul --json: not the size that was asked for")
if not (report["seconds"] > 0 and report["gflops"] > 0):
    sys.exit("matmul --json: no time or speed")
if not 0 <= report["error"] <= report["error_bound"]:
    sys.exit("matmul --json: error above error_bound")
' "$1"
        return
    fi
    local key
    for key in device adapter backend m k n dtype seconds gflops error error_bound memory; do
        grep -q "\"$key\" *:" "$1" || { echo "matmul --json: missing $key"; return 1; }
    done
    # NaN and null are no numbers, so not within the bound either.
    awk -v error="$(json_number error "$1")" -v bound="$(json_number error_bound "$1")" \
        'BEGIN { exit !(error != "" && bound != "" && error + 0 >= 0 && error + 0 <= bound + 0) }' \
        || { echo "matmul --json: error above error_bound"; return 1; }
}

json_number() { tr -d '\n' <"$2" | sed -n "s/.*\"$1\" *: *\(-\{0,1\}[0-9][-+.eE0-9]*\).*/\1/p"; }

# --- running them ----------------------------------------------------------------------------------------

stages=0

run_stage() { # name function
    local started=$SECONDS status failed
    stages=$((stages + 1))
    printf '\n=== %s\n' "$1"
    # A plain subshell, not the condition of an if: there errexit would be off.
    set +e
    (set -e && "$2") | tee "$temp/stage$stages.log"
    status=${PIPESTATUS[0]}
    set -e
    read -r _ failed _ < <(results "$temp/stage$stages.log")
    [ "$failed" -eq 0 ] || status=1 # whatever the exit code said
    printf '%s\t%d\n' "$1" $((SECONDS - started)) >>"$temp/times"
    if [ "$status" -ne 0 ]; then
        summary "$1"
        exit 1
    fi
}

summary() { # the name of the stage that failed, or nothing
    local passed failed ignored
    read -r passed failed ignored < <(results "$temp"/stage*.log)
    if [ -s "$suite_log" ]; then
        printf '\n%-16s %8s %8s %8s\n' adapter passed failed ignored
        trials "$suite_log" | while read -r line; do
            # shellcheck disable=SC2086  # four words
            printf '%-16s %8d %8d %8d\n' $line
        done
    fi
    printf '\n%-16s %8s\n' stage minutes
    LC_ALL=C awk -F '\t' '{ printf "%-16s %8.2f\n", $1, $2 / 60; all += $2 } END { printf "%-16s %8.2f\n", "all", all / 60 }' \
        "$temp/times"
    echo
    [ "$ignored" -eq 0 ] || echo "$ignored ignored"
    grep -h ': not run (' "$temp"/stage*.log || true
    if [ -n "$1" ]; then
        echo "FAILED in stage: $1"
        [ "$failed" -gt 0 ] || failed=1
    fi
    echo "$passed passed, $failed failed"
}

printf '=== adapters\n'
started=$SECONDS
if [ "${ORLOP_NO_INSTALL:-}" != 1 ]; then
    # Not in rustup's minimal profile.
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
    cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
fi
# shellcheck source=scripts/adapters.sh
source scripts/adapters.sh
printf '%s\t%d\n' adapters $((SECONDS - started)) >>"$temp/times"

run_stage format stage_format
run_stage lints stage_lints
if [ "${ORLOP_TEST_FULL:-0}" != 0 ]; then
    run_stage peers stage_peers
    run_stage targets stage_targets
    run_stage processors stage_processors
fi
run_stage shaders stage_shaders
run_stage docs stage_docs
run_stage tests stage_tests
run_stage page stage_page
run_stage suite stage_suite
run_stage model stage_model
run_stage layers stage_layers
run_stage mesa stage_mesa
run_stage hardware stage_hardware
run_stage examples stage_examples
run_stage miri stage_miri
run_stage oldest stage_oldest
run_stage fuzz stage_fuzz
summary ''
