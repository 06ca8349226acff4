#!/bin/sh
# Get a Chromium for the browser tests: from Debian where we may install, or else from Playwright.
for name in chromium chromium-browser google-chrome; do
  command -v $name >/dev/null && exit
done
[ "$(id -u)" = 0 ] || sudo="sudo -n"
{ $sudo apt-get update && $sudo apt-get install -y chromium && command -v chromium; } >/dev/null 2>&1 && exit
{ $sudo true && "$1" -m playwright install --with-deps chromium; } >/dev/null 2>&1 && exit
"$1" -m playwright install chromium >/dev/null 2>&1
