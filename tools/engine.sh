#!/usr/bin/env bash
# `make engine`: a real vLLM under the operator, on a local cluster. Ends with one line of figures.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -n "${KUBECONFIG:-}" ]; then
  echo "engine: KUBECONFIG is set, but this needs a local cluster, whose node sees this machine's folders: unset it" >&2
  exit 1
fi
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
code=0
SPECMODEL_MORE_IMAGES=vllm-cpu tools/with-cluster.sh .venv/bin/python -m pytest -v -m engine --durations=5 \
  --junitxml="$results/engine.xml" "$@" || code=$?
.venv/bin/python tools/engine_figures.py "$code" "$SECONDS" "$results/engine.xml"
exit "$code"
