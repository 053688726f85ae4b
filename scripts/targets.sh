#!/usr/bin/env bash
# The library compiles for Windows and macOS, whose own code no machine here runs: scripts/targets.sh
#
#   ORLOP_NO_INSTALL=1   install nothing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/targets"
for target in x86_64-pc-windows-gnu aarch64-apple-darwin; do
    if ! rustup target list --installed | grep -qx "$target"; then
        if [ "${ORLOP_NO_INSTALL:-}" = 1 ] || ! rustup target add "$target"; then
            echo "targets: there is no standard library for $target (rustup target add $target)"
            exit 1
        fi
    fi
    RUSTFLAGS="-D warnings" cargo check --locked --all-features --lib --target "$target"
    echo "targets: compiles for $target"
done
