#!/usr/bin/env bash
# The library's locks under many schedules (tests/model/schedules.rs): scripts/model.sh [filter]
#
#   ORLOP_TEST_FULL=1   ten times as many schedules
#   ORLOP_TEST_SEED=N   others
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

binary=$(RUSTC_WORKSPACE_WRAPPER="$PWD/scripts/model-rustc.sh" \
    cargo test --profile checked --all-features --locked --lib --no-run --message-format=json-render-diagnostics \
    | sed -n 's/.*"name":"orlop".*"executable":"\([^"]*\)".*/\1/p' | tail -1)
[ -n "$binary" ] || { echo "model: nothing was built"; exit 1; }
# No adapter is looked for: the no-op one is enough, and the same everywhere.
export WGPU_BACKEND=noop WGPU_NOOP_BACKEND=1 SHUTTLE_SILENCE_WARNINGS=1
unset SHUTTLE_RANDOM_SEED
log=$(mktemp "${TMPDIR:-/tmp}/orlop-model.XXXXXX")
trap 'rm -f "$log"' EXIT
for gl in '' 1; do
    export ORLOP_MODEL_GL=$gl
    [ -n "$gl" ] || unset ORLOP_MODEL_GL
    "$binary" "model::${1:-}" | tee "$log"
    # A filter that names nothing proves nothing.
    grep -qE '^test result: ok\. [1-9]' "$log" || { echo "model: not one schedule ran"; exit 1; }
done
