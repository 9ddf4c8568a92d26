"""One request to the API server: with credentials, a deadline and one kind of error.

`kubernetes.aio` brings configuration, TLS and credentials; its 700 model classes and its discovery are not used. A
request that failed is never sent again here: whoever asked knows whether that makes sense.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.config import load_incluster_config, load_kube_config
from kubernetes.aio.config.config_exception import ConfigException

from specmodel.cluster.kinds import KINDS

JSON = "application/json"
APPLY = "application/apply-patch+yaml"

#: How long one request may take unless said otherwise, and how long connecting may take.
REQUEST_TIMEOUT = timedelta(seconds=30)
CONNECT_TIMEOUT = timedelta(seconds=5)
#: Objects per page of a list.
PAGE = 500


class ApiError(Exception):
    """The API server answered with an error, or did not answer in time (`status` 0)."""

    def __init__(self, status: int, reason: str, message: str, *, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @property
    def is_unanswered(self) -> bool:
        """True when no answer came: whether the request was carried out is not known."""
        return self.status == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is sent."""

    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    body: Mapping[str, Any] | None = None
    content_type: str = JSON
    timeout: timedelta = REQUEST_TIMEOUT


def _allow() -> str | None:
    return None


def _ignore(_method: str, _path: str) -> None:
    return None


@dataclass(slots=True, kw_only=True)
class Hooks:
    """What the process wants to know of and to say about requests."""

    #: Returns why nothing may be written now (no lease, stopping), or None.
    refuse_writes: Callable[[], str | None] = _allow
    #: Called after every answer of the API server that was no error, with method and path.
    on_answer: Callable[[str, str], None] = _ignore
    #: Called after every write that the API server accepted, with verb and kind.
    on_write: Callable[[str, str], None] = _ignore


@dataclass(slots=True)
class Client:
    """A connection to one API server. Open with `connect`, close with `close`."""

    configuration: Configuration
    hooks: Hooks = field(default_factory=Hooks)
    _api: Any = field(init=False)  # untyped

    def __post_init__(self) -> None:
        self._api = ApiClient(self.configuration)
        self._api.user_agent = "specmodel-operator"

    @property
    def server(self) -> str:
        """The API server's URL."""
        return str(self.configuration.host)

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    async def send(self, request: Request) -> dict[str, Any]:
        """Return the answer's JSON object. Raises `ApiError`; a deadline that passes is one with status 0."""
        if request.method != "GET":
            refusal = self.hooks.refuse_writes()
            if refusal is not None:
                raise ApiError(0, "WritesRefused", refusal)
        return await self.send_unfenced(request)

    async def send_unfenced(self, request: Request) -> dict[str, Any]:
        """Send without asking whether this process may write: for the Lease, which decides that. Raises `ApiError`."""
        text = await self._answer(request)
        return _parse(text)

    async def text(self, request: Request) -> str:
        """Return the answer of a page that is no JSON object, as a log is none. Raises `ApiError`."""
        return (await self._answer(request, accept="*/*")).decode(errors="replace")

    async def _answer(self, request: Request, *, accept: str = JSON) -> bytes:
        seconds = request.timeout.total_seconds()
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, CONNECT_TIMEOUT.total_seconds()))
        try:
            async with asyncio.timeout(seconds):
                arguments = await self._api.param_serialize(
                    request.method,
                    request.path,
                    query_params=list(request.query),
                    header_params={"Accept": accept, "Content-Type": request.content_type},
                    body=request.body,
                    auth_settings=["BearerToken"],
                )
                answer = await self._api.call_api(*arguments, _request_timeout=timeout)
                text: bytes = await answer.read()
        except TimeoutError as error:
            raise ApiError(0, "Timeout", f"{request.method} {request.path}: no answer in {seconds:.0f} s") from error
        except (aiohttp.ClientError, OSError, ConfigException, ApiException) as error:
            raise ApiError(0, "Unreachable", f"{request.method} {request.path}: {error}") from error
        if not 200 <= answer.status <= 299:
            raise _error(answer.status, answer.getheader("Retry-After"), _parse(text), request)
        self.hooks.on_answer(request.method, request.path)
        return text

    async def get(self, kind: str, namespace: str | None, name: str) -> dict[str, Any] | None:
        """Return one object, or None when there is none. Raises `ApiError`."""
        try:
            return await self.send(Request(method="GET", path=KINDS[kind].path(namespace, name)))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def pages(
        self, kind: str, namespace: str | None, *, labels: str | None = None, fields: str | None = None
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the objects of a kind page by page, consistent over pages. Raises `ApiError`."""
        token: str | None = None
        while True:
            query = [("limit", str(PAGE))]
            query += [(key, text) for key, text in (("labelSelector", labels), ("fieldSelector", fields)) if text]
            if token:
                query.append(("continue", token))
            answer = await self.send(Request(method="GET", path=KINDS[kind].path(namespace), query=query))
            items = answer.get("items")
            yield [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
            metadata = answer.get("metadata")
            token = metadata.get("continue") if isinstance(metadata, dict) else None
            if not token:
                return

    async def list(
        self, kind: str, namespace: str | None, *, labels: str | None = None, fields: str | None = None
    ) -> list[dict[str, Any]]:
        """Return all objects of a kind that the selectors match. Raises `ApiError`."""
        return [item async for page in self.pages(kind, namespace, labels=labels, fields=fields) for item in page]

    def session(self) -> aiohttp.ClientSession:
        """Return a session to the same server with the same TLS and always fresh credentials, for the watches."""
        configuration = self.configuration

        async def authorize(
            request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            setting = (await configuration.auth_settings()).get("BearerToken")
            if setting is not None and setting["value"]:
                request.headers["Authorization"] = setting["value"]
            return await handler(request)

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._api.rest_client.ssl_context),
            middlewares=(authorize,),
            trust_env=True,
            read_bufsize=2**21,
            headers={"User-Agent": "specmodel-operator"},
            proxy=configuration.proxy,
        )


def _parse(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        return {"message": text[:500].decode(errors="replace")}
    return value if isinstance(value, dict) else {}


def _error(status: int, retry_after: str | None, content: Mapping[str, Any], request: Request) -> ApiError:
    reason = content.get("reason")
    message = content.get("message")
    details = content.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    if isinstance(causes, list) and any(
        isinstance(c, dict) and c.get("reason") == "NamespaceTerminating" for c in causes
    ):
        reason = "NamespaceTerminating"
    after = timedelta(seconds=min(int(retry_after), 300)) if retry_after and retry_after.isdigit() else None
    return ApiError(
        status,
        reason if isinstance(reason, str) and reason else f"HTTP{status}",
        message if isinstance(message, str) and message else f"{request.method} {request.path}: HTTP {status}",
        retry_after=after,
    )


async def connect(hooks: Hooks | None = None) -> Client:
    """Return a client with the Pod's own credentials, or else with those of KUBECONFIG (or ~/.kube/config).

    Raises `ConnectionError` that says where credentials were looked for.
    """
    configuration = Configuration()
    # As every Go client: a certificate that chains to the cluster's own CA is enough. Python 3.13 would also refuse
    # certificates without an Authority Key Identifier, which several distributions issue.
    configuration.disable_strict_ssl_verification = True
    try:
        if "KUBECONFIG" not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            await load_kube_config(client_configuration=configuration, persist_config=False)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError) as error:
        raise ConnectionError(
            f"no credentials for an API server: not in a Pod with a service account, and KUBECONFIG "
            f"({os.environ.get('KUBECONFIG', '~/.kube/config')}) cannot be used: {error}"
        ) from error
    return Client(configuration, hooks or Hooks())
