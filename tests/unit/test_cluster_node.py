"""What a cluster takes of this machine, and that ending one ends nothing else. Nothing here needs root."""

from __future__ import annotations

import ipaddress
import itertools
import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import components, faults, host
from tests.cluster.faults import ClusterError
from tests.cluster.paths import Paths
from tests.cluster.state import SLOTS, Addresses, State

PATHS = Paths("unit-test")


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing, with these words on its command line."""
    command = [sys.executable, "-c", "import time; time.sleep(60)", *words]
    with subprocess.Popen(command, start_new_session=True) as started:
        try:
            yield started
        finally:
            started.kill()


@pytest.mark.parametrize("name", ["", "Dev", "a b", "../etc", "-a", "a-", "a" * 21])
def test_a_name_that_would_not_be_a_plain_folder_is_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="cannot name a cluster"):
        Paths(name)


def test_clusters_take_no_address_of_each_other() -> None:
    networks = [ipaddress.ip_network(each) for slot in range(SLOTS) for each in Addresses(slot).networks]
    assert not [pair for pair in itertools.combinations(networks, 2) if pair[0].overlaps(pair[1])]
    for slot in range(SLOTS):
        addresses = Addresses(slot)
        assert ipaddress.ip_address(addresses.node) in ipaddress.ip_network(addresses.link)
        assert ipaddress.ip_address(addresses.dns) in ipaddress.ip_network(addresses.services)


def test_the_owner_of_a_cluster_is_found_by_its_plan_and_ended_alone() -> None:
    with (
        process("/x/supervisor.py", str(PATHS.plan)) as owner,
        process("/x/supervisor.py", str(Paths("other").plan)) as of_another,
        process("vi", str(PATHS.plan)) as editor,
    ):
        faults.wait_for("the owner", lambda: owner.pid in host.owners(PATHS), seconds=10)
        assert host.owners(PATHS) == [owner.pid]
        host.end_owners(PATHS)
        assert owner.wait(timeout=10) < 0
        assert of_another.poll() is None
        assert editor.poll() is None


def test_only_one_command_at_a_time_changes_a_cluster_and_a_killed_one_holds_nothing() -> None:
    program = "import sys, time; from tests.cluster import host; from tests.cluster.paths import Paths\n"
    program += "with host.alone(Paths('unit-lock')): print('held', flush=True); time.sleep(60)\n"
    repository = str(Path(__file__).resolve().parents[2])
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=repository) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        waiter = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=repository)
        with waiter:
            try:
                time.sleep(0.5)
                assert waiter.poll() is None
                holder.kill()
                assert waiter.stdout is not None
                assert waiter.stdout.readline() == b"held\n"
            finally:
                holder.kill()
                waiter.kill()


def test_a_wait_that_ends_too_late_says_what_for_and_shows_the_log_of_who_was_late(tmp_path: Path) -> None:
    log = tmp_path / "kubelet.log"
    log.write_text("\n".join(f"line {number}" for number in range(100)), encoding="utf-8")
    with pytest.raises(ClusterError) as told:
        faults.wait_for("a Ready node", lambda: None, seconds=0, logs=[log, tmp_path / "none.log"])
    message = str(told.value)
    assert message.startswith("a Ready node: not within 0.0s")
    assert "line 99" in message
    assert "line 50" not in message
    assert "none.log: not there" in message


@pytest.mark.parametrize(("seconds", "told"), [(4.21, "4.2s"), (37.4, "37s"), (220, "3m40s"), (3600, "60m00s")])
def test_durations_are_told_as_a_person_would(seconds: float, told: str) -> None:
    assert faults.duration(seconds) == told


def test_every_file_that_a_component_is_given_is_written_for_it() -> None:
    state = State(kubernetes="1.37.2", slot=3)
    written = components.configuration(PATHS, state, "overlayfs")
    assert tomllib.loads(written["containerd.toml"])["grpc"]["address"] == str(PATHS.socket)
    assert json.loads(written["kubelet.json"])["clusterDNS"] == [state.addresses.dns]
    made = components.components(PATHS, state, lambda name: Path("/programs") / name)
    assert len({each.name for each in made}) == len(made)
    given = {
        word.partition("=")[2] or word for each in made for word in each.command if f"{PATHS.run}/" in word
    } - {str(PATHS.kubeconfig)}  # fmt: skip
    files = {each.removeprefix(f"{PATHS.run}/") for each in given if not each.startswith(f"{PATHS.pki}/")}
    assert files <= set(written)


def test_the_audit_log_tells_every_request_and_no_secret() -> None:
    state = State(kubernetes="1.37.2", slot=0)
    policy = json.loads(components.configuration(PATHS, state, "overlayfs")["audit.json"])
    assert policy["rules"] == [{"level": "Metadata"}]
    made = components.components(PATHS, state, Path)
    assert any(f"--audit-log-path={PATHS.audit_log}" in each.command for each in made)
