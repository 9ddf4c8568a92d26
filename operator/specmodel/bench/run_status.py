"""The one BenchmarkRun at the API server: read it, and patch the three fields of its status that are the Job's.

Plain HTTP: the account may only `get` this object and `patch` its status. `conditions`, `attempts`, `placement` and
`observedGeneration` are the operator's and are never sent. Writes are JSON merge patches with the version that was
read last, so that a run that was deleted and made anew under its name never receives another run's cells.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from pydantic import ValidationError

from specmodel.api.benchmark import BenchmarkRunSpec, Cell, Provenance, RunProgress
from specmodel.api.labels import GROUP, RUN_PLURAL, VERSION

FIELD_MANAGER = "specmodel-benchmark"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANSWER_SECONDS = 15.0
#: How long the API server may be away before the Job gives up and leaves the rest to its next pod.
PATIENCE_SECONDS = 120.0
#: A role that was just made is not known to every API server at once.
FORBIDDEN_PATIENCE_SECONDS = 30.0
_RETRIED = frozenset({401, 408, 429, 500, 502, 503, 504})


class ApiUnavailableError(Exception):
    """The API server cannot be reached or refuses: an infrastructure fault; exit non-zero, the Job tries again."""


class RunGoneError(Exception):
    """The BenchmarkRun was deleted, or another has its name now: stop, there is nowhere to write."""


class InvalidRunError(Exception):
    """The run's spec cannot be acted on. The caller records the outcome InvalidRun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAddress:
    """Where the API server is, and what identifies this process there. The token is read anew for each request."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None

    def token(self) -> str:
        """Return the account's current token, or nothing without a token file."""
        return self.token_file.read_text(encoding="ascii").strip() if self.token_file else ""

    def verification(self) -> ssl.SSLContext | bool:
        """Return how the API server's certificate is checked."""
        return ssl.create_default_context(cafile=str(self.ca_file)) if self.ca_file else True


def open_api_session(address: ApiAddress) -> aiohttp.ClientSession:
    """Return a session that checks the API server's certificate as the address says, without proxy or cookies."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=address.verification()), cookie_jar=aiohttp.DummyCookieJar()
    )


def in_cluster(environment: Mapping[str, str], account: Path = ACCOUNT) -> ApiAddress:
    """Return the address that Kubernetes gives every pod. Raises ApiUnavailableError outside of one."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        message = "KUBERNETES_SERVICE_HOST is not set: run this in a pod, or pass --api-server"
        raise ApiUnavailableError(message)
    shown = f"[{host}]" if ":" in host else host
    return ApiAddress(url=f"https://{shown}:{port}", token_file=account / "token", ca_file=account / "ca.crt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The run as it stands at the API server."""

    uid: str
    spec: BenchmarkRunSpec
    cells: tuple[Cell, ...]
    outcome: str
    provenance: Provenance | None


@dataclass(slots=True, kw_only=True)
class RunStatus:
    """One BenchmarkRun by namespace and name."""

    session: aiohttp.ClientSession
    address: ApiAddress
    namespace: str
    name: str
    patience_seconds: float = PATIENCE_SECONDS
    _uid: str = ""
    _version: str = ""
    #: One write at a time: each needs the version that the one before it left.
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def _url(self) -> str:
        return f"{self.address.url}/apis/{GROUP}/{VERSION}/namespaces/{self.namespace}/{RUN_PLURAL}/{self.name}"

    async def read(self) -> Found:
        """Return the run. Raises RunGoneError, ApiUnavailableError or InvalidRunError."""
        answer = await self._send("GET", self._url, None)
        self._remember(answer)
        status = _mapping(answer.get("status"))
        try:
            spec = BenchmarkRunSpec.model_validate(answer.get("spec"))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            message = f"spec.{where}: {first['msg']}"
            raise InvalidRunError(message) from error
        if (spec.dataset.synthetic is None) == (spec.dataset.prompts is None):
            message = "spec.dataset: set exactly one of synthetic and prompts"
            raise InvalidRunError(message)
        return Found(
            uid=self._uid,
            spec=spec,
            cells=_valid_cells(status.get("cells")),
            outcome=str(_mapping(status.get("progress")).get("outcome", "")),
            provenance=_valid_provenance(status.get("provenance")),
        )

    async def write(
        self,
        *,
        progress: RunProgress,
        cells: Sequence[Cell] | None = None,
        provenance: Provenance | None = None,
        patience_seconds: float | None = None,
    ) -> None:
        """Patch what is given. Raises RunGoneError, or ApiUnavailableError after the patience is used up."""
        status: dict[str, object] = {"progress": _with_nulls(progress)}
        if cells is not None:
            status["cells"] = [cell.to_wire() for cell in cells]
        if provenance is not None:
            status["provenance"] = _with_nulls(provenance)
        async with self._lock:
            for _ in range(20):
                body = {"metadata": {"resourceVersion": self._version}, "status": status}
                answer = await self._send("PATCH", f"{self._url}/status", body, patience_seconds)
                if answer:
                    self._remember(answer)
                    return
                # Someone else, the operator, wrote in between: read, make sure that it is still ours, try again.
                self._remember(await self._send("GET", self._url, None, patience_seconds))
        message = f"BenchmarkRun {self.namespace}/{self.name} changed under each of 20 writes"
        raise ApiUnavailableError(message)

    def _remember(self, answer: Mapping[str, object]) -> None:
        metadata = _mapping(answer.get("metadata"))
        uid = str(metadata.get("uid", ""))
        if self._uid and uid != self._uid:
            message = f"BenchmarkRun {self.namespace}/{self.name} was deleted and made anew"
            raise RunGoneError(message)
        self._uid, self._version = uid, str(metadata.get("resourceVersion", ""))

    async def _send(
        self, method: str, url: str, body: object, patience_seconds: float | None = None
    ) -> dict[str, object]:
        """Return the API server's object, or nothing for a conflict; retry what passes by itself."""
        patience = self.patience_seconds if patience_seconds is None else patience_seconds
        begun = time.monotonic()
        pause = 0.5
        while True:
            try:
                status, answer = await self._once(method, url, body)
                problem = f"HTTP {status}: {_message_of(answer)}"
            except (aiohttp.ClientError, OSError, ValueError) as error:
                status, answer = 0, {}
                problem = f"{type(error).__name__}: {error}"
            allowed = patience
            match status:
                case 200:
                    return answer
                case 409:
                    return {}
                case 404:
                    message = f"BenchmarkRun {self.namespace}/{self.name} is gone"
                    raise RunGoneError(message)
                case 403:
                    allowed = min(patience, FORBIDDEN_PATIENCE_SECONDS)
                case _ if status and status not in _RETRIED:
                    allowed = 0
            if time.monotonic() - begun + pause > allowed:
                message = f"{method} {url}: {problem}"
                raise ApiUnavailableError(message)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 8)

    async def _once(self, method: str, url: str, body: object) -> tuple[int, dict[str, object]]:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json"
        if token := self.address.token():
            headers["Authorization"] = f"Bearer {token}"
        async with self.session.request(
            method,
            url,
            json=body,
            params={"fieldManager": FIELD_MANAGER} if method == "PATCH" else None,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS),
        ) as response:
            answer = await response.json(content_type=None)
            return response.status, _mapping(answer)


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _message_of(answer: Mapping[str, object]) -> str:
    return str(answer.get("message", "no message"))[:500]


def _with_nulls(value: RunProgress | Provenance) -> dict[str, object]:
    """Return the wire form with members that are None as nulls: a merge patch removes those, and keeps absent ones."""
    return value.model_dump(mode="json", by_alias=True)


def _valid_cells(value: object) -> tuple[Cell, ...]:
    """Return the stored cells that can be read; one that cannot is measured anew."""
    cells = []
    for item in value if isinstance(value, list) else []:
        try:
            cells.append(Cell.model_validate(item))
        except ValidationError:
            continue
    return tuple(cells)


def _valid_provenance(value: object) -> Provenance | None:
    try:
        return Provenance.model_validate(value)
    except ValidationError:
        return None
