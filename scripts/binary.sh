#!/usr/bin/env bash
# Builds a test as scripts/test.sh does and prints where its program lies: scripts/binary.sh NAME
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo test --profile checked --all-features --locked --test "$1" --no-run --message-format=json-render-diagnostics \
    | sed -n "s/.*\"name\":\"$1\".*\"executable\":\"\([^\"]*\)\".*/\1/p" | tail -1
