"""The health that Argo CD shows, by the Lua of the example, for every object of its test data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ARGOCD = Path(__file__).resolve().parents[2] / "examples" / "argocd"
CASES = yaml.safe_load((ARGOCD / "health_test.yaml").read_text(encoding="utf-8"))["tests"]


def health_of(thing: dict[str, Any]) -> dict[str, str]:
    """Run the kind's Lua as Argo CD does: `obj` is the object, the chunk returns status and message."""
    lua51 = pytest.importorskip("lupa.lua51", reason="lupa, which runs Lua, is not installed")
    config = yaml.safe_load((ARGOCD / "argocd-cm.yaml").read_text(encoding="utf-8"))
    lua = lua51.LuaRuntime(unpack_returned_tuples=True)
    lua.globals()["obj"] = lua.table_from(thing, recursive=True)
    script = config["data"][f"resource.customizations.health.specmodel.dev_{thing['kind']}"]
    return dict(lua.execute(script).items())


@pytest.mark.parametrize("case", CASES, ids=lambda case: Path(case["inputPath"]).stem)
def test_argocd_shows_the_health_that_the_conditions_mean(case: dict[str, Any]) -> None:
    thing = yaml.safe_load((ARGOCD / case["inputPath"]).read_text(encoding="utf-8"))
    assert health_of(thing) == case["healthStatus"]


def test_every_object_of_the_test_data_is_judged() -> None:
    judged = {case["inputPath"] for case in CASES}
    assert judged == {f"testdata/{path.name}" for path in (ARGOCD / "testdata").glob("*.yaml")}
