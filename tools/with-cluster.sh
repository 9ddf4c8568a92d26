#!/usr/bin/env bash
# Runs a command on a local test cluster: builds it if need be, brings it up, builds and loads the images, exports what
# the scenarios read (KUBECONFIG, KUBECTL, HELM, SPECMODEL_AUDIT_LOG, SPECMODEL_LOCAL_CLUSTER), and takes it down again
# whatever happens, unless it was up before. With KUBECONFIG set it uses that cluster as it is and takes nothing down.
# SPECMODEL_MORE_IMAGES names images beside the usual three.
# Usage: with-cluster.sh [--keep] COMMAND [ARGUMENT ...]
set -euo pipefail
cd "$(dirname "$0")/.."

keep=no
if [ "${1:-}" = --keep ]; then keep=yes; shift; fi
if [ -n "${KUBECONFIG:-}" ]; then exec "$@"; fi

source tools/groups.sh
python=$PWD/.venv/bin/python
cluster() { "$python" tests/cluster/cluster.py "$@"; }
finish() {
  local code=$?
  trap '' INT TERM
  trap - EXIT
  stop_group "$current"
  if [ "$keep" = no ]; then cluster down || code=1; fi
  exit "$code"
}

if cluster status >/dev/null 2>&1; then
  echo "cluster: it is up already, and is left up afterwards" >&2
  keep=yes
fi
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

run_group cluster prepare
run_group cluster build
run_group cluster up >/dev/null
# shellcheck disable=SC2086 # a list of names
run_group cluster image operator benchmark replay ${SPECMODEL_MORE_IMAGES:-} >/dev/null
settings=$(cluster env)
eval "$settings"
run_group "$@"
