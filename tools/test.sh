#!/usr/bin/env bash
# Everything `make test` promises, in the order that wastes least: the cluster's programs and images (about ten minutes
# the first time, seconds afterwards) are built in the background from the start, the checks and the tests that need no
# cluster run meanwhile. Ends with one line that counts the tests of both runs.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/groups.sh

# A cluster of its own: what `make up` brought up is neither used nor taken down.
export SPECMODEL_CLUSTER="${SPECMODEL_CLUSTER:-test}"
python=$(tools/find-python.sh)
# The image of a real vLLM is made for x86-64; elsewhere its scenario is skipped.
engine=$([ "$(uname -m)" != x86_64 ] || echo vllm-cpu)
results=$(mktemp -d)
build_pid=

finish() {
  local code=$?
  trap '' INT TERM
  trap - EXIT
  stop_group "$current"
  stop_group "$build_pid"
  [ ! -x .venv/bin/python ] || .venv/bin/python tools/summary.py "$code" "$SECONDS" "$results"/*.xml || code=1
  rm -rf "$results"
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

build() {
  local name
  nice "$python" tests/cluster/cluster.py prepare
  nice "$python" tests/cluster/cluster.py build
  for name in operator benchmark replay; do nice "$python" tests/cluster/cluster.py image "$name" >/dev/null; done
  [ -n "$engine" ] || return 0
  until [ -e .venv/.stamp ]; do sleep 1; done # what installs a real vLLM comes with the set-up
  nice "$python" tests/cluster/cluster.py image "$engine" >/dev/null
}
say() { printf '\ntest: %s (%d:%02d)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60)); }

if [ -z "${KUBECONFIG:-}" ]; then
  build > >(trap '' INT TERM; exec sed -u 's/^/[cluster] /') 2>&1 &
  build_pid=$!
fi

say "set-up"
run_group tools/setup.sh
say "checks"
CHECK_RESULTS="$results/0.xml" run_group tools/check.sh
say "tests that need no cluster"
run_group .venv/bin/python -m pytest -q -m "not cluster" --ignore=tests/repository --junitxml="$results/1.xml"

if [ -n "$build_pid" ]; then
  say "waiting for the cluster's programs and images"
  wait "$build_pid" || { echo "test: they could not be built; the [cluster] lines above say why" >&2; exit 1; }
  build_pid=
fi
say "scenarios on a real cluster"
export SPECMODEL_MORE_IMAGES=$engine
run_group tools/with-cluster.sh .venv/bin/python -m pytest -v -m "cluster and not long" --durations=15 \
  --junitxml="$results/2.xml"
