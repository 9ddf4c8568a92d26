"""Requests to an API server: deadlines, one kind of error, the fence, pages; and what errors mean for a pass."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from specmodel.api.model import SpeculativeModel, SpeculativeModelSpec
from specmodel.cluster.ask import NoAnswerError, ask, read_counters
from specmodel.cluster.client import ApiError, Client, Hooks, Request
from specmodel.cluster.faults import of_write, transient
from specmodel.cluster.observe import observe
from specmodel.cluster.write import Writer
from specmodel.domain.settings import Settings
from specmodel.reconcile.action import Apply, Delete, RefusedError, TransientError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[int]:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await handler(request)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def client_of(handler: Handler, hooks: Hooks | None = None) -> AsyncIterator[Client]:
    async with server(handler) as port:
        configuration = Configuration(host=f"http://127.0.0.1:{port}")
        client = Client(configuration, hooks or Hooks())
        try:
            yield client
        finally:
            await client.close()


def status(code: int, reason: str, message: str, **more: Any) -> Handler:
    async def handler(_request: web.Request) -> web.Response:
        body = {"kind": "Status", "code": code, "reason": reason, "message": message, **more}
        return web.json_response(body, status=code, headers={"Retry-After": "7"} if code == 429 else None)

    return handler


async def test_an_answer_that_does_not_come_ends_at_the_deadline() -> None:
    async def silent(_request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async with client_of(silent) as client:
        with pytest.raises(ApiError, match="no answer") as caught:
            await client.send(Request(method="GET", path="/x", timeout=timedelta(seconds=0.1)))
        assert caught.value.is_unanswered


async def test_a_server_that_is_not_there_is_an_error_like_any_other() -> None:
    client = Client(Configuration(host="http://127.0.0.1:1"), Hooks())
    with pytest.raises(ApiError) as caught:
        await client.send(Request(method="GET", path="/x"))
    await client.close()
    assert caught.value.is_unanswered


async def test_an_answer_that_is_no_json_is_an_error_with_its_words() -> None:
    async def proxy(_request: web.Request) -> web.Response:
        return web.Response(status=502, text="Bad Gateway")

    async with client_of(proxy) as client:
        with pytest.raises(ApiError, match="Bad Gateway"):
            await client.send(Request(method="GET", path="/x"))


async def test_no_write_is_sent_while_the_fence_is_up() -> None:
    seen: list[str] = []

    async def record(request: web.Request) -> web.Response:
        seen.append(request.method)
        return web.json_response({})

    async with client_of(record, Hooks(refuse_writes=lambda: "no Lease")) as client:
        await client.send(Request(method="GET", path="/x"))
        with pytest.raises(ApiError, match="no Lease"):
            await client.send(Request(method="PATCH", path="/x", body={}))
        await client.send_unfenced(Request(method="PUT", path="/lease", body={}))
    assert seen == ["GET", "PUT"]


async def test_a_list_follows_its_pages() -> None:
    async def pages(request: web.Request) -> web.Response:
        token = request.query.get("continue")
        if token is None:
            return web.json_response({"items": [{"n": 1}, "odd"], "metadata": {"continue": "next"}})
        return web.json_response({"items": [{"n": 2}], "metadata": {}})

    async with client_of(pages) as client:
        assert await client.list("Pod", "shop", labels="a=b") == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    ("code", "reason", "message", "meaning"),
    [
        (403, "Forbidden", 'deployments.apps is forbidden: User "x" cannot patch', "Forbidden"),
        (403, "Forbidden", 'admission webhook "policy.example" denied the request: no', "Rejected"),
        (400, "BadRequest", "strict decoding error", "Rejected"),
        (422, "Invalid", 'Deployment.apps "m" is invalid: spec.x', "Rejected"),
        (500, "InternalError", "failed to create typed patch object: field not declared in schema", "Rejected"),
        (409, "Conflict", "modified", None),
        (429, "TooManyRequests", "slow down", None),
        (500, "InternalError", 'failed calling webhook "x": timeout', None),
        (503, "ServiceUnavailable", "starting", None),
        (401, "Unauthorized", "token expired", None),
        (404, "NotFound", 'namespaces "x" not found', None),
    ],
)
async def test_what_a_failed_write_means(code: int, reason: str, message: str, meaning: str | None) -> None:
    async with client_of(status(code, reason, message)) as client:
        with pytest.raises(ApiError) as caught:
            await client.send(Request(method="PATCH", path="/x", body={}))
    error = of_write(caught.value, "Deployment/m")
    assert "Deployment/m" in str(error)
    assert message in str(error)
    if meaning is None:
        assert isinstance(error, TransientError)
    else:
        assert isinstance(error, RefusedError)
        assert error.reason == meaning


async def test_a_namespace_that_is_being_deleted_is_no_refusal_for_good() -> None:
    details = {"causes": [{"reason": "NamespaceTerminating", "message": "gone soon"}]}
    async with client_of(status(403, "Forbidden", "forbidden: being terminated", details=details)) as client:
        with pytest.raises(ApiError) as caught:
            await client.send(Request(method="PATCH", path="/x", body={}))
    assert isinstance(of_write(caught.value, "Service/m"), TransientError)


async def test_the_server_says_when_to_come_back() -> None:
    async with client_of(status(429, "TooManyRequests", "slow down")) as client:
        with pytest.raises(ApiError) as caught:
            await client.send(Request(method="GET", path="/x"))
    assert transient(caught.value, "observe").after == timedelta(seconds=7)


class Store:
    """One object in an API server that keeps what it is sent, except a field that it drops."""

    def __init__(self, *, drops: str = "") -> None:
        self.live: dict[str, Any] | None = None
        self.writes: list[str] = []
        self.drops = drops

    async def __call__(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response(self.live or {}, status=200 if self.live else 404)
        self.writes.append(request.method)
        if request.method == "DELETE":
            sent = await request.json()
            same = self.live is not None and sent["preconditions"]["uid"] == self.live["metadata"]["uid"]
            return web.json_response({}, status=200 if same else 409)
        assert request.headers["Content-Type"] == "application/apply-patch+yaml"
        assert request.query["fieldManager"] == "specmodel-operator"
        sent = json.loads(await request.text())
        data = {key: value for key, value in sent["data"].items() if key != self.drops}
        fields: dict[str, Any] = {"f:data": {f"f:{key}": {} for key in data}}
        entry = {"manager": "specmodel-operator", "operation": "Apply", "fieldsV1": fields}
        metadata = {**sent["metadata"], "uid": "1", "resourceVersion": str(len(self.writes)), "managedFields": [entry]}
        self.live = {**sent, "metadata": metadata, "data": data}
        return web.json_response(self.live)


def config_map(**data: str) -> Apply:
    return Apply(
        manifest={"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}, why="test"
    )


async def test_an_apply_that_changes_nothing_is_not_sent() -> None:
    store = Store()
    async with client_of(store) as client:
        writer = Writer(client)
        assert await writer.apply("shop", config_map(a="1"))
        assert not await writer.apply("shop", config_map(a="1"))
        assert await writer.apply("shop", config_map(a="2"))
    assert store.writes == ["PATCH", "PATCH"]


async def test_a_field_that_the_server_drops_is_sent_once_and_not_on_every_pass() -> None:
    store = Store(drops="unknown")
    async with client_of(store) as client:
        writer = Writer(client)
        for _ in range(5):
            await writer.apply("shop", config_map(a="1", unknown="x"))
        assert store.writes == ["PATCH"]
        assert await writer.apply("shop", config_map(a="2", unknown="x"))


async def test_an_object_that_is_being_deleted_is_not_applied_onto() -> None:
    store = Store()
    async with client_of(store) as client:
        writer = Writer(client)
        await writer.apply("shop", config_map(a="1"))
        assert store.live is not None
        store.live["metadata"]["deletionTimestamp"] = "2026-11-30T06:00:00Z"
        with pytest.raises(TransientError, match="being deleted"):
            await writer.apply("shop", config_map(a="2"))


def owner(uid: str = "u1", name: str = "agent", **more: Any) -> dict[str, Any]:
    return {"kind": "SpeculativeModel", "name": name, "uid": uid, "controller": True, **more}


def service_of(*owners: dict[str, Any], **labels: str) -> dict[str, Any]:
    metadata = {"name": "agent", "ownerReferences": list(owners), "labels": labels}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "data": {}}


@pytest.mark.parametrize(
    ("live", "meaning"),
    [
        (service_of(), "NameTaken: Service/agent is there and was not made by this operator"),
        (service_of(owner("u9", "shop")), "NameTaken: Service/agent is there and belongs to SpeculativeModel shop"),
        (service_of(owner("u9")), "Service/agent is of a former SpeculativeModel of this name"),
        (service_of(owner("u9", controller=False)), "NameTaken"),
        (service_of(owner()), None),
        (service_of(**{"app.kubernetes.io/managed-by": "specmodel-operator"}), None),
    ],
)
async def test_an_object_of_someone_else_is_not_taken_over(live: dict[str, Any], meaning: str | None) -> None:
    store = Store()
    store.live = {**live, "metadata": {**live["metadata"], "uid": "1", "managedFields": []}}
    action = Apply(manifest={**service_of(owner()), "data": {"selector": "mine"}}, why="test")
    async with client_of(store) as client:
        if meaning is None:
            assert await Writer(client).apply("shop", action)
            return
        with pytest.raises((RefusedError, TransientError)) as caught:
            await Writer(client).apply("shop", action)
    reason = f"{caught.value.reason}: " if isinstance(caught.value, RefusedError) else ""
    assert f"{reason}{caught.value}".startswith(meaning)
    assert store.writes == []


async def test_what_someone_else_labels_as_the_models_is_not_seen() -> None:
    def deployment(name: str, **metadata: Any) -> dict[str, Any]:
        labels = {"specmodel.dev/model": "agent", "specmodel.dev/role": "serve"}
        return {"metadata": {"name": name, "labels": labels, **metadata}}

    async def answer(request: web.Request) -> web.Response:
        made = [deployment("of-a-user"), deployment("mine", ownerReferences=[owner()])]
        return web.json_response({"items": made if request.path.endswith("/deployments") else []})

    model = SpeculativeModel(
        name="agent",
        namespace="shop",
        uid="u1",
        spec=SpeculativeModelSpec.model_validate({"model": {"uri": "hf://a/b"}}),
    )
    async with client_of(answer) as client:
        observation = await observe(client, model, Settings())
    assert [one.name for one in observation.servers] == ["mine"]
    assert [name for _, name in observation.objects] == ["mine"]


@pytest.mark.parametrize("uid", ["1", "of an older object"])
async def test_deleting_is_done_when_the_object_is_gone_or_another(uid: str) -> None:
    store = Store()
    async with client_of(store) as client:
        writer = Writer(client)
        await writer.apply("shop", config_map(a="1"))
        await writer.delete("shop", Delete(kind="ConfigMap", name="c", uid=uid, why="test"))


# Asking


class Engine:
    """An engine's endpoints; its counters move when it completes, unless told otherwise."""

    def __init__(self, *, drafts: bool = True, generates: bool = True, code: int = 200) -> None:
        self.generated = 5.0
        self.drafts = 2.0
        self.has_drafts = drafts
        self.generates = generates
        self.code = code

    async def __call__(self, request: web.Request) -> web.Response:
        if request.path == "/metrics":
            return web.Response(
                text='# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total{engine="0",model_name="m"} '
                f'{self.generated}\nvllm:spec_decode_num_drafts_total{{engine="0"}} {self.drafts}\n'
                "vllm:generation_tokens_created 1.7e9\n"
            )
        assert (await request.json())["model"] == "m"
        self.generated += 16 if self.generates else 0
        self.drafts += 4 if self.has_drafts else 0
        return web.json_response({"choices": []}, status=self.code)


async def test_a_pod_that_answers_and_counts_passes() -> None:
    async with server(Engine()) as port:
        await ask("127.0.0.1", "m", expects_speculation=True, port=port)


async def test_without_a_drafter_no_draft_is_expected() -> None:
    async with server(Engine(drafts=False)) as port:
        await ask("127.0.0.1", "m", expects_speculation=False, port=port)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (Engine(drafts=False), "spec_decode_num_drafts_total did not move"),
        (Engine(generates=False), "generation_tokens_total did not move"),
        (Engine(code=404), "answered 404"),
    ],
)
async def test_a_pod_that_does_not_pass_says_what_it_lacks(
    engine: Engine, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specmodel.cluster.ask.COUNTERS_DEADLINE", timedelta(seconds=0.05))
    async with server(engine) as port:
        with pytest.raises(NoAnswerError, match=words):
            await ask("127.0.0.1", "m", expects_speculation=True, port=port)


async def test_a_pod_that_refuses_the_connection_says_so() -> None:
    with pytest.raises(NoAnswerError, match=r"127\.0\.0\.1"):
        await ask("127.0.0.1", "m", expects_speculation=False, port=1)


def test_counters_are_summed_over_engines_and_nonsense_is_nothing() -> None:
    text = (
        'vllm:generation_tokens_total{engine="0"} 3\nvllm:generation_tokens_total{engine="1"} 4.0\n'
        "vllm:generation_tokens_total NaN\nvllm:spec_decode_num_drafts_total 1e2\n"
        "vllm:spec_decode_num_drafts_total -.-\n"
    )
    counters = read_counters(text)
    assert (counters.generated, counters.drafts) == (7.0, 100.0)
