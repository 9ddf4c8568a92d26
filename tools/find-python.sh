#!/usr/bin/env bash
# Prints a Python that can make the project's environment: 3.11 or newer, with the venv module. PYTHON names one to use
# and no other. Where there is none, root on Debian or Ubuntu gets the distribution's; anybody else reads what to install.
set -euo pipefail

lowest="3.11"
fits() { "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
complain() { printf 'setup: %s\n' "$1" >&2; shift; [ $# = 0 ] || printf '       %s\n' "$@" >&2; }

describe() {
  local version
  version=$("$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || { echo "$1 does not start"; return; }
  if ! "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then echo "$1 is Python $version"; return; fi
  echo "$1 is Python $version without venv (Debian, Ubuntu: apt-get install python${version%.*}-venv)"
}

find_python() {
  local candidate
  for candidate in python3 python3.14 python3.13 python3.12 python3.11 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[1-4]*/bin/python3; do
    if command -v "$candidate" >/dev/null && fits "$candidate"; then command -v "$candidate"; return 0; fi
  done
  return 1
}

if [ -n "${PYTHON:-}" ]; then
  if command -v "$PYTHON" >/dev/null && fits "$PYTHON"; then command -v "$PYTHON"; exit 0; fi
  complain "PYTHON=$PYTHON cannot be used: $(command -v "$PYTHON" >/dev/null && describe "$PYTHON" || echo "no such program")" \
    "Python $lowest or newer with the venv module is needed."
  exit 1
fi
if find_python; then exit 0; fi

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  complain "no Python $lowest or newer with venv here; installing the distribution's python3 and python3-venv"
  if { apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 python3-venv; } >&2; then
    if find_python; then exit 0; fi
  fi
fi
found=$(command -v python3 >/dev/null && describe python3 || echo "there is no python3")
complain "Python $lowest or newer with the venv module is needed; $found" \
  "Debian 12, Ubuntu 24.04 or newer, as root: apt-get install python3 python3-venv" \
  "Fedora: dnf install python3    macOS: brew install python    anywhere: pyenv install 3.13" \
  "Or name one that you have: make setup PYTHON=/path/to/python3"
exit 1
