"""What happens to a model over its life: installed, edited, its drafter changed, short of GPUs, deleted."""

from __future__ import annotations

import json

from tests.e2e.models import quick_model
from tests.e2e.traffic import start_traffic
from tests.e2e.world import Json, World, condition, is_settled, shape_of

SETTLES = 240
#: For scenarios that are not about the number of GPUs: half the candidates.
ONE_GPU = {"gpusPerReplica": [1]}


def settle(world: World, name: str = "agent", *, seconds: float = SETTLES) -> Json:
    """Return the model once it is Ready for what was applied."""
    model: Json = world.wait_until(
        f"{name} is Ready", lambda: (m := world.get("specm", name)) and is_settled(m) and m, seconds=seconds
    )
    return model


def run_names(world: World) -> set[str]:
    """Return the names of all BenchmarkRuns."""
    return {run["metadata"]["name"] for run in world.list("bench")}


def test_an_sla_edit_redecides_from_what_was_measured_and_promotes_without_dropping_a_request(world: World) -> None:
    world.apply(quick_model())
    first = settle(world)
    assert shape_of(first["status"]["serving"]) == (1, 3, "None")
    measured = run_names(world)
    traffic = start_traffic(world, "agent", "agent")
    # Within 176 ms one GPU carries one stream and two carry four: GPUs per request/s decide.
    world.apply(quick_model(limit=176))
    second = settle(world)
    counts = traffic.finish()
    assert shape_of(second["status"]["serving"]) == (2, 3, "None"), second["status"]["decision"]
    assert counts["failed"] == 0, counts
    assert counts["total"] > 100
    assert run_names(world) == measured


def test_what_is_applied_again_is_no_difference_and_labels_stay_on_the_model(world: World) -> None:
    model = quick_model(hardware=ONE_GPU)
    model["metadata"]["labels"] = {"argocd.argoproj.io/instance": "shop"}
    model["metadata"]["annotations"] = {"argocd.argoproj.io/tracking-id": "shop:specmodel.dev/SpeculativeModel:x/agent"}
    world.apply(model)
    settle(world)
    assert world.try_kubectl("diff", "-f", "-", input=json.dumps(model)).returncode == 0
    for kind in ("deploy", "svc", "pods", "bench", "rs"):
        for child in world.list(kind):
            assert "argocd" not in json.dumps(child["metadata"].get("labels", {})), child["metadata"]["name"]
            assert "argocd" not in json.dumps(child["metadata"].get("annotations", {})), child["metadata"]["name"]


def test_deleting_a_model_frees_every_gpu_and_leaves_nothing_behind(world: World) -> None:
    world.apply(quick_model(hardware=ONE_GPU))
    settle(world)
    world.kubectl("delete", "specm", "agent", "--wait=true")
    kinds = "deploy,rs,pods,jobs,svc,bench,sa,roles,rolebindings,configmaps"
    theirs = {"default", "kube-root-ca.crt"}

    def is_empty() -> bool:
        return not [o for o in world.list(kinds) if o["metadata"]["name"] not in theirs]

    world.wait_until("nothing is left", is_empty, seconds=90)


def test_a_worse_drafter_is_measured_and_leaves_the_incumbent_serving(world: World) -> None:
    faults = ("example/worse-eagle3=slow:0.4",)
    world.apply(quick_model(faults=faults, hardware=ONE_GPU))
    before = settle(world)["status"]["serving"]
    measured = run_names(world)
    world.apply(quick_model(faults=faults, hardware=ONE_GPU, drafter={"uri": "hf://example/worse-eagle3"}))
    after = settle(world)
    assert run_names(world) > measured
    assert after["status"]["serving"]["revision"] == before["revision"]
    assert after["status"]["decision"]["reason"] == "IncumbentKept"


def test_a_broken_drafter_is_explained_with_the_engines_last_words_and_leaves_the_incumbent_serving(
    world: World,
) -> None:
    faults = ("example/broken-eagle3=die-at-start",)
    world.apply(quick_model(faults=faults, hardware=ONE_GPU))
    before = settle(world)["status"]["serving"]
    world.apply(quick_model(faults=faults, hardware=ONE_GPU, drafter={"uri": "hf://example/broken-eagle3"}))
    after = settle(world)
    assert after["status"]["serving"]["revision"] == before["revision"]
    failed = [c for c in after["status"]["candidates"] if c["verdict"] == "Failed"]
    assert {c["speculativeTokens"] for c in failed} == {3}
    assert all("Error" in c["message"] for c in failed), failed


def test_a_better_drafter_is_promoted(world: World) -> None:
    faults = ("example/better-eagle3=slow:0.16",)
    world.apply(quick_model(faults=faults, hardware=ONE_GPU))
    before = settle(world)["status"]["serving"]
    world.apply(quick_model(faults=faults, hardware=ONE_GPU, drafter={"uri": "hf://example/better-eagle3"}))
    after = settle(world)
    assert after["status"]["serving"]["revision"] != before["revision"]
    assert shape_of(after["status"]["serving"]) == (1, 3, "None")
    reasons = {event["reason"] for event in world.list("events")}
    assert "Promoted" in reasons, reasons


def test_a_challenger_without_gpus_waits_in_words_and_goes_on_by_itself(world: World, scarce_gpus: None) -> None:
    world.apply(quick_model(hardware=ONE_GPU))
    before = settle(world)["status"]["serving"]
    world.apply(quick_model(limit=176))

    def waits() -> bool:
        found = condition(world.get("specm", "agent"), "Progressing")
        return found.get("status") == "False" and found.get("reason") == "WaitingForGPUs"

    world.wait_until("the challenger waits for GPUs", waits, seconds=SETTLES)
    message = condition(world.get("specm", "agent"), "Progressing")["message"]
    assert "2" in message
    assert "1" in message
    assert world.get("specm", "agent")["status"]["serving"]["revision"] == before["revision"]
    assert world.get("specm", "agent")["status"]["serving"]["readyReplicas"] == 1
    world.gpus(4)
    after = settle(world)
    assert shape_of(after["status"]["serving"]) == (2, 3, "None")


def test_scale_suspend_and_recommend_do_what_they_say(world: World) -> None:
    world.apply(quick_model())
    served = settle(world)["status"]["serving"]
    world.kubectl("scale", "specm/agent", "--replicas=2")
    scaled = world.wait_until(
        "two replicas serve",
        lambda: (m := world.get("specm", "agent")) and is_settled(m) and m["status"]["readyReplicas"] == 2 and m,
        seconds=90,
    )
    assert scaled["status"]["serving"]["revision"] == served["revision"]
    # Suspended, a new SLA changes nothing; recommended, it changes the proposal alone.
    world.apply(quick_model(limit=176, suspend=True))
    world.wait_until(
        "the model says that it is suspended",
        lambda: condition(world.get("specm", "agent"), "Progressing").get("reason") == "Suspended",
        seconds=60,
    )
    world.apply(quick_model(limit=176, suspend=False, selection={"mode": "Recommend"}))
    proposed = world.wait_until(
        "the proposal is told",
        lambda: (
            (m := world.get("specm", "agent"))
            and condition(m, "Progressing").get("reason") == "Recommended"
            and m["status"]["observedGeneration"] == m["metadata"]["generation"]
            and m
        ),
        seconds=60,
    )
    assert proposed["status"]["serving"]["revision"] == served["revision"]
    assert "2 GPUs" in proposed["status"]["decision"]["message"]


def test_an_engine_that_dies_at_its_first_request_is_a_failed_candidate_and_the_others_are_judged(world: World) -> None:
    faults = ("example/commerce-eagle3=die-at-first-request",)
    world.apply(quick_model(faults=faults, hardware=ONE_GPU))
    model = settle(world)
    verdicts = {c["speculativeTokens"]: c for c in model["status"]["candidates"]}
    assert verdicts[3]["verdict"] == "Failed"
    assert "EngineDeadError" in verdicts[3]["message"], verdicts[3]
    assert shape_of(model["status"]["serving"]) == (1, 0, "None")


def test_a_drafter_that_does_nothing_is_not_promoted_as_speculation(world: World) -> None:
    faults = ("example/commerce-eagle3=speculation-inactive",)
    world.apply(quick_model(faults=faults, hardware=ONE_GPU))
    model = settle(world)
    verdicts = {c["speculativeTokens"]: c for c in model["status"]["candidates"]}
    assert verdicts[3]["reason"] == "SpeculationInactive"
    assert shape_of(model["status"]["serving"]) == (1, 0, "None")


def test_nobody_within_the_sla_means_the_baseline_serves_and_the_nearest_miss_is_named(world: World) -> None:
    world.apply(quick_model(limit=80, hardware=ONE_GPU))
    model = world.wait_until(
        "the baseline serves",
        lambda: (
            (m := world.get("specm", "agent"))
            and m["status"].get("serving", {}).get("readyReplicas") == 1
            and condition(m, "Available").get("status") == "True"
            and m
        ),
        seconds=SETTLES,
    )
    assert shape_of(model["status"]["serving"]) == (1, 0, "None")
    within = condition(model, "WithinSla")
    assert within["status"] == "False"
    assert "80 ms" in within["message"]
