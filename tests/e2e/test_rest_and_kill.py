"""At rest the operator writes nothing but its Lease; killed anywhere it ends in the same state."""

from __future__ import annotations

import os
import random
import threading
import time
from datetime import UTC, datetime

from tests.e2e.audit import writes_of
from tests.e2e.models import quick_model
from tests.e2e.rehearsal import OPERATOR_NAMESPACE
from tests.e2e.test_lifecycle import ONE_GPU, run_names, settle
from tests.e2e.world import World, shape_of

ACCOUNT = f"system:serviceaccount:{OPERATOR_NAMESPACE}:specmodel"
#: Seconds at rest. `make rest` sets ten minutes.
REST_SECONDS = int(os.environ.get("SPECMODEL_REST_SECONDS", "45"))


def test_at_rest_the_operator_sends_no_write_but_its_lease_renewals(world: World) -> None:
    world.apply(quick_model(hardware=ONE_GPU))
    settle(world)
    time.sleep(15)  # what the last change set in motion (draining, deleted pods) comes to its end
    since = datetime.now(UTC)
    time.sleep(REST_SECONDS)
    written = writes_of(ACCOUNT, since=since)
    assert written.pop("update leases", 0) + written.pop("patch leases", 0) > 0, "not even a Lease renewal was seen"
    assert not written, written


def test_killing_the_operator_ten_times_over_an_install_and_a_rollout_ends_in_the_same_state(
    world: World, operator: World
) -> None:
    chance = random.Random(20261130)  # noqa: S311 - a seed, not a secret
    stop = threading.Event()
    kills = 0

    def kill() -> None:
        nonlocal kills
        while not stop.is_set() and kills < 10:
            stop.wait(chance.uniform(2, 9))
            operator.try_kubectl(
                "delete", "pod", "-l", "app.kubernetes.io/name=specmodel", "--grace-period=0", "--force", "--wait=false"
            )
            kills += 1

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        world.apply(quick_model())
        first = settle(world, seconds=400)
        assert shape_of(first["status"]["serving"]) == (1, 3, "None")
        world.apply(quick_model(limit=176))
        second = settle(world, seconds=400)
        assert shape_of(second["status"]["serving"]) == (2, 3, "None"), second["status"]
        world.wait_until("ten kills are done", lambda: kills >= 10, seconds=120)
    finally:
        stop.set()
        killer.join()
    after = settle(world, seconds=240)
    assert shape_of(after["status"]["serving"]) == (2, 3, "None")
    assert len(run_names(world)) == 4
    world.wait_until(
        "only the serving revision is left",
        lambda: len(world.list("deploy")) == 1 and len(world.list("pods")) == after["status"]["replicas"],
        seconds=90,
    )
