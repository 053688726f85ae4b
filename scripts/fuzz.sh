#!/usr/bin/env bash
# The allocator under libFuzzer for so many seconds (default 60): scripts/fuzz.sh [SECONDS]
#
# Needs nothing but the stable toolchain and a C++ compiler: coverage is LLVM's own, and there is no memory to
# sanitise (the allocator has no unsafe code). What it finds lies in fuzz/artifacts; to run one again:
#   scripts/fuzz.sh fuzz/artifacts/crash-...
# The corpus grows in the build folder, and the next run begins with it. ORLOP_NO_FUZZ=1 leaves it out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build="${CARGO_TARGET_DIR:-target}/fuzz"
# Of the folder that all scripts are of.
[ "${build#/}" != "$build" ] || build="$PWD/$build"
cd fuzz

if [ "${ORLOP_NO_FUZZ:-}" = 1 ]; then
    echo "fuzz: not run (ORLOP_NO_FUZZ=1)"
    exit 0
fi
export CXX="${CXX:-$(command -v c++ || command -v clang++)}"
if [ -z "$CXX" ]; then
    echo "fuzz: there is no C++ compiler for libFuzzer; ORLOP_NO_FUZZ=1 leaves it out."
    exit 1
fi

what="${1:-60}"
# To libFuzzer that is no limit.
[ "$what" != 0 ] || { echo "fuzz: how many seconds?"; exit 2; }
target="$(rustc -vV | sed -n 's/^host: //p')"
# As cargo-fuzz builds it, without a sanitiser. With a target named, build scripts are not instrumented.
RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1" \
    cargo build --release --locked --quiet --target "$target" --target-dir "$build"
program="$build/$target/release/pool"

mkdir -p artifacts "$build/corpus"
case "$what" in
    *[!0-9]*) cd .. && exec "$program" "$what" ;;
esac
log="$build/log"
status=0
"$program" "$build/corpus" -max_total_time="$what" -max_len=2048 -len_control=20 -timeout=20 -rss_limit_mb=4096 \
    -artifact_prefix=artifacts/ -print_final_stats=1 >"$log" 2>&1 || status=$?
grep -E '^stat::|^#[0-9]+.*DONE' "$log" || true
if [ "$status" -ne 0 ]; then
    tail -40 "$log"
    exit 1
fi
executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
# A fuzzer that runs nothing proves nothing.
[ "${executions:-0}" -gt 1000 ] || { echo "fuzz: only ${executions:-0} executions"; exit 1; }
echo "fuzz: $executions executions in $what seconds, nothing found"
