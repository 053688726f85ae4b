#!/usr/bin/env bash
# Programs that check and measure a machine that has no Rust: scripts/bundle.sh FOLDER [--peers]
#
#   --peers   those of benches/peers too (burn takes 18 CPU-minutes to build)
#
# For this machine's processor and C library, or newer ones. In FOLDER, `./measure.sh gpu` runs them there, one after another.
set -euo pipefail

case "${1:-}:$#:${2:-}" in
    -*) echo "usage: scripts/bundle.sh FOLDER [--peers]" >&2 && exit 2 ;;
    *:1: | *:2:--peers) ;;
    *) echo "usage: scripts/bundle.sh FOLDER [--peers]" >&2 && exit 2 ;;
esac
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Builds with the arguments given, and copies each program into the folder by its name, after a word.
programs() {
    local word=$1 messages name path
    shift
    messages=$(cargo build --release --locked --message-format=json-render-diagnostics "$@")
    while IFS=$'\t' read -r name path; do
        install -m 755 "$path" "$folder/$word$name"
        # The suite looks at backtraces, which are empty without symbols.
        [ "$name" = suite ] || strip "$folder/$word$name"
    done < <(sed -n 's/.*"target":{[^}]*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*/\1\t\2/p' <<<"$messages")
}

programs '' --all-features --example devices --example matmul --example tune \
    --bench figures --bench products --bench kernels --test suite
if [ "${2:-}" = --peers ]; then
    programs peers- --manifest-path benches/peers/Cargo.toml
fi
# What the suite reads.
cases=$(scripts/onnx.sh)
mkdir -p "$folder/scripts" "$folder/tests"
install -m 755 scripts/onnx.sh "$folder/scripts/onnx.sh"
cp -R tests/files "$folder/tests/"
tar -czf "$folder/onnx.tar.gz" -C "${cases%/*/*}" "$(basename "${cases%/*}")"
install -m 755 scripts/measure.sh "$folder/measure.sh"
git describe --always --dirty >"$folder/commit"
du -h "$folder"/* | sort -h
