"""Every object that the operator writes for each example, as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from specmodel.api.benchmark import CellRequest
from specmodel.api.labels import ROLE_SERVE
from specmodel.api.model import SpeculativeModel, SpeculativeModelSpec
from specmodel.domain.candidate import enumerate_candidates
from specmodel.domain.engine import resolve_engine
from specmodel.domain.measurement import workload_digest
from specmodel.domain.preflight import question_of
from specmodel.domain.settings import Settings
from specmodel.manifests.benchmark import benchmark_job, benchmark_run, role, role_binding, run_spec, service_account
from specmodel.manifests.names import model_owner, run_owner, server_name
from specmodel.manifests.preflight import preflight_job
from specmodel.manifests.server import server_deployment, server_service, stable_service
from tests.golden.texts import assert_golden

EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS = Settings()


def models() -> list[Path]:
    found = [path for path in sorted(EXAMPLES.glob("*.yaml")) if "kind: SpeculativeModel" in path.read_text("utf-8")]
    assert found
    return found


def read(path: Path) -> SpeculativeModel:
    documents = [document for document in yaml.safe_load_all(path.read_text("utf-8")) if document]
    wire = next(document for document in documents if document["kind"] == "SpeculativeModel")
    spec = SpeculativeModelSpec.model_validate(wire["spec"])
    return SpeculativeModel(name=wire["metadata"]["name"], namespace="default", uid="the-models-uid", spec=spec)


def rendered(model: SpeculativeModel) -> list[dict[str, Any]]:
    candidates = enumerate_candidates(model, resolve_engine(model, None, SETTINGS), SETTINGS)
    owner = model_owner(model.name, model.uid)
    best = candidates[-1]
    name = server_name(model.name, best, ROLE_SERVE)
    cell = CellRequest(concurrency=1, temperature="0", min_requests=24, max_requests=200)
    spec = run_spec(model, best, server=name, cells=[cell], dataset_digest=None)
    workload = workload_digest(model.spec.workload, None)
    run = benchmark_run(owner, spec, candidate=best.digest, workload=workload)
    by_run = run_owner(run["metadata"]["name"], "the-runs-uid")
    deployments = [
        server_deployment(owner, candidate, role=ROLE_SERVE, replicas=1, settings=SETTINGS) for candidate in candidates
    ]
    return [
        preflight_job(owner, question_of(model, candidates), best, settings=SETTINGS),
        *deployments,
        server_service(owner, best, role=ROLE_SERVE),
        stable_service(owner, best.revision, moved_at="2026-11-30T12:00:00Z"),
        run,
        service_account(by_run, model.name),
        role(by_run, model.name),
        role_binding(by_run, model.name, model.namespace),
        benchmark_job(by_run, spec, model=model.name, namespace=model.namespace, settings=SETTINGS),
    ]


@pytest.mark.parametrize("path", models(), ids=lambda path: path.stem)
def test_what_is_written_for_an_example(path: Path) -> None:
    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - yaml's own
            return True

    documents = rendered(read(path))
    text = yaml.dump_all(documents, Dumper=Plain, sort_keys=False, width=120, allow_unicode=True)
    assert_golden(f"manifests/{path.stem}.yaml", text)
