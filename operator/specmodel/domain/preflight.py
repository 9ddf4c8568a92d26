"""What a preflight found out about a model's checkpoints, and what follows for its candidates. Pure.

    Question ──Job reads──► Reading ──judge──► Judgement: who is refused and why, and what DrafterCompatible says
     (digest)               (facts, or why not)

A reading is kept under the digest of its question, so that nothing is read twice. Facts are judged anew in every pass:
another number of GPUs or another length asks for no other reading. What was measured is evidence, and no theory
refuses it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from specmodel.api.conditions import ConditionStatus
from specmodel.api.model import DrafterMethod, OnIncompatible, SpeculativeModel
from specmodel.domain.candidate import Candidate, digest_of
from specmodel.domain.checkpoint import Checkpoint, CheckpointError, checkpoint_from_value
from specmodel.domain.compatibility import About, Finding, Severity, check_pair
from specmodel.domain.memory import Load, estimate, limits_of, misfit

#: A pod's termination message holds no more bytes.
TEXT_MAXIMUM = 4096
MESSAGE_MAXIMUM = 400
#: Variables of `engine.env` that change where the hub is, or whether it is asked.
HUB_VARIABLES = frozenset(
    {"HF_ENDPOINT", "HF_HUB_OFFLINE"}
    | {name for proxy in ("http_proxy", "https_proxy", "no_proxy") for name in (proxy, proxy.upper())}
)


class Cause(StrEnum):
    """Why a checkpoint could not be read."""

    #: Nobody answered: the engine may still find it, in a cache or by another way.
    UNREACHABLE = "Unreachable"
    #: There is no such repository, revision or folder.
    MISSING = "Missing"
    #: The hub refuses it to this token.
    REFUSED = "Refused"
    #: It is there and cannot be understood.
    BROKEN = "Broken"


#: Causes for which the engine would fail as well.
CERTAIN = frozenset({Cause.MISSING, Cause.REFUSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A checkpoint that could not be read, and why."""

    cause: Cause
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a preflight reads: everything that changes the answer."""

    model_uri: str
    model_revision: str
    drafter_uri: str | None
    drafter_revision: str | None
    token_secret: tuple[str, str] | None = None
    #: Those variables of `engine.env` that matter here.
    env: tuple[tuple[str, str], ...] = ()

    @property
    def digest(self) -> str:
        """10 hex digits that name the Job and under which the answer is kept."""
        secret = list(self.token_secret) if self.token_secret else None
        return digest_of(
            ["preflight", self.model_uri, self.model_revision, self.drafter_uri, self.drafter_revision, secret]
            + [list(pair) for pair in self.env]
        )


def question_of(model: SpeculativeModel, candidates: Sequence[Candidate]) -> Question:
    """Return what is to be read for a model."""
    drafted = next((one for one in candidates if one.drafter_uri is not None), None)
    secret = model.spec.model.token_secret_ref
    return Question(
        model_uri=model.spec.model.uri,
        model_revision=model.spec.model.revision,
        drafter_uri=drafted.drafter_uri if drafted is not None else None,
        drafter_revision=drafted.drafter_revision if drafted is not None else None,
        token_secret=(secret.name, secret.key) if secret is not None else None,
        env=tuple(sorted((one.name, one.value) for one in model.spec.engine.env if one.name in HUB_VARIABLES)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was read of the target, and of the drafter (None: the model has none)."""

    target: Checkpoint | Unread
    drafter: Checkpoint | Unread | None = None

    @property
    def is_certain(self) -> bool:
        """Whether all of it could be read: nothing would be gained by reading again."""
        return not isinstance(self.target, Unread) and not isinstance(self.drafter, Unread)

    def to_json(self) -> str:
        """Return the reading as one line of at most 4096 bytes; what would be too long counts as broken."""
        text = _line(self.target, self.drafter)
        if len(text) > TEXT_MAXIMUM:
            broken = Unread(cause=Cause.BROKEN, message="what its files say of themselves is too long")
            text = _line(self.target if isinstance(self.target, Unread) else broken, self.drafter and broken)
        return text


def _line(target: Checkpoint | Unread, drafter: Checkpoint | Unread | None) -> str:
    members = {"target": _member(target)} | ({"drafter": _member(drafter)} if drafter is not None else {})
    return json.dumps(members, separators=(",", ":"), ensure_ascii=True)


def _member(value: Checkpoint | Unread) -> dict[str, Any]:
    if isinstance(value, Unread):
        words = value.message.encode("ascii", "replace").decode()[:MESSAGE_MAXIMUM]
        return {"unread": value.cause.value, "message": words}
    facts: dict[str, Any] = json.loads(value.to_json())
    return facts


def reading_from_json(text: str) -> Reading:
    """Return the reading that `Reading.to_json` wrote. Raises `CheckpointError` for anything else, whoever wrote it."""
    if len(text) > TEXT_MAXIMUM:
        raise CheckpointError("the answer is longer than 4096 bytes")
    try:
        value = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise CheckpointError("the answer is no JSON") from error
    if not isinstance(value, dict) or "target" not in value:
        raise CheckpointError("the answer names no target")
    drafter = value.get("drafter")
    return Reading(target=_parsed(value["target"]), drafter=_parsed(drafter) if drafter is not None else None)


def _parsed(value: object) -> Checkpoint | Unread:
    if isinstance(value, Mapping) and "unread" in value:
        cause, message = value.get("unread"), value.get("message")
        known = next((one for one in Cause if one.value == cause), Cause.BROKEN)
        return Unread(cause=known, message=message[:MESSAGE_MAXIMUM] if isinstance(message, str) else "")
    return checkpoint_from_value(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a reading means for a model."""

    #: Condition DrafterCompatible: status, reason, message.
    drafter: tuple[ConditionStatus, str, str]
    #: Why a candidate must not take a GPU, (reason, message) by digest.
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    #: (reason, message) when nothing may be started at all.
    stalled: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a spec says about checkpoints that do not fit."""

    has_drafter: bool
    fails_when_incompatible: bool
    token_secret: tuple[str, str] | None = None
    #: GPU products of the nodes that are there; empty: not known, and every product that the spec names counts.
    products: frozenset[str] = frozenset()


def policy_of(
    model: SpeculativeModel,
    *,
    products: frozenset[str] = frozenset(),
    token_secret: tuple[str, str] | None = None,
) -> Policy:
    """Return what a model says about checkpoints that do not fit. Without a cluster there is no Secret to name."""
    drafter = model.spec.drafter
    return Policy(
        has_drafter=drafter is not None and drafter.method is not DrafterMethod.NONE,
        fails_when_incompatible=drafter is not None and drafter.on_incompatible is OnIncompatible.FAIL,
        token_secret=token_secret,
        products=products,
    )


def judge(
    reading: Reading | None, candidates: Sequence[Candidate], policy: Policy, *, proven: Collection[str]
) -> Judgement:
    """Return what follows from a reading; None: there is none yet. `proven`: digests that were measured or serve."""
    if reading is None:
        words = "The checkpoints have not been read yet."
        return Judgement(drafter=(ConditionStatus.UNKNOWN, "NotRead" if policy.has_drafter else "NoDrafter", words))
    target, drafter = reading.target, reading.drafter
    if drafter is None and policy.has_drafter:
        drafter = Unread(cause=Cause.BROKEN, message="the answer says nothing of it")
    if isinstance(target, Unread):
        return _without_target(target, policy)
    if isinstance(drafter, Unread):
        return _without_drafter(target, drafter, candidates, policy, proven)
    return _judge_pair(target, drafter, candidates, policy, proven)


def _without_target(target: Unread, policy: Policy) -> Judgement:
    words = f"The target was not read: {_with_secret(target, policy)}"
    condition = (ConditionStatus.UNKNOWN, "NotRead" if policy.has_drafter else "NoDrafter", words)
    if target.cause not in CERTAIN:
        return Judgement(drafter=condition)
    return Judgement(drafter=condition, stalled=("ModelNotFound", words))


def _without_drafter(
    target: Checkpoint, drafter: Unread, candidates: Sequence[Candidate], policy: Policy, proven: Collection[str]
) -> Judgement:
    words = f"The drafter was not read: {_with_secret(drafter, policy)}"
    base = _judge_pair(target, None, candidates, policy, proven)
    if drafter.cause not in CERTAIN:
        return Judgement(
            drafter=(ConditionStatus.UNKNOWN, "NotRead", words), refused=base.refused, stalled=base.stalled
        )
    drafted = [one for one in candidates if one.speculative_tokens and one.digest not in proven]
    refused = {one.digest: ("DrafterNotFound", words) for one in drafted} | dict(base.refused)
    return _with_policy((ConditionStatus.FALSE, "DrafterNotFound", words), refused, candidates, policy, proven)


def _judge_pair(
    target: Checkpoint,
    drafter: Checkpoint | None,
    candidates: Sequence[Candidate],
    policy: Policy,
    proven: Collection[str],
) -> Judgement:
    refused: dict[str, tuple[str, str]] = {}
    findings: list[Finding] = []
    fitting = 0
    for candidate in candidates:
        mine = drafter if candidate.speculative_tokens else None
        found = findings_of(target, mine, candidate)
        about = [one for one in found if one.about is About.DRAFTER]
        findings += [one for one in about if one not in findings]
        is_bad = any(one.severity is Severity.INCOMPATIBLE for one in about)
        fitting += bool(candidate.speculative_tokens) and (not is_bad or candidate.digest in proven)
        why = _refusal(found, target, mine, candidate, policy.products)
        if why is not None and candidate.digest not in proven:
            refused[candidate.digest] = why
    condition = _condition(target, drafter, findings, is_fitting=fitting > 0)
    return _with_policy(condition, refused, candidates, policy, proven)


def findings_of(target: Checkpoint, drafter: Checkpoint | None, candidate: Candidate) -> tuple[Finding, ...]:
    """Return what is found about one candidate's checkpoints.

    The served length is not judged where the user told the engine to accept any.
    """
    limits = limits_of(candidate.extra_args)
    is_free = limits.is_beyond or dict(candidate.env).get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") not in ("0", "")
    return check_pair(
        target,
        drafter,
        gpus_per_replica=candidate.gpus_per_replica,
        served_length=None if is_free else limits.served_length,
        weights=candidate.weights,
        kv_cache=candidate.kv_cache,
    )


def load_of(candidate: Candidate) -> Load:
    """Return what of a candidate matters for memory."""
    return Load(
        gpus_per_replica=candidate.gpus_per_replica,
        weights=candidate.weights,
        kv_cache=candidate.kv_cache,
        max_num_seqs=candidate.max_num_seqs,
        limits=limits_of(candidate.extra_args),
    )


def _refusal(
    findings: Iterable[Finding],
    target: Checkpoint,
    drafter: Checkpoint | None,
    candidate: Candidate,
    products: Collection[str],
) -> tuple[str, str] | None:
    bad = [one for one in findings if one.severity is Severity.INCOMPATIBLE]
    if bad:
        reason = "ModelIncompatible" if bad[0].about is About.TARGET else "DrafterIncompatible"
        return reason, "; ".join(one.message for one in bad)
    load = load_of(candidate)
    present = [product for product in candidate.gpu_products if product in products]
    why = misfit(estimate(target, drafter, load), present or candidate.gpu_products, load.limits)
    return ("DoesNotFit", f"{candidate.shape} {why}") if why is not None else None


def _condition(
    target: Checkpoint, drafter: Checkpoint | None, findings: Sequence[Finding], *, is_fitting: bool
) -> tuple[ConditionStatus, str, str]:
    if drafter is None:
        return ConditionStatus.UNKNOWN, "NoDrafter", "The model has no drafter."
    bad = [one.message for one in findings if one.severity is Severity.INCOMPATIBLE]
    rest = [one.message for one in findings if one.severity is not Severity.INCOMPATIBLE]
    if not is_fitting:
        return ConditionStatus.FALSE, "Incompatible", f"The drafter does not fit: {'; '.join(bad)}."
    words = f"{_name(drafter)} fits {_name(target)}."
    if bad:
        words += f" Not with every number of GPUs: {'; '.join(bad)}."
    if rest:
        words += f" Note: {'; '.join(rest)}."
    return ConditionStatus.TRUE, "Compatible", words


def _name(checkpoint: Checkpoint) -> str:
    kind = checkpoint.architectures[0] if checkpoint.architectures else checkpoint.model_type
    sizes = [f"hidden_size {checkpoint.hidden_size}", f"vocab_size {checkpoint.vocab_size}"]
    if checkpoint.draft_vocab_size is not None:
        sizes.append(f"draft_vocab_size {checkpoint.draft_vocab_size}")
    return f"{kind} ({', '.join(sizes)})"


def _with_policy(
    condition: tuple[ConditionStatus, str, str],
    refused: Mapping[str, tuple[str, str]],
    candidates: Sequence[Candidate],
    policy: Policy,
    proven: Collection[str],
) -> Judgement:
    stalled: tuple[str, str] | None = None
    if condition[0] is ConditionStatus.FALSE and policy.fails_when_incompatible:
        words = f"{condition[2]} drafter.onIncompatible is Fail: nothing new is started. Use another drafter, or write "
        stalled = ("DrafterIncompatible", f"{words}onIncompatible: Baseline to serve without one.")
    elif candidates and len(refused) == len(candidates) and not proven:
        reasons = list(dict.fromkeys(refused.values()))
        words = "; ".join(message for _, message in reasons)
        stalled = (reasons[0][0], f"No candidate can be started: {words}.")
    return Judgement(drafter=condition, refused=refused, stalled=stalled)


def _with_secret(unread: Unread, policy: Policy) -> str:
    if unread.cause is not Cause.REFUSED:
        return unread.message
    if policy.token_secret is None:
        return f"{unread.message}; model.tokenSecretRef names no Secret with a token"
    name, key = policy.token_secret
    return f"{unread.message}, from key {key} of Secret {name}: check that the token is valid and may read it"
