"""Why an engine ended, from what its pod's log holds.

The kubelet keeps the last 2 KB, and only of a container that ended with an error. A real vLLM's last lines are its
shutdown's, often with exit code 0; the cause stands a hundred lines further up. Reading logs is a right that the chart
can leave out: then, as after any refusal, what the kubelet kept must do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from specmodel.api import labels
from specmodel.cluster import reading
from specmodel.cluster.client import ApiError, Client, Request
from specmodel.cluster.kinds import KINDS
from specmodel.domain.last_words import explain
from specmodel.manifests.server import ENGINE_CONTAINER

#: How much of a log's end is read. A dying vLLM prints two to three hundred lines of tracebacks of three processes.
LINES = 500
BYTES = 512 * 1024
#: Of how many containers the words are kept.
KEPT = 200


@dataclass(slots=True)
class EngineLogs:
    """What ended engines' logs say. A container that ended prints no more: it is asked once, its words are kept."""

    client: Client
    _known: dict[str, str] = field(default_factory=dict)

    async def of(self, pods: Iterable[reading.Wire]) -> dict[str, str]:
        """Return why engines ended, in words, by their pods' uid. Never raises: a missing log is none."""
        words: dict[str, str] = {}
        for pod in pods:
            if not reading.label(pod, labels.ROLE) or reading.is_terminating(pod):
                continue
            state = _state(pod)
            ended = reading.ended_state(state)
            container = reading.text(ended, "containerID")
            if not container:
                continue
            if container not in self._known:
                text = await self._read(pod, previous=not reading.mapping(state, "state", "terminated"))
                if not text:
                    continue
                self._remember(container, explain(text))
            words[reading.text(pod, "metadata", "uid")] = self._known[container]
        return words

    async def _read(self, pod: reading.Wire, *, previous: bool) -> str:
        namespace = reading.text(pod, "metadata", "namespace")
        query = [("container", ENGINE_CONTAINER), ("tailLines", str(LINES)), ("limitBytes", str(BYTES))]
        if previous:
            query.append(("previous", "true"))
        path = f"{KINDS['Pod'].path(namespace, reading.name_of(pod))}/log"
        try:
            return await self.client.text(Request(method="GET", path=path, query=query))
        except ApiError:
            return ""

    def _remember(self, container: str, words: str) -> None:
        while len(self._known) >= KEPT:
            self._known.pop(next(iter(self._known)))
        self._known[container] = words


def _state(pod: reading.Wire) -> Mapping[str, object]:
    statuses = reading.items(pod, "status", "containerStatuses")
    return next((each for each in statuses if each.get("name") == ENGINE_CONTAINER), {})
