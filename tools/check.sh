#!/usr/bin/env bash
# `make check`: generated files are what the generators make, and format, lint, types, import contracts and the promises
# of the repository hold. Runs all of them even when one fails, so that one run names everything there is to mend.
# Results of the tests are written where CHECK_RESULTS says, if it does.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" PYTHONPATH="$PWD/operator"

failed=()
must() { # what, then the command
  local what=$1
  shift
  local started=$SECONDS
  if "$@"; then echo "check: $what: good ($((SECONDS - started))s)"; return; fi
  echo "check: $what: FAILED: $*" >&2
  failed+=("$what")
}

must "generated files" python -m specmodel.crd --check
must "format" ruff format --check --quiet .
must "lint" ruff check --quiet .
must "types" mypy --no-error-summary operator/specmodel images/replay/specmodel_replay tests tools
must "import contracts" lint-imports --no-logo --no-cache
must "promises of the repository" python -m pytest -q tests/repository ${CHECK_RESULTS:+"--junitxml=$CHECK_RESULTS"}

if [ ${#failed[@]} -gt 0 ]; then
  printf 'check: not good: %s' "${failed[0]}" >&2
  if [ ${#failed[@]} -gt 1 ]; then printf ', %s' "${failed[@]:1}" >&2; fi
  printf '\n' >&2
  exit 1
fi
echo "check: all good"
