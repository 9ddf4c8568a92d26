#!/usr/bin/env bash
# Makes .venv with everything pinned and the project itself in it. Idempotent: nothing happens while the pins are unchanged.
# Needs Python 3.11 or newer; says what is missing and how to get it.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=$(cat requirements/dev.txt pyproject.toml tools/setup.sh | sha256sum | cut -d' ' -f1)
if [ -x .venv/bin/specmodel ] && [ "$(cat .venv/.stamp 2>/dev/null)" = "$stamp" ] && .venv/bin/python -c '' 2>/dev/null; then
  exit 0
fi

fits() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.14 "$HOME"/.pyenv/versions/3.1[1-4]*/bin/python; do
    if [ -n "$candidate" ] && command -v "$candidate" >/dev/null && fits "$candidate"; then echo "$candidate"; return; fi
  done
}
python=$(find_python)
if [ -z "$python" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "setup: no Python 3.11 or newer with venv found; installing Debian's python3 and python3-venv"
  apt-get update -qq && apt-get install -y -qq python3 python3-venv >/dev/null
  python=$(find_python)
fi
if [ -z "$python" ]; then
  echo "setup: Python 3.11 or newer with the venv module is needed and was not found." >&2
  echo "       Install it (Debian, Ubuntu: apt-get install python3 python3-venv) or name one: make setup PYTHON=/path/to/python3" >&2
  exit 1
fi

echo "setup: creating .venv with $("$python" --version) ($python)"
rm -rf .venv
"$python" -m venv .venv
uv=$(grep -A100 '^uv==' requirements/dev.txt | awk 'NR==1{print $1} NR>1 && !/^ /{exit}')
.venv/bin/python -m pip install --quiet --disable-pip-version-check "$uv"
.venv/bin/uv pip sync --quiet --python .venv/bin/python --require-hashes requirements/dev.txt
.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
echo "$stamp" > .venv/.stamp
echo "setup: .venv/bin/specmodel is ready"
