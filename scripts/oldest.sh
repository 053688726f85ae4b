#!/usr/bin/env bash
# The library compiles with the oldest Rust that Cargo.toml promises (`rust-version`): scripts/oldest.sh
# What dependencies say they need is compared by tests/house.rs; features of theirs may need more.
#
#   ORLOP_NO_OLDEST=1    do not run; the only way to pass without that toolchain
#   ORLOP_NO_INSTALL=1   install nothing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${ORLOP_NO_OLDEST:-}" = 1 ]; then
    echo "oldest: not run (ORLOP_NO_OLDEST=1)"
    exit 0
fi
oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
[ -n "$oldest" ] || { echo "oldest: Cargo.toml has no rust-version"; exit 1; }

if ! cargo "+$oldest" --version >/dev/null 2>&1; then
    if [ "${ORLOP_NO_INSTALL:-}" != 1 ]; then
        rustup toolchain install "$oldest" --profile minimal || true
    fi
    if ! cargo "+$oldest" --version >/dev/null 2>&1; then
        echo "oldest: there is no Rust $oldest and it could not be installed (rustup toolchain install $oldest --profile minimal)."
        echo "oldest: ORLOP_NO_OLDEST=1 leaves it out."
        exit 1
    fi
fi

export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/oldest"
cargo "+$oldest" check --locked --all-features --lib
echo "oldest: compiles with Rust $oldest"
