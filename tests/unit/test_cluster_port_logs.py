"""Logs of engines that ended: which are read, once, and what happens when they may not be."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from specmodel.api import labels
from specmodel.cluster.client import Client
from specmodel.cluster.engine_logs import LINES, EngineLogs
from tests.unit.test_cluster_port_requests import client_of

ENDED = {"containerID": "containerd://1", "exitCode": 1}


def pod(name: str = "agent-1", *, role: str | None = "measure", **status: Any) -> dict[str, Any]:
    own = {labels.ROLE: role} if role else {}
    return {
        "metadata": {"name": name, "namespace": "shop", "uid": f"uid-{name}", "labels": own},
        "status": {"containerStatuses": [{"name": "engine", **status}]},
    }


class Kubelet:
    """Answers every question for a log with the same words, and notes what was asked."""

    def __init__(self, words: str = "ValueError: no", code: int = 200) -> None:
        self.words = words
        self.code = code
        self.asked: list[web.Request] = []

    async def __call__(self, request: web.Request) -> web.Response:
        self.asked.append(request)
        return web.Response(text=self.words, status=self.code)


async def read(client: Client, *pods: dict[str, Any]) -> dict[str, str]:
    return await EngineLogs(client).of(pods)


async def test_the_log_of_an_engine_that_was_started_anew_is_its_former_container_s() -> None:
    kubelet = Kubelet()
    async with client_of(kubelet) as client:
        printed = await read(client, pod(state={"running": {}}, lastState={"terminated": ENDED}))
    assert printed == {"uid-agent-1": "ValueError: no"}
    (asked,) = kubelet.asked
    assert asked.path == "/api/v1/namespaces/shop/pods/agent-1/log"
    assert dict(asked.query) == {
        "container": "engine", "tailLines": str(LINES), "limitBytes": "524288", "previous": "true",
    }  # fmt: skip


async def test_of_a_log_the_line_that_names_the_cause_is_told() -> None:
    kubelet = Kubelet("""\
(Worker pid=8) ERROR 11-30 09:38:35 [multiproc_executor.py:1063] IndexError: index 9 is out of bounds
(APIServer pid=7) ERROR 11-30 09:38:35 [async_llm.py:906] EngineDeadError: EngineCore encountered an issue.
(APIServer pid=7) INFO 11-30 09:38:35 [core_client.py:777] [shutdown] MPClient: complete
""")
    async with client_of(kubelet) as client:
        told = await read(client, pod(state={"terminated": ENDED}))
    assert told == {"uid-agent-1": "IndexError: index 9 is out of bounds"}


async def test_an_engine_that_is_not_started_anew_yet_has_its_own_log() -> None:
    kubelet = Kubelet()
    async with client_of(kubelet) as client:
        await read(client, pod(state={"terminated": ENDED}))
    assert "previous" not in kubelet.asked[0].query


async def test_an_ended_container_is_asked_once_and_a_later_one_anew() -> None:
    kubelet = Kubelet()
    async with client_of(kubelet) as client:
        logs = EngineLogs(client)
        for _ in range(3):
            await logs.of([pod(lastState={"terminated": ENDED})])
        assert len(kubelet.asked) == 1
        await logs.of([pod(lastState={"terminated": {**ENDED, "containerID": "containerd://2"}})])
    assert len(kubelet.asked) == 2


async def test_nobody_asks_for_logs_of_engines_that_run_or_of_pods_that_are_none() -> None:
    kubelet = Kubelet()
    going = pod(lastState={"terminated": ENDED})
    going["metadata"]["deletionTimestamp"] = "2026-11-30T06:00:00Z"
    async with client_of(kubelet) as client:
        job = pod(role=None, state={"terminated": ENDED})
        assert await read(client, pod(state={"running": {}}), job, going, {"metadata": {}}) == {}
    assert kubelet.asked == []


async def test_a_log_that_may_not_be_read_is_none_and_is_asked_for_again() -> None:
    kubelet = Kubelet(code=403)
    async with client_of(kubelet) as client:
        logs = EngineLogs(client)
        assert await logs.of([pod(lastState={"terminated": ENDED})]) == {}
        kubelet.code = 200
        assert await logs.of([pod(lastState={"terminated": ENDED})]) == {"uid-agent-1": "ValueError: no"}
