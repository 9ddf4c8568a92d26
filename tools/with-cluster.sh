#!/usr/bin/env bash
# Runs a command on a local test cluster: builds it if need be, brings it up, builds and loads the images, exports what
# the scenarios read (KUBECONFIG, KUBECTL, HELM, SPECMODEL_AUDIT_LOG, SPECMODEL_LOCAL_CLUSTER), and takes it down again
# whatever happens. With KUBECONFIG set it uses that cluster as it is and takes nothing down.
# Usage: with-cluster.sh [--keep] COMMAND [ARGUMENT ...]
set -euo pipefail
cd "$(dirname "$0")/.."

keep=no
if [ "${1:-}" = --keep ]; then keep=yes; shift; fi
if [ -n "${KUBECONFIG:-}" ]; then exec "$@"; fi

cluster() { python3 tests/cluster/cluster.py "$@"; }
finish() { local code=$?; trap - EXIT INT TERM; [ "$keep" = yes ] || cluster down || code=1; exit "$code"; }
trap finish EXIT
trap 'exit 130' INT TERM

cluster prepare
cluster build
cluster up
for image in operator benchmark replay; do cluster image "$image"; done
eval "$(cluster env)"
export SPECMODEL_LOCAL_CLUSTER="python3 $PWD/tests/cluster/cluster.py"
"$@"
