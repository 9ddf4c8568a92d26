"""A cluster in memory with the physics that matter, for simulations: nothing in it knows what the operator intends.

    Deployments make pods, a scheduler places them on nodes with GPUs, engines start (or do not), Services gather
    endpoints a moment late, terminating pods hold their GPUs for their grace, Jobs load what their run names.

It implements the port of `specmodel.reconcile.action`, keeps objects in wire form and reads them with the operator's
own reader. After every action and every second it asserts what must hold at all times (`check`). Time moves only by
`tick`.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

from specmodel.api import labels
from specmodel.api.benchmark import BenchmarkRunSpec, Cell, CellRequest, Metric
from specmodel.api.model import SpeculativeModel, SpeculativeModelStatus
from specmodel.cluster import reading
from specmodel.cluster.port import is_owned_by_model
from specmodel.domain.assessment import gpu_budget
from specmodel.domain.observation import GpuSupply, Observation, Run
from specmodel.domain.preflight import Cause, Reading, Unread
from specmodel.domain.settings import Settings
from specmodel.manifests.benchmark import target_server
from specmodel.reconcile.action import (
    Action,
    Apply,
    Ask,
    Delete,
    Key,
    RefusedError,
    TransientError,
    UnreadableModel,
    WriteRunStatus,
)
from specmodel.reconcile.times import stamp
from tests.support.timings import Timing, cell_of, timing_of

Wire = dict[str, Any]
BEGINNING = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
H100 = "NVIDIA-H100-80GB-HBM3"
GPU = "nvidia.com/gpu"
NAMESPACE = "default"


class KilledError(BaseException):
    """The operator's process ends here: nothing of its memory survives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How an engine behaves, chosen by its command line."""

    start_seconds: int = 20
    #: Ends with this message instead of becoming Ready, again and again.
    dies_at_start: str = ""
    #: Ends with this message once, when it has been loaded for some seconds.
    dies_under_load: str = ""
    never_ready: bool = False
    image_missing: bool = False
    #: Factor on every latency; above 1 is worse.
    slowness: float = 1.0
    accepts: float = 0.355


def healthy(_: list[str]) -> Engine:
    """Every engine starts and serves as measured."""
    return Engine()


def unreachable(_: list[str]) -> str:
    """Return what a preflight Job answers where no hub can be reached."""
    return Reading(target=Unread(cause=Cause.UNREACHABLE, message="no hub in a simulation")).to_json()


@dataclass(slots=True)
class ScriptedCluster:
    """The cluster. Everything public is for scripts and assertions of tests."""

    model: SpeculativeModel | None
    nodes: dict[str, int] = field(default_factory=lambda: {"node-a": 4})
    engine: Callable[[list[str]], Engine] = healthy
    seed: int | None = None
    cell_seconds: int = 10
    settings: Settings = field(default_factory=Settings)
    #: GPUs that other people's pods hold, by node.
    foreign: dict[str, int] = field(default_factory=dict)
    product: str = H100
    #: Labels of every node beside its product's, and its taints.
    node_labels: dict[str, str] = field(default_factory=dict)
    taints: list[Wire] = field(default_factory=list)
    cordoned: bool = False
    may_read_nodes: bool = True
    #: Why the API server refuses every new pod of a Deployment (a quota, ...); empty while it does not.
    refuses_pods: str = ""
    #: What a preflight Job answers, by its arguments; None: it never ends.
    checkpoints: Callable[[list[str]], str | None] = unreachable
    #: Benchmark Jobs that fail from now on without a word.
    jobs_fail: int = 0
    #: Called before each action: may raise KilledError, TransientError or RefusedError.
    before_action: Callable[[Action], None] = lambda _: None
    after_action: Callable[[Action], None] = lambda _: None
    now: datetime = BEGINNING
    objects: dict[tuple[str, str], Wire] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    #: Uids of the preflight Jobs that ran.
    preflights: set[str] = field(default_factory=set)
    status_writes: int = 0
    #: Seconds in which the stable Service had no Ready endpoint although it had one before.
    outage_seconds: int = 0
    allows_outage: bool = False
    _serial: int = 0
    _has_rung: bool = True
    _had_endpoint: bool = False
    _seen: dict[tuple[str, str], object] = field(default_factory=dict)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 - an order, no secret

    # ---- the port

    async def get(self, key: Key) -> SpeculativeModel | UnreadableModel | None:
        """Return the model as stored."""
        return self.model if self.model is not None and self.model.name == key.name else None

    async def observe(self, model: SpeculativeModel) -> Observation:
        """Return a snapshot, read as the operator reads a real cluster; the order of lists is the seed's."""
        kinds = ("Deployment", "Job", labels.RUN_KIND, "Service", "ServiceAccount", "Role", "RoleBinding")
        listed = {kind: self._list(kind) for kind in (*kinds, "Pod", "EndpointSlice")}
        servers, strays = reading.read_servers(listed["Deployment"], listed["Pod"], GPU)
        objects = reading.index(each for kind in kinds for each in listed[kind])
        runs = [reading.read_run(each, listed["Job"], listed["Pod"], GPU) for each in listed[labels.RUN_KIND]]
        return Observation(
            now=self.now,
            servers=servers,
            runs=tuple(sorted((run for run in runs if run is not None), key=lambda run: run.name)),
            preflights=reading.read_preflights(listed["Job"], listed["Pod"], model.uid, GPU),
            service=reading.read_service(objects.get(("Service", model.name)), listed["EndpointSlice"], listed["Pod"]),
            supply=self._supply(),
            stray_pods=strays,
            objects=objects,
        )

    async def apply(self, model: SpeculativeModel, action: Action) -> None:  # noqa: ARG002 - the port's
        """Carry out one action, as the API server would."""
        await self._carry_out(action)

    async def apply_for_run(self, key: Key, action: Action) -> None:  # noqa: ARG002 - the port's
        """Carry out one action of a hand-made run."""
        await self._carry_out(action)

    async def get_run(self, key: Key) -> Run | None:
        """Return a hand-made run."""
        found = self.objects.get((labels.RUN_KIND, key.name))
        if found is None or is_owned_by_model(found):
            return None
        kinds = ("Job", "ServiceAccount", "Role", "RoleBinding")
        flat = [each for kind in kinds for each in self._list(kind)]
        return reading.read_run(found, self._list("Job"), self._list("Pod"), GPU, flat)

    async def write_status(
        self,
        model: SpeculativeModel | UnreadableModel,  # noqa: ARG002 - the port's
        status: SpeculativeModelStatus,
    ) -> bool:
        """Store the status when it differs."""
        assert self.model is not None
        if self.model.status.to_wire() == status.to_wire():
            return False
        self.model = self.model.model_copy(update={"status": status})
        self.status_writes += 1
        return True

    async def post_event(
        self,
        model: SpeculativeModel,  # noqa: ARG002 - the port's
        *,
        reason: str,
        message: str,
        is_warning: bool,
    ) -> None:
        """Keep the event."""
        kind = "Warning" if is_warning else "Normal"
        self.events.append(f"{kind} {reason}: {message}")

    async def _carry_out(self, action: Action) -> None:
        self.before_action(action)
        match action:
            case Apply():
                self._apply(copy.deepcopy(dict(action.manifest)))
            case Delete():
                self._delete(action.kind, action.name, action.uid)
            case Ask():
                self._ask(action)
            case WriteRunStatus():
                self._write_run_status(action)
            case _:
                assert_never(action)
        self._has_rung = True
        self.check()
        self.after_action(action)

    def _apply(self, manifest: Wire) -> None:
        key = (manifest["kind"], manifest["metadata"]["name"])
        live = self.objects.get(key)
        self.written.append(f"apply {key[0]}/{key[1]}")
        if key == ("Service", self._model_name()):
            self._check_selection(manifest)
        if live is None:
            self._create(manifest)
            return
        if live["metadata"].get("deletionTimestamp"):
            raise TransientError(f"{key[0]}/{key[1]} is being deleted", after=timedelta(seconds=2))
        if key[0] == "Deployment":
            assert live["spec"]["template"] == manifest["spec"]["template"], f"{key[1]}: the pod template was changed"
        if key[0] == labels.RUN_KIND:
            assert live["spec"] == manifest["spec"], f"{key[1]}: a run's spec is immutable"
        live["spec"] = _merge(live.get("spec", {}), manifest.get("spec", {}))
        live["metadata"] = _merge(live["metadata"], manifest["metadata"])

    def _create(self, manifest: Wire) -> Wire:
        self._serial += 1
        manifest["metadata"] |= {"uid": f"uid-{self._serial}", "creationTimestamp": stamp(self.now), "generation": 1}
        if manifest["kind"] == "Deployment":
            manifest.setdefault("status", {"observedGeneration": 1})
        self.objects[(manifest["kind"], manifest["metadata"]["name"])] = manifest
        return manifest

    def _delete(self, kind: str, name: str, uid: str) -> None:
        assert kind != labels.RUN_KIND, "a measurement must not be thrown away"
        live = self.objects.get((kind, name))
        self.written.append(f"delete {kind}/{name}")
        if live is None or live["metadata"]["uid"] != uid:
            return
        if kind == "Deployment":
            self._check_departure(live)
        if kind in ("Deployment", "Job"):
            live["metadata"].setdefault("deletionTimestamp", stamp(self.now))
            return
        del self.objects[(kind, name)]

    def _ask(self, action: Ask) -> None:
        pod = self.objects.get(("Pod", action.pod))
        if pod is None or pod["metadata"]["uid"] != action.uid or reading.true_condition(pod, "Ready") is None:
            raise TransientError(f"pod {action.pod} did not answer", after=timedelta(seconds=5))
        self.written.append(f"ask Pod/{action.pod}")
        pod["metadata"].setdefault("annotations", {})[labels.ANSWERED] = stamp(self.now)

    def _write_run_status(self, action: WriteRunStatus) -> None:
        run = self.objects.get((labels.RUN_KIND, action.run))
        if run is None:
            raise RefusedError("Rejected", f"BenchmarkRun {action.run} is not there")
        self.written.append(f"status BenchmarkRun/{action.run}")
        status = run.setdefault("status", {})
        status["conditions"] = [condition.to_wire() for condition in action.conditions]
        status["attempts"] = action.attempts
        if action.placement is not None:
            status["placement"] = action.placement.to_wire()

    # ---- what scripts do

    def edit(self, model: SpeculativeModel) -> None:
        """Store another spec of the model, as a user's apply does; the status stays."""
        assert self.model is not None
        generation = self.model.generation + 1
        self.model = model.model_copy(update={"generation": generation, "status": self.model.status})
        self._has_rung = True

    def servers(self) -> list[str]:
        """Return the names of all Deployments."""
        return sorted(name for kind, name in self.objects if kind == "Deployment")

    def pods(self) -> list[Wire]:
        """Return all pods, sorted by name."""
        return sorted((o for (kind, _), o in self.objects.items() if kind == "Pod"), key=reading.name_of)

    def kill_pod(self, name: str) -> None:
        """Delete a pod as an eviction does."""
        self._terminate(self.objects[("Pod", name)])
        self._has_rung = True

    def evict_pod(self, name: str) -> None:
        """End a pod as a kubelet under pressure does: it stays, as Failed, and holds nothing."""
        pod = self.objects[("Pod", name)]
        pod["status"]["phase"] = "Failed"
        _set_condition(pod, "Ready", "False")
        self._has_rung = True

    # ---- reading

    def _list(self, kind: str) -> list[Wire]:
        found = [copy.deepcopy(value) for (k, _), value in self.objects.items() if k == kind]
        if self.seed is not None:
            self._random.shuffle(found)
        return found

    def _model_name(self) -> str:
        return self.model.name if self.model is not None else ""

    def _supply(self) -> GpuSupply:
        if not self.may_read_nodes:
            return GpuSupply(is_known=False)
        requested = reading.requests_by_node(self.pods(), GPU)
        nodes = [
            {
                "metadata": {"name": name, "labels": {reading.GPU_PRODUCT: self.product, **self.node_labels}},
                "spec": {"taints": self.taints, "unschedulable": self.cordoned},
                "status": {"allocatable": {GPU: str(gpus)}, "conditions": [{"type": "Ready", "status": "True"}]},
            }
            for name, gpus in self.nodes.items()
        ]
        for name, gpus in self.foreign.items():
            requested[name] = requested.get(name, 0) + gpus
        wanted = set((self.model.spec.hardware.gpu_products if self.model else None) or self.settings.gpu_products)
        model = self.model
        hosts = [node for node in nodes if model is None or reading.can_host(node, model, wanted, GPU)]
        return reading.read_supply(nodes, hosts, requested, GPU)

    # ---- physics

    def tick(self) -> bool:
        """Let a second pass; return whether anything changed that would wake the operator."""
        self.now += timedelta(seconds=1)
        self._endpoints()
        self._collect()
        self._deploy()
        self._schedule()
        self._run_pods()
        self._run_jobs()
        self.check()
        self._count_outage()
        seen = {key: _mark(value) for key, value in self.objects.items()}
        has_rung = self._has_rung or seen != self._seen
        self._has_rung, self._seen = False, seen
        return has_rung

    def _collect(self) -> None:
        """Remove what is gone: pods after their grace, Deployments and Jobs after their pods, children of the model."""
        for pod in self.pods():
            ends = reading.time(pod, "metadata", "deletionTimestamp")
            if ends is not None and self.now >= ends + timedelta(seconds=pod["simulated"]["exit_seconds"]):
                del self.objects[("Pod", reading.name_of(pod))]
        for (kind, name), value in list(self.objects.items()):
            if kind not in ("Deployment", "Job") or not reading.is_terminating(value):
                continue
            mine = self._pods_of(value)
            for pod in mine:
                self._terminate(pod)
            if not mine:
                del self.objects[(kind, name)]
        if self.model is None:
            self._collect_orphans()

    def _collect_orphans(self) -> None:
        for key, value in list(self.objects.items()):
            if key[0] in ("Deployment", "Job"):
                value["metadata"].setdefault("deletionTimestamp", stamp(self.now))
            elif key[0] not in ("Pod", "EndpointSlice"):
                del self.objects[key]

    def _terminate(self, pod: Wire) -> None:
        if reading.is_terminating(pod):
            return
        pod["metadata"]["deletionTimestamp"] = stamp(self.now)
        _set_condition(pod, "Ready", "False")

    def _pods_of(self, owner: Wire) -> list[Wire]:
        uid = owner["metadata"]["uid"]
        return [pod for pod in self.pods() if pod["simulated"]["owner"] == uid]

    def _deploy(self) -> None:
        for (kind, name), deployment in sorted(self.objects.items()):
            if kind != "Deployment" or reading.is_terminating(deployment):
                continue
            live = [pod for pod in self._pods_of(deployment) if _is_active(pod)]
            wanted = deployment["spec"]["replicas"]
            missing = max(0, wanted - len(live))
            for _ in range(0 if self.refuses_pods else missing):
                self._make_pod(name, deployment)
            for pod in sorted(live, key=_least_useful)[: max(0, len(live) - wanted)]:
                self._terminate(pod)
            ready = [pod for pod in self._pods_of(deployment) if reading.true_condition(pod, "Ready") is not None]
            deployment["status"] = {
                "observedGeneration": deployment["metadata"]["generation"],
                "replicas": len(self._pods_of(deployment)),
                "updatedReplicas": len(live),
                "readyReplicas": len(ready),
            }
            if missing and self.refuses_pods:
                words = self.refuses_pods
                _set_condition(deployment, "ReplicaFailure", "True", reason="FailedCreate", message=words)

    def _make_pod(self, name: str, owner: Wire) -> Wire:
        template = copy.deepcopy(owner["spec"]["template"])
        sleep = template["spec"]["containers"][0].get("lifecycle", {}).get("preStop", {}).get("sleep", {})
        pod = {
            "kind": "Pod",
            "metadata": {
                **template["metadata"],
                "name": f"{name}-{self._serial + 1}",
                "ownerReferences": [{"uid": owner["metadata"]["uid"], "controller": True}],
            },
            "spec": template["spec"],
            "status": {"phase": "Pending", "conditions": []},
            "simulated": {"owner": owner["metadata"]["uid"], "exit_seconds": sleep.get("seconds", 0) + 3},
        }
        return self._create(pod)

    def _schedule(self) -> None:
        supply = {node.name: node.free for node in self._all_nodes().nodes}
        for pod in self.pods():
            gpus = reading.gpus_of(pod, GPU)
            if pod["spec"].get("nodeName") or reading.is_terminating(pod):
                continue
            places = sorted((free, name) for name, free in supply.items() if free >= gpus and self._may_host(pod, gpus))
            if not gpus:
                places = [(0, next(iter(sorted(self.nodes)), "node-a"))]
            if not places:
                words = f"0/{len(self.nodes)} nodes are available: {len(self.nodes)} Insufficient {GPU}."
                _set_condition(pod, "PodScheduled", "False", reason="Unschedulable", message=words)
                continue
            node = places[0][1]
            pod["spec"]["nodeName"] = node
            pod["status"]["startTime"] = stamp(self.now)
            _set_condition(pod, "PodScheduled", "True")
            supply[node] = supply.get(node, 0) - gpus

    def _may_host(self, pod: Wire, gpus: int) -> bool:
        if not gpus:
            return True
        terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        products = terms["nodeSelectorTerms"][0]["matchExpressions"][0]["values"]
        return self.product in products

    def _all_nodes(self) -> GpuSupply:
        known, self.may_read_nodes = self.may_read_nodes, True
        supply = self._supply()
        self.may_read_nodes = known
        return supply

    def _run_pods(self) -> None:
        for pod in self.pods():
            if not _is_active(pod) or not pod["spec"].get("nodeName") or not reading.label(pod, labels.ROLE):
                continue
            self._run_engine(pod, self.engine(pod["spec"]["containers"][0]["args"]))

    def _run_engine(self, pod: Wire, engine: Engine) -> None:
        simulated, status = pod["simulated"], pod["status"]
        began = simulated.setdefault("began", self.now)
        age = int((self.now - began).total_seconds())
        container = {"name": "engine", "restartCount": simulated.get("restarts", 0), "imageID": "sha256:engine"}
        status["phase"] = "Pending" if engine.image_missing else "Running"
        if engine.image_missing:
            container["state"] = {"waiting": {"reason": "ImagePullBackOff"}}
        elif engine.dies_at_start and age >= 3:
            simulated["restarts"] = simulated.get("restarts", 0) + 1
            simulated["began"] = self.now + timedelta(seconds=10 * 2 ** min(4, simulated["restarts"] - 1))
            simulated["last"] = {"exitCode": 1, "reason": "Error", "message": engine.dies_at_start}
        elif age >= engine.start_seconds and not engine.never_ready and not engine.dies_at_start:
            status["podIP"] = f"10.0.0.{pod['metadata']['uid'].partition('-')[2]}"
            if reading.true_condition(pod, "Ready") is None:
                _set_condition(pod, "Ready", "True")
        if simulated.pop("dies", ""):
            simulated["restarts"] = simulated.get("restarts", 0) + 1
            simulated["began"] = self.now
            simulated["last"] = {"exitCode": 1, "reason": "Error", "message": engine.dies_under_load}
            _set_condition(pod, "Ready", "False")
        container["restartCount"] = simulated.get("restarts", 0)
        if simulated.get("last"):
            container["lastState"] = {"terminated": simulated["last"]}
        status["containerStatuses"] = [container]

    def _endpoints(self) -> None:
        """Services hold what was Ready a second ago; a pod that terminates leaves at once."""
        for (kind, name), service in list(self.objects.items()):
            if kind != "Service":
                continue
            wanted = service["spec"]["selector"]
            held = [
                {"targetRef": {"kind": "Pod", "name": reading.name_of(pod)}, "conditions": {"ready": True}}
                for pod in self.pods()
                if all(reading.label(pod, key) == value for key, value in wanted.items())
                and reading.true_condition(pod, "Ready") is not None
            ]
            self.objects[("EndpointSlice", name)] = {
                "kind": "EndpointSlice",
                "metadata": {"name": name, "labels": {reading.SERVICE_NAME: name}},
                "endpoints": held,
            }
        for kind, name in list(self.objects):
            if kind == "EndpointSlice" and ("Service", name) not in self.objects:
                del self.objects[(kind, name)]

    def endpoints(self, service: str) -> list[str]:
        """Return the pods that a Service sends requests to now."""
        held = self.objects.get(("EndpointSlice", service), {}).get("endpoints", [])
        return [each["targetRef"]["name"] for each in held]

    # ---- benchmark Jobs

    def _run_jobs(self) -> None:
        for (kind, _), job in sorted(self.objects.items()):
            if kind == "Job" and not reading.is_terminating(job) and "conditions" not in job.get("status", {}):
                self._run_job(job)

    def _run_preflight(self, job: Wire) -> None:
        """Two seconds, then the pod's termination message."""
        pods = self._pods_of(job)
        if not pods:
            self._make_pod(reading.name_of(job), job)
            job["simulated"] = {"next": self.now + timedelta(seconds=2)}
            return
        self.check_preflight(job)
        answer = self.checkpoints(job["spec"]["template"]["spec"]["containers"][0]["args"])
        if answer is None or self.now < job["simulated"]["next"]:
            return
        ended = {"exitCode": 0, "reason": "Completed", "message": answer}
        pods[0]["status"]["containerStatuses"] = [{"name": "preflight", "state": {"terminated": ended}}]
        self._end_job(job, "Complete", "CompletionsReached")

    def check_preflight(self, job: Wire) -> None:
        """Assert that a preflight takes no GPU and has no right in the cluster."""
        spec = job["spec"]["template"]["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert "serviceAccountName" not in spec
        assert not any(reading.gpus_of(pod, GPU) for pod in self._pods_of(job))
        self.preflights.add(job["metadata"]["uid"])

    def _run_job(self, job: Wire) -> None:
        if reading.label(job, labels.PREFLIGHT):
            self._run_preflight(job)
            return
        name = job["spec"]["template"]["spec"]["containers"][0]["args"][-1]
        run = self.objects[(labels.RUN_KIND, name)]
        pods = self._pods_of(job)
        if not pods:
            assert ("ServiceAccount", reading.name_of(job)) in self.objects, "the Job has no account"
            self._make_pod(reading.name_of(job), job)
            job["simulated"] = {"next": self.now + timedelta(seconds=self.cell_seconds)}
            return
        if self.jobs_fail:
            self.jobs_fail -= 1
            self._end_job(job, "Failed", "BackoffLimitExceeded")
            return
        if self.now < job["simulated"]["next"]:
            return
        job["simulated"]["next"] = self.now + timedelta(seconds=self.cell_seconds)
        self._measure_cell(job, run)

    def _measure_cell(self, job: Wire, run: Wire) -> None:
        spec = BenchmarkRunSpec.model_validate(run["spec"])
        status = run.setdefault("status", {})
        cells = status.setdefault("cells", [])
        server = target_server(spec)
        ready = self.endpoints(server)
        if not ready:
            self._say(run, "TargetUnreachable", f"{spec.target.url} did not answer")
            self._end_job(job, "Failed", "BackoffLimitExceeded")
            return
        assert len(ready) == 1, f"{len(ready)} pods answer for the measured server"
        pod = self.objects[("Pod", ready[0])]
        arguments = pod["spec"]["containers"][0]["args"]
        engine = self.engine(arguments)
        if engine.dies_under_load and len(cells) >= 1:
            pod["simulated"]["dies"] = "yes"
            self._say(run, "EngineChanged", "the engine's counters were reset")
            self._end_job(job, "Failed", "BackoffLimitExceeded")
            return
        wanted = _next_cell(spec, cells)
        if wanted is not None:
            cells.append(cell_of(wanted, _slowed(timing_of(arguments, wanted.concurrency), engine), engine.accepts))
        if _next_cell(spec, cells) is None:
            status["provenance"] = {"engine": "replay", "engineVersion": "0.25.1"}
            self._say(run, "Complete", "")
            self._end_job(job, "Complete", "CompletionsReached")
            return
        self._say(run, "", "")

    def _say(self, run: Wire, outcome: str, message: str) -> None:
        status = run["status"]
        done, total = len(status["cells"]), len(run["spec"]["cells"])
        status["progress"] = {
            "cell": min(total, done + 1),
            "cells": total,
            "remainingSeconds": (total - done) * self.cell_seconds,
            "outcome": outcome,
            "message": message,
            "updatedAt": stamp(self.now),
        }

    def _end_job(self, job: Wire, kind: str, reason: str) -> None:
        condition = {"type": kind, "status": "True", "reason": reason, "message": ""}
        job.setdefault("status", {})["conditions"] = [condition]
        for pod in self._pods_of(job):
            pod["status"]["phase"] = "Succeeded" if kind == "Complete" else "Failed"

    # ---- what must hold at all times

    def check(self) -> None:
        """Assert the invariants that need no history."""
        if self.model is None:
            return
        self._check_budget()
        service = self.objects.get(("Service", self.model.name))
        if service is None:
            return
        selector = service["spec"]["selector"]
        for (kind, _), job in self.objects.items():
            is_over = reading.is_terminating(job) or "conditions" in job.get("status", {})
            if kind != "Job" or is_over or reading.label(job, labels.PREFLIGHT):
                continue
            run = self.objects[(labels.RUN_KIND, job["spec"]["template"]["spec"]["containers"][0]["args"][-1])]
            on = target_server(BenchmarkRunSpec.model_validate(run["spec"]))
            deployment = self.objects.get(("Deployment", on))
            if deployment is not None:
                is_selected = deployment["spec"]["selector"]["matchLabels"] == selector
                assert not is_selected, f"{on} is selected by the stable Service and benchmarked"

    def _check_budget(self) -> None:
        assert self.model is not None
        budget = gpu_budget(self.model.spec)
        holding = [pod for pod in self.pods() if pod["status"].get("phase") not in ("Succeeded", "Failed")]
        total = sum(reading.gpus_of(pod, GPU) for pod in holding if reading.label(pod, labels.ROLE))
        for (kind, _), deployment in self.objects.items():
            if kind == "Deployment" and not reading.is_terminating(deployment):
                pods = self._pods_of(deployment)
                going = [pod for pod in pods if reading.is_terminating(pod)]
                replaced = min(len(going), len(pods) - len(going))
                total -= sum(reading.gpus_of(pod, GPU) for pod in going[:replaced])
        assert total <= budget, f"{total} GPUs requested, the budget is {budget}"

    def _check_selection(self, manifest: Wire) -> None:
        """Assert that the revision to be selected has its Deployment, and all its pods are Ready and answered."""
        selector = manifest["spec"]["selector"]
        live = self.objects.get(("Service", manifest["metadata"]["name"]))
        if live is not None and live["spec"]["selector"] == selector:
            return
        chosen = [
            deployment
            for (kind, _), deployment in self.objects.items()
            if kind == "Deployment" and deployment["spec"]["selector"]["matchLabels"] == selector
        ]
        assert len(chosen) == 1, "the selector matches no Deployment"
        pods = [pod for pod in self._pods_of(chosen[0]) if _is_active(pod)]
        assert len(pods) == chosen[0]["spec"]["replicas"], "not all pods are there"
        for pod in pods:
            assert reading.true_condition(pod, "Ready") is not None, "traffic moved to a pod that is not Ready"
            assert labels.ANSWERED in pod["metadata"].get("annotations", {}), (
                "traffic moved to a pod that never answered"
            )

    def _check_departure(self, deployment: Wire) -> None:
        """Assert that no request can reach the server to be deleted through the stable Service any more."""
        if self.allows_outage or self.model is None:
            return
        mine = {reading.name_of(pod) for pod in self._pods_of(deployment)}
        held = mine & set(self.endpoints(self.model.name))
        assert not held, f"{reading.name_of(deployment)} is deleted while {held} is in the stable Service"

    def _count_outage(self) -> None:
        if self.model is None:
            return
        has_endpoint = bool(self.endpoints(self.model.name))
        if self._had_endpoint and not has_endpoint:
            self.outage_seconds += 1
        self._had_endpoint = self._had_endpoint or has_endpoint


def _mark(value: Wire) -> object:
    """Return what a watcher would be told of when it changes; the cells of a run count by their number."""
    status = value.get("status", {})
    told = {key: len(item) if key == "cells" else item for key, item in status.items()}
    spec = value.get("spec", {})
    return repr((told, spec.get("replicas"), spec.get("nodeName"), value["metadata"], value.get("endpoints")))


def _is_active(pod: Wire) -> bool:
    return not reading.is_terminating(pod) and pod["status"].get("phase") not in ("Succeeded", "Failed")


def _least_useful(pod: Wire) -> tuple[bool, str]:
    return reading.true_condition(pod, "Ready") is not None, reading.name_of(pod)


def _merge(live: Any, wanted: Any) -> Any:
    """Return the live value with the wanted fields; lists are replaced."""
    if isinstance(live, Mapping) and isinstance(wanted, Mapping):
        return {**live, **{key: _merge(live.get(key), value) for key, value in wanted.items()}}
    return wanted


def _set_condition(value: Wire, kind: str, status: str, *, reason: str = "", message: str = "") -> None:
    conditions = [c for c in value["status"].get("conditions", []) if c["type"] != kind]
    conditions.append({"type": kind, "status": status, "reason": reason, "message": message})
    value["status"]["conditions"] = sorted(conditions, key=lambda c: str(c["type"]))


def _next_cell(spec: BenchmarkRunSpec, cells: list[Wire]) -> CellRequest | None:
    """Return the next cell under the stop rule: a level that fails ends its temperature."""
    done = {(cell["concurrency"], cell["temperature"]) for cell in cells}
    failed = {cell["temperature"]: cell["concurrency"] for cell in reversed(cells) if _violates(spec, cell)}
    for request in sorted(spec.cells, key=lambda cell: (cell.temperature, cell.concurrency)):
        if (request.concurrency, request.temperature) in done:
            continue
        if request.temperature in failed and request.concurrency > failed[request.temperature]:
            continue
        return request
    return None


def _violates(spec: BenchmarkRunSpec, cell: Wire) -> bool:
    read = Cell.model_validate(cell)
    latencies = {Metric.E2E_LATENCY: read.e2e_latency, Metric.TTFT: read.ttft, Metric.TPOT: read.tpot}
    for limit in spec.stop.limits:
        latency = latencies[limit.metric]
        assert latency is not None
        rank = max(0, -(-len(latency.samples) * limit.percentile // 100) - 1)
        if latency.samples[rank] > limit.max_milliseconds * 1000:
            return True
    return False


def _slowed(timing: Timing, engine: Engine) -> Timing:
    return Timing(
        requests_per_second=timing.requests_per_second / engine.slowness,
        p50_milliseconds=timing.p50_milliseconds * engine.slowness,
        p99_milliseconds=timing.p99_milliseconds * engine.slowness,
    )
