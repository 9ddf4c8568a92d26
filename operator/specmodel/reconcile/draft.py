"""A plan in the making, and the steps that every part of it shares: bring a server about, say why it cannot be.

Mutable on purpose and local to one call of `plan`; nothing outlives it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from specmodel.api.labels import RENDERED, ROLE_SERVE
from specmodel.domain.assessment import gpu_budget
from specmodel.domain.candidate import Candidate
from specmodel.domain.observation import Observation, Pod, Server
from specmodel.manifests.difference import first_difference
from specmodel.manifests.names import Owner, model_owner, server_name
from specmodel.manifests.server import rescaled, server_deployment, startup_budget_seconds
from specmodel.reconcile.action import Action, Apply
from specmodel.reconcile.gpus import committed, no_match_in_words, supply_in_words
from specmodel.reconcile.situation import Situation

#: How often to look again while waiting for GPUs: nodes of others change without ringing for this model.
LOOK_FOR_GPUS = timedelta(seconds=30)
#: How soon to ask a pod again that did not answer.
ASK_AGAIN = timedelta(seconds=5)
#: What a pod gets beyond the engine's own startup budget before it counts as too late.
STARTUP_SLACK = timedelta(seconds=30)


@dataclass(slots=True, kw_only=True)
class Draft:
    """A plan in the making: local to one call of `plan`."""

    actions: list[Action] = field(default_factory=list)
    wakes: list[timedelta] = field(default_factory=list)
    waiting: tuple[str, str] | None = None
    doing: tuple[str, str] | None = None
    #: GPUs held, what this plan adds included.
    held: int = 0
    #: Names of the servers that have a part to play.
    parts: frozenset[str] = frozenset()

    def wake(self, after: timedelta | None) -> None:
        """Look again after that long at the latest, but not at once."""
        if after is not None:
            self.wakes.append(max(after, timedelta(seconds=1)))

    def wait(self, reason: str, message: str, wake: timedelta | None = LOOK_FOR_GPUS) -> None:
        """Note what cannot be done now; the first word stands."""
        self.waiting = self.waiting or (reason, message)
        self.wake(wake)

    def do(self, reason: str, message: str) -> None:
        """Note what is going on; the first word stands."""
        self.doing = self.doing or (reason, message)


class Step(Enum):
    """How far bringing one server about has come."""

    BLOCKED = "blocked"
    WRITTEN = "written"
    DONE = "done"


def name_of_server(situation: Situation, candidate: Candidate, role: str) -> str:
    """Return the name of a candidate's server in a role."""
    return server_name(situation.model.name, candidate, role)


def owner_of(situation: Situation) -> Owner:
    """Return the model as the owner of its children."""
    return model_owner(situation.model.name, situation.model.uid)


def find_server(observation: Observation, name: str) -> Server | None:
    """Return the server of that name, or None."""
    return next((server for server in observation.servers if server.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A server as it is wanted, and why."""

    candidate: Candidate
    role: str
    replicas: int
    why: str


def ensure(situation: Situation, draft: Draft, wanted: Wanted) -> Step:
    """Bring one server to its replicas within the budget; return how far that has come."""
    candidate, role, replicas = wanted.candidate, wanted.role, wanted.replicas
    owner = owner_of(situation)
    name = name_of_server(situation, candidate, role)
    server = find_server(situation.observation, name)
    if server is not None and server.is_being_deleted:
        draft.do("Promoting" if role == ROLE_SERVE else "Measuring", f"Waiting for the former {name} to be gone.")
        draft.wake(ASK_AGAIN)
        return Step.BLOCKED
    has = committed(server) if server is not None else 0
    needs = max(0, replicas * candidate.gpus_per_replica - has)
    if needs and draft.held + needs > gpu_budget(situation.model.spec):
        no_budget(situation, draft, candidate, needs)
        return Step.BLOCKED
    manifest = server_deployment(owner, candidate, role=role, replicas=replicas, settings=situation.settings)
    change = (manifest, wanted.why) if server is None else _deployment_change(server, manifest, situation)
    if change is None:
        return Step.DONE
    draft.held += needs
    draft.actions.append(Apply(manifest=change[0], why=change[1]))
    return Step.WRITTEN


def _deployment_change(
    server: Server, manifest: dict[str, Any], situation: Situation
) -> tuple[dict[str, Any], str] | None:
    """Return (manifest, why) of a needed write, or None. A template of another release is left alone."""
    replicas = manifest["spec"]["replicas"]
    if server.rendered == manifest["metadata"]["annotations"][RENDERED]:
        difference = first_difference(manifest, server.deployment)
        if difference is None:
            return None
        return manifest, difference
    if server.replicas == replicas:
        return None
    owner = owner_of(situation)
    return rescaled(
        dict(server.deployment), owner, replicas=replicas
    ), f"replicas: {server.replicas}, wanted {replicas}"


def no_budget(situation: Situation, draft: Draft, candidate: Candidate, needs: int) -> None:
    """Say why GPUs cannot be taken now: the budget is full for good, or is just being given back."""
    budget = gpu_budget(situation.model.spec)
    staying = situation.serving.name if situation.serving is not None else ""
    others = [
        server
        for server in situation.observation.servers
        if committed(server) and server.revision != candidate.revision
    ]
    going = [server.name for server in others if server.is_being_deleted or server.name not in draft.parts]
    giving_back = going or [server.name for server in others if server.name != staying]
    if giving_back or situation.observation.stray_pods:
        names = ", ".join(giving_back) or "pods of a deleted server"
        draft.do("Measuring", f"{candidate.shape}: waiting for {names} to give back GPUs.")
        draft.wake(LOOK_FOR_GPUS)
        return
    draft.wait(
        "BudgetExceeded",
        f"{candidate.shape} needs {needs} more GPUs beside the {draft.held} held, hardware.gpuBudget is {budget}: "
        "raise it or lower serving.replicas.",
    )


def report_pods(situation: Situation, draft: Draft, server: Server, candidate: Candidate) -> None:
    """Say which pods of a server cannot get on, and why; look again at the next deadline.

    What serves has no deadline to become Ready again: it is reported as unavailable, and the kubelet goes on trying.
    """
    now = situation.observation.now
    if server.refused_pods is not None:
        draft.wait("Rejected", refused_message(server, candidate, server.refused_pods))
    for pod in server.pods:
        if not pod.is_active or pod.is_ready:
            continue
        if pod.unschedulable is not None:
            no_gpus(situation, draft, candidate, pod, len([p for p in server.pods if p.unschedulable]))
            continue
        deadline = deadline_of(pod, candidate)
        if deadline is None or server is situation.serving:
            continue
        if now < deadline:
            draft.wake(deadline - now)
            continue
        words = pod.last_words or pod.waiting or "it is not Ready"
        draft.wait(
            "RolloutDeadlineExceeded",
            f"Pod {pod.name} of {candidate.shape} was not Ready in time "
            f"({candidate.placement.startup_timeout_seconds} s, {pod.restarts} restarts): {words}",
            LOOK_FOR_GPUS,
        )


def refused_message(server: Server, candidate: Candidate, words: str) -> str:
    """Return that a server's pods may not be made, with the API server's own words."""
    return f"{candidate.shape}: the API server refuses pods of Deployment {server.name}: {words}"


def deadline_of(pod: Pod, candidate: Candidate) -> datetime | None:
    """Return when a pod must be Ready, or None while no node has taken it: GPUs are waited for without limit."""
    since = pod.started_at or (pod.created_at if pod.node is not None else None)
    if since is None:
        return None
    return since + timedelta(seconds=startup_budget_seconds(candidate)) + STARTUP_SLACK


def no_gpus(situation: Situation, draft: Draft, candidate: Candidate, pod: Pod, pods: int) -> None:
    """Say which GPUs a pod waits for, what is free, and the scheduler's own words."""
    supply = situation.observation.supply
    needs = candidate.gpus_per_replica
    wanted = f"{pods} pods x {needs}" if pods > 1 else str(needs)
    words = f" Scheduler: {pod.unschedulable}" if pod.unschedulable else ""
    if supply.is_known and not supply.nodes:
        draft.wait("NoMatchingGPU", no_match_in_words(situation.observation, candidate) + words)
        return
    offered = supply_in_words(situation.observation)
    draft.wait("WaitingForGPUs", f"{candidate.shape}: {wanted} GPUs wanted on one node; {offered}.{words}")
