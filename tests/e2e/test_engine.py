"""A real vLLM under the operator: the whole loop, and the ways in which a real drafter is at fault.

What is asserted holds whichever candidate this machine finds faster. `make engine` runs all of it.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.engine import SHORT, WILD, give_volume, lay_out, real_model, take_volume
from tests.e2e.test_lifecycle import settle
from tests.e2e.traffic import start_traffic
from tests.e2e.world import Json, World, condition

pytestmark = pytest.mark.engine
#: A vLLM starts in half a minute to a minute and a half on two cores; a model brings up two or three.
SETTLES = 900
#: GiB of the machine: two servers request 4 each, and the cluster takes about one.
LEAST_MEMORY = 11
Note = Callable[[str, object], None]


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target and its drafters, in a folder of this machine."""
    folder = tmp_path_factory.mktemp("weights") / "pair"
    folder.mkdir()
    lay_out(folder)
    return folder


@pytest.fixture
def claim(world: World, weights: Path) -> Iterator[World]:
    """The scenario's namespace with a claim on that folder. The node must be this machine."""
    if not os.environ.get("SPECMODEL_LOCAL_CLUSTER") or os.environ.get("CLUSTER") == "kind":
        pytest.skip("only the local test cluster's node sees this machine's folders")
    if platform.machine() != "x86_64":
        pytest.skip(f"images/vllm-cpu is made for x86-64, and this machine is {platform.machine()}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    if memory < LEAST_MEMORY:
        pytest.skip(f"two servers of a real vLLM want {LEAST_MEMORY} GiB, and this machine has {memory:.0f}")
    give_volume(world, weights)
    yield world
    take_volume(world)


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """Keeps a figure for the line that `make engine` ends with."""
    return lambda name, value: request.node.user_properties.append((name, value))


def candidates_of(model: Json) -> dict[int, Json]:
    """Return the candidates by their number of speculative tokens."""
    return {each["speculativeTokens"]: each for each in model["status"]["candidates"]}


def cells_of(world: World, candidate: Json) -> list[Json]:
    """Return what was measured of a candidate."""
    return [cell for run in candidate["runs"] for cell in world.get("bench", run)["status"]["cells"]]


def is_what_was_decided(model: Json) -> bool:
    """Return whether the candidate that serves is the one that the status says won."""
    status = model["status"]
    return bool(status["serving"]["candidate"] == status["decision"]["candidate"] != "")


def test_a_real_vllm_is_measured_chosen_promoted_without_a_lost_request_and_deleted(claim: World, note: Note) -> None:
    claim.apply(real_model())
    first = settle(claim, "tiny", seconds=SETTLES)
    found = candidates_of(first)
    assert {tokens: each["verdict"] for tokens, each in found.items()} == {0: "Eligible", 3: "Eligible"}
    assert {each["engine"] for each in found.values()} == {"vllm"}
    assert is_what_was_decided(first)
    counted = [cell["acceptance"] for cell in cells_of(claim, found[3])]
    assert len(counted) == 2
    assert all(0 < each["acceptedTokens"] < each["draftTokens"] == 3 * each["drafts"] for each in counted)
    assert 40 <= found[3]["acceptanceRatePercent"] <= 100
    assert all(not cell.get("acceptance") for cell in cells_of(claim, found[0]))
    speculates = first["status"]["serving"]["speculativeTokens"] > 0
    assert condition(first, "SpeculationActive")["status"] == str(speculates)
    assert condition(first, "DrafterCompatible")["status"] == "True"

    # What serves leaves: without a drafter if it speculates, else all candidates become others.
    changed = real_model(hardware={"gpuBudget": 2})
    if speculates:
        del changed["spec"]["drafter"]
    else:
        changed["spec"]["engine"]["extraArgs"].append("--seed=7")
    # What serves and what starts share two cores, and vLLM's processes spin for a second after every step.
    traffic = start_traffic(claim, "tiny", "tiny", streams=1, pause=2)
    claim.apply(changed)
    second = settle(claim, "tiny", seconds=SETTLES)
    counts = traffic.finish()
    assert second["status"]["serving"]["revision"] != first["status"]["serving"]["revision"]
    assert is_what_was_decided(second)
    assert counts["failed"] == 0, counts
    assert counts["total"] > 10
    old = first["status"]["serving"]["revision"]
    claim.wait_until(
        "the old revision is gone",
        lambda: not claim.list("pods", "-l", f"specmodel.dev/revision={old}"),
        seconds=120,
    )

    claim.kubectl("delete", "specm", "tiny", "--wait=true", timeout=120)
    claim.wait_until("nothing is left", lambda: not left_behind(claim), seconds=120)
    measured = {run for model in (first, second) for each in model["status"]["candidates"] for run in each["runs"]}
    note("candidates", len(measured))
    note("acceptance", found[3]["acceptanceRatePercent"])
    note("sent", counts["total"])
    note("lost", counts["failed"])


def left_behind(world: World) -> list[str]:
    """Return what the operator made and nobody needs any more."""
    theirs = {"default", "kube-root-ca.crt"}
    kinds = "deploy,rs,pods,jobs,svc,bench,sa,roles,rolebindings,configmaps"
    return [name for each in world.list(kinds) if (name := each["metadata"]["name"]) not in theirs]


@pytest.mark.long
def test_a_real_vllm_that_dies_at_its_first_request_is_a_failed_candidate_with_the_line_that_says_why(
    claim: World, note: Note
) -> None:
    claim.apply(real_model(drafter=WILD))
    model = settle(claim, "tiny", seconds=SETTLES)
    found = candidates_of(model)
    assert found[3]["verdict"] == "Failed"
    # The cause, which the worker printed; not the API server's "See stack trace (above) for the root cause".
    assert "index 100000 is out of bounds" in found[3]["message"], found[3]
    assert model["status"]["serving"]["speculativeTokens"] == 0
    assert is_what_was_decided(model)
    note("candidates", 2)


@pytest.mark.long
def test_a_real_vllm_whose_drafter_drafts_nothing_of_use_is_not_promoted_as_speculation(
    claim: World, note: Note
) -> None:
    claim.apply(real_model(drafter=SHORT))
    model = settle(claim, "tiny", seconds=SETTLES)
    found = candidates_of(model)
    assert found[3]["verdict"] == "Failed"
    assert found[3]["reason"] == "SpeculationInactive"
    assert model["status"]["serving"]["speculativeTokens"] == 0
    active = condition(model, "SpeculationActive")
    assert (active["status"], active["reason"]) == ("False", "SpeculationInactive"), active
    note("candidates", 2)
