#!/usr/bin/env bash
# Makes .venv: everything pinned in requirements/dev.txt, each file checked against its hash, and the project itself,
# editable. Nothing happens while the pins and the place are the same; a changed pin changes what is there.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
stamp=$(cat requirements/dev.txt pyproject.toml tools/setup.sh | cksum)
is_in_place() { # made here, and by the Python that is asked for, if one is
  [ "$(sed -n 1p $venv/.made 2>/dev/null)" = "$PWD" ] && { [ -z "${PYTHON:-}" ] || [ "$(sed -n 2p $venv/.made)" = "$PYTHON" ]; }
}
is_current() {
  is_in_place && [ "$(cat $venv/.stamp 2>/dev/null)" = "$stamp" ] && [ -x $venv/bin/specmodel ] && $venv/bin/python -c '' 2>/dev/null
}
if is_current; then exit 0; fi

if [ -e $venv ] && [ ! -w $venv ]; then
  echo "setup: $PWD/$venv belongs to $(stat -c %U $venv) and cannot be written by $(id -un): remove it, or run as its owner" >&2
  exit 1
fi
if command -v flock >/dev/null; then
  exec 9<tools/setup.sh
  flock -n 9 || { echo "setup: waiting for another set-up of $PWD/$venv"; flock -w 600 9; }
  if is_current; then exit 0; fi
fi

rm -f $venv/.stamp
if ! is_in_place || ! $venv/bin/python -m pip --version >/dev/null 2>&1; then
  python=$(tools/find-python.sh)
  echo "setup: creating $venv with $("$python" --version) ($python)"
  "$python" -m venv --clear $venv
  printf '%s\n' "$PWD" "${PYTHON:-}" >$venv/.made
fi

# uv installs in seconds what pip needs half a minute for; it comes by the same pins. Where it cannot reach the index
# (uv does not read pip's configuration), pip does the same.
pip() { $venv/bin/python -m pip --disable-pip-version-check --quiet "$@"; }
pins=$venv/.uv.txt
awk '/^uv==/ { print; inside = 1; next } inside && /^[^ ]/ { exit } inside' requirements/dev.txt >$pins
echo "setup: installing what requirements/dev.txt pins"
pip install --require-hashes --no-deps -r $pins
if ! $venv/bin/uv pip sync --quiet --python $venv/bin/python --require-hashes requirements/dev.txt; then
  echo "setup: uv could not; using pip"
  pip install --require-hashes --no-deps -r requirements/dev.txt
fi
pip install --no-deps --no-build-isolation --no-index --editable .
echo "$stamp" >$venv/.stamp
echo "setup: $venv/bin/specmodel is ready"
