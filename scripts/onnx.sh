#!/usr/bin/env bash
# The node tests of ONNX, an outside judge of ops: prints the folder that they are in.
#
# Fetched once, with pip, into ~/.cache/orlop (or XDG_CACHE_HOME): the wheel onnx 1.20.0 from PyPI, of which
# only backend/test/data/node is kept (later than 1.22 it is not there any more).
#
#   ORLOP_NO_INSTALL=1   download nothing: fails when the tests are not there
set -euo pipefail

version=1.20.0
sha256=71177f8fd5c0dd90697bc281f5035f73707bdac83257a5c54d74403a1100ace9
home=~
cache="${XDG_CACHE_HOME:-$home/.cache}/orlop"
folder="$cache/onnx-$version"

say() { printf 'onnx: %s\n' "$*" >&2; }

if [ -d "$folder/node" ]; then
    echo "$folder/node"
    exit
fi
if [ "${ORLOP_NO_INSTALL:-0}" = 1 ]; then
    say "the tests of onnx $version are not in $folder, and ORLOP_NO_INSTALL=1 forbids to download them"
    exit 1
fi
python=$(command -v python3 || true)
if [ -z "$python" ] || ! "$python" -m pip --version >/dev/null 2>&1; then
    say "python3 with pip downloads the wheel, and it is not here; or put the wheel's backend/test/data/node into $folder"
    exit 1
fi
mkdir -p "$cache"
stage=$(mktemp -d "$cache/.onnx.XXXXXX")
trap 'rm -rf "$stage"' EXIT
say "downloading the wheel onnx $version (18 MB)"
# One wheel, whatever Python and system this is: it is only read.
if ! "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --implementation cp \
    --python-version 311 --abi cp311 --platform manylinux_2_27_x86_64 --retries 3 --dest "$stage" "onnx==$version" >&2; then
    say "the wheel onnx==$version cannot be fetched from PyPI"
    exit 1
fi
# A folder is there whole or not at all; another run may have been faster.
"$python" - "$stage" "$sha256" "$folder" <<'END'
import hashlib, pathlib, sys, zipfile
stage, expected, folder = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
(wheel,) = stage.glob("onnx-*.whl")
found = hashlib.sha256(wheel.read_bytes()).hexdigest()
if found != expected:
    sys.exit(f"onnx: {wheel.name} has the hash {found}, not {expected}")
prefix = "onnx/backend/test/data/node/"
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if name.startswith(prefix) and not name.endswith("/"):
            path = stage / "whole" / "node" / name[len(prefix):]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(name))
try:
    (stage / "whole").rename(folder)
except OSError:
    if not (folder / "node").is_dir():
        raise
END
echo "$folder/node"
