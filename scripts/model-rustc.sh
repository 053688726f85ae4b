#!/bin/sh
# rustc for scripts/model.sh: cargo calls it for this crate alone, so what it depends on is built once for all tests.
exec "$@" --cfg orlop_model
