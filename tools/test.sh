#!/usr/bin/env bash
# Everything `make test` promises, in the order that wastes least: the cold build of Kubernetes (about ten minutes, once)
# starts first and in the background, the checks and the tests that need no cluster run meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."

build_log=$(mktemp)
build_pid=
if [ -z "${KUBECONFIG:-}" ]; then
  (python3 tests/cluster/cluster.py prepare && python3 tests/cluster/cluster.py build) >"$build_log" 2>&1 &
  build_pid=$!
fi
cleanup() { [ -z "$build_pid" ] || kill "$build_pid" 2>/dev/null || true; rm -f "$build_log"; }
trap cleanup EXIT
trap 'exit 130' INT TERM

tools/setup.sh
tools/check.sh
.venv/bin/python -m pytest -q -m "not cluster"

if [ -n "$build_pid" ]; then
  tail -n +1 -f "$build_log" --pid="$build_pid"
  wait "$build_pid" || { echo "test: the cluster's programs could not be built; the lines above say why" >&2; exit 1; }
  build_pid=
fi
tools/with-cluster.sh .venv/bin/python -m pytest -v -m cluster --durations=15
