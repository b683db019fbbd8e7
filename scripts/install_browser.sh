#!/bin/sh
# Make sure that a Chromium starts. Never ask for a password.
# Usage: sh scripts/install_browser.sh PYTHON
python=$1

starts() {
    "$python" tests/helpers/browser.py
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

starts && exit
if as_root true 2>/dev/null && command -v apt-get >/dev/null; then
    echo "Installing Chromium with apt-get."
    as_root apt-get update -qq && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null
    starts && exit
fi
echo "Installing Playwright's Chromium."
"$python" -m playwright install chromium
starts
