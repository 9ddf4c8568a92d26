"""The world as a scenario sees it: a cluster reached with kubectl, and waits that end with a reason.

Everything is read from the API server as a user would read it; nothing here knows the operator's code. A wait that
fails prints what the cluster looked like, so that a red test can be read without being run again.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
Json = dict[str, Any]


class KubectlError(RuntimeError):
    """kubectl said no; the message is its own."""


@dataclass(frozen=True, slots=True)
class World:
    """A cluster behind a kubeconfig."""

    kubeconfig: Path
    kubectl_program: str = "kubectl"
    namespace: str = "default"
    environment: dict[str, str] = field(default_factory=dict)

    def within(self, namespace: str) -> World:
        """Return the same cluster seen from another namespace."""
        return World(self.kubeconfig, self.kubectl_program, namespace, self.environment)

    def try_kubectl(
        self, *arguments: str, input: str | None = None, timeout: int = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl and return what it printed and its exit code."""
        return subprocess.run(
            [self.kubectl_program, "--namespace", self.namespace, *arguments],
            input=input,
            text=True,
            capture_output=True,
            timeout=timeout,
            check=False,
            env={**os.environ, **self.environment, "KUBECONFIG": str(self.kubeconfig)},
        )

    def kubectl(self, *arguments: str, input: str | None = None, timeout: int = 60) -> str:
        """Run kubectl and return what it printed; raise KubectlError with its words when it fails."""
        done = self.try_kubectl(*arguments, input=input, timeout=timeout)
        if done.returncode != 0:
            message = f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}"
            raise KubectlError(message)
        return done.stdout

    def apply(self, manifest: str | Json | Path) -> None:
        """Apply a file, a text or an object as a user does."""
        if isinstance(manifest, Path):
            self.kubectl("apply", "-f", str(manifest))
            return
        text = manifest if isinstance(manifest, str) else json.dumps(manifest)
        self.kubectl("apply", "-f", "-", input=text)

    def patch(self, kind: str, name: str, patch: Json, *extra: str) -> None:
        """Merge-patch an object."""
        self.kubectl("patch", kind, name, "--type=merge", "-p", json.dumps(patch), *extra)

    def find(self, kind: str, name: str) -> Json | None:
        """Return an object, or None when it is not there."""
        done = self.try_kubectl("get", kind, name, "-o", "json")
        if done.returncode == 0:
            found: Json = json.loads(done.stdout)
            return found
        if "NotFound" in done.stderr or "not found" in done.stderr:
            return None
        raise KubectlError(done.stderr.strip())

    def get(self, kind: str, name: str) -> Json:
        """Return an object; it must be there."""
        found = self.find(kind, name)
        assert found is not None, f"{kind}/{name} is not there"
        return found

    def list(self, kind: str, *arguments: str) -> list[Json]:
        """Return all objects of a kind, selected by kubectl's own arguments."""
        items: list[Json] = json.loads(self.kubectl("get", kind, *arguments, "-o", "json"))["items"]
        return items

    def wait_until(self, what: str, holds: Callable[[], Any], *, seconds: float, every: float = 1.0) -> Any:
        """Return the first true value of `holds`; fail with the state of the world when the deadline passes."""
        deadline = time.monotonic() + seconds
        last: Exception | None = None
        while time.monotonic() < deadline:
            try:
                value = holds()
            except (AssertionError, KubectlError, KeyError, IndexError) as error:
                value, last = None, error
            if value:
                return value
            time.sleep(every)
        raise AssertionError(f"{what} did not come true within {seconds:.0f} s ({last})\n{self.picture()}")

    def gpus(self, count: int) -> None:
        """Make the local cluster's real node offer this many GPUs; skip where the cluster is not ours to change."""
        program = os.environ.get("SPECMODEL_LOCAL_CLUSTER")
        if not program:
            pytest.skip("only the local test cluster can be given or taken GPUs")
        subprocess.run([*program.split(), "gpus", "set", str(count)], check=True, timeout=60, capture_output=True)

    def picture(self) -> str:
        """Return what a person would look at first: models, runs, pods, Deployments, events, the operator's log."""
        parts = []
        for arguments in (
            ("get", "specm,bench,deploy,svc,pods,jobs", "-o", "wide"),
            ("get", "specm", "-o", "yaml"),
            ("get", "events", "--sort-by=.lastTimestamp"),
            ("--namespace", "specmodel-system", "logs", "-l", "app.kubernetes.io/name=specmodel", "--tail=40"),
        ):
            done = self.try_kubectl(*arguments)
            text = "\n".join(line for line in (done.stdout + done.stderr).splitlines() if len(line) < 600)
            parts.append(f"$ kubectl {' '.join(arguments)}\n{text[-6000:]}")
        return "\n".join(parts)


def condition(thing: Json, kind: str) -> Json:
    """Return a condition of an object by type, or an empty one."""
    for candidate in thing.get("status", {}).get("conditions", []):
        if candidate["type"] == kind:
            found: Json = candidate
            return found
    return {}


def is_settled(thing: Json) -> bool:
    """Return whether a model is Ready for the generation that was applied."""
    ready = condition(thing, "Ready")
    generation = thing["metadata"]["generation"]
    return bool(
        ready.get("status") == "True"
        and thing["status"].get("observedGeneration") == generation
        and ready.get("observedGeneration") == generation
    )


def shape_of(serving: Json) -> tuple[int, int, str]:
    """Return (GPUs per replica, speculative tokens, weights) of `status.serving`."""
    return serving["gpusPerReplica"], serving["speculativeTokens"], serving["weights"]
