"""The recommended manifest: deciding by it, on the same measurements, ends with what it recommends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from specmodel.api.model import SpeculativeModel
from specmodel.cli.manifest import read_model
from specmodel.cli.results import read_results
from specmodel.domain.assessment import gpu_budget
from specmodel.domain.candidate import Shape, enumerate_candidates
from specmodel.domain.decision import Decision, decide_model
from specmodel.domain.engine import resolve_engine
from specmodel.domain.settings import Settings
from specmodel.local.advice import recommended

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "h200-2026-11-30"


def decided(path: Path) -> tuple[SpeculativeModel, Decision]:
    """Return a manifest's model and what is decided for it on the recorded measurements."""
    model = read_model(path)
    candidates = enumerate_candidates(model, resolve_engine(model, None, Settings()), Settings())
    return model, decide_model(model, candidates, read_results(RESULTS / "runs", model, candidates).measurements, None)


def test_a_demand_that_fits_the_default_budget_of_all_candidates_still_fits_when_one_is_left(tmp_path: Path) -> None:
    written: dict[str, Any] = yaml.safe_load((RESULTS / "sla-2000.yaml").read_text(encoding="utf-8"))
    del written["spec"]["hardware"]["gpuBudget"]
    written["spec"]["workload"]["demand"] = {"requestsPerSecond": "50"}
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")
    model, decision = decided(tmp_path / "model.yaml")
    assert decision.serve is not None
    assert decision.serve.shape == Shape(gpus_per_replica=1, speculative_tokens=3, weights="FP8")
    assert decision.replicas == 3
    (tmp_path / "recommended.yaml").write_text(recommended(written, model, decision, "two GPUs", []), encoding="utf-8")
    narrowed, again = decided(tmp_path / "recommended.yaml")
    assert again.serve == decision.serve
    assert again.reason in {"LowestCost", "OnlyEligible"}
    assert gpu_budget(narrowed.spec) == gpu_budget(model.spec)
