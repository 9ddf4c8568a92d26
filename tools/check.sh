#!/usr/bin/env bash
# `make check`: generated files are what the generators make, and format, lint, types and import contracts hold.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" PYTHONPATH="$PWD/operator"

python -m specmodel.crd --check
ruff format --check --quiet . || { echo "check: not formatted: run \`make format\`" >&2; exit 1; }
ruff check --quiet .
mypy --no-error-summary operator/specmodel images/replay/specmodel_replay tests
lint-imports --no-cache >/dev/null || { lint-imports --no-cache; exit 1; }
echo "check: generated files, format, lint, types and import contracts hold"
