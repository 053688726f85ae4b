#!/usr/bin/env bash
# The page of a memory snapshot in a real browser: scripts/page.sh [folder for pictures]
#
# Opens the pages that tests/snapshots.rs leaves (which is run first) in headless Chromium and checks that they drew
# all that is in them, without an error and without the network.
#
#   ORLOP_NO_BROWSER=1   do not run; the only way to pass without Chromium
#   ORLOP_NO_INSTALL=1   install nothing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${ORLOP_NO_BROWSER:-}" = 1 ]; then
    echo "page: not run (ORLOP_NO_BROWSER=1)"
    exit 0
fi
browser() { command -v chromium || command -v chromium-browser || command -v google-chrome; }
if ! browser >/dev/null; then
    # shellcheck source=scripts/apt.sh
    source scripts/apt.sh
    _orlop_apt_install chromium || true
fi
if ! browser >/dev/null; then
    echo "page: there is no Chromium and it could not be installed; ORLOP_NO_BROWSER=1 leaves it out."
    exit 1
fi

target=$(cargo metadata --no-deps --locked --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
pages="$target/tmp"
# scripts/test.sh has just written them.
if [ "${ORLOP_PAGES_ARE_NEW:-}" != 1 ]; then
    cargo test --profile checked --all-features --locked --test snapshots the_page
fi
home=$(mktemp -d "${TMPDIR:-/tmp}/orlop-page.XXXXXX")
trap 'rm -rf "$home"' EXIT
program=$(browser)
open_page() { # arguments, page
    timeout 120 "$program" --headless=new --no-sandbox --disable-gpu --user-data-dir="$home" --hide-scrollbars \
        --proxy-server=127.0.0.1:9 --window-size=1320,1900 --virtual-time-budget=20000 "$@" 2>/dev/null
}
for name in snapshot large bare; do
    page="file://$(realpath "$pages/$name.html")"
    open_page --dump-dom "$page" >"$home/dom" || { echo "page: $program did not open $name"; exit 1; }
    root=$(grep -o '<html[^>]*>' "$home/dom" | head -n 1)
    echo "page: $name: $root"
    attribute() { sed -n "s/.*data-$1=\"\([^\"]*\)\".*/\1/p" <<<"$root"; }
    [ -z "$(attribute error)" ] && [ "$(attribute ready)" = yes ] || { echo "page: $name has an error"; exit 1; }
    [ "$(attribute pieces)" -gt 0 ] || { echo "page: $name shows no chunk"; exit 1; }
    if [ "$name" != bare ]; then
        [ "$(attribute drawn)" = "$(attribute lives)" ] && [ "$(attribute lives)" -gt 1000 ] && [ "$(attribute marks)" -gt 0 ] \
            || { echo "page: $name does not show everything"; exit 1; }
    fi
    [ -z "${1:-}" ] || open_page --screenshot="$1/$name.png" "$page" >/dev/null
done
