"""What is said of a model: its whole status, from what was observed, decided, planned and done. Pure.

The only author of conditions and phase. Nothing here ticks by itself: at rest the same facts give the same status, and
nothing is sent. `Ready` is true only when the pods that were seen are the pods that were decided.
"""

from __future__ import annotations

from dataclasses import dataclass

from specmodel.api.conditions import Condition, ConditionStatus, ConditionType
from specmodel.api.labels import MODEL, REVISION, ROLE, ROLE_SERVE
from specmodel.api.model import (
    DecisionStatus,
    SelectionMode,
    ServingStatus,
    SpeculativeModel,
    SpeculativeModelStatus,
)
from specmodel.domain.candidate import Candidate
from specmodel.domain.observation import Observation, Server
from specmodel.manifests.engine_arguments import PORT
from specmodel.reconcile.action import Outcome, Plan, UnreadableModel
from specmodel.reconcile.situation import Situation, serving_server
from specmodel.reconcile.summary import (
    Finding,
    benchmarked,
    candidate_statuses,
    decision_status,
    serving_status,
    within_sla,
)
from specmodel.reconcile.times import stamp

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
#: Decisions that leave nothing serving and nothing to do until someone changes something.
DEAD_ENDS = frozenset({"NobodyEligible"})
#: What a plan waits for until someone changes something.
STALLING = frozenset(
    {
        "DoesNotFit",
        "DrafterIncompatible",
        "DrafterNotFound",
        "ModelIncompatible",
        "ModelNotFound",
        "RolloutDeadlineExceeded",
    }
)
#: Conditions that are present only while true.
ONLY_WHILE_TRUE = (ConditionType.RECONCILING, ConditionType.STALLED)
MESSAGE_MAXIMUM = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """The one word on how a model is: what Ready says."""

    is_ready: bool
    reason: str
    message: str
    is_stalled: bool = False
    is_reconciling: bool = False


def report(situation: Situation, plan: Plan, outcome: Outcome) -> SpeculativeModelStatus:
    """Return the status of a model whose spec could be acted on."""
    model, observation, decision = situation.model, situation.observation, situation.decision
    word = _word(situation, plan, outcome)
    serving = _serving(situation)
    findings = [
        Finding(type=ConditionType.READY, status=_truth(word.is_ready), reason=word.reason, message=word.message),
        _available(observation, _wanted_replicas(situation)),
        _drafter_compatible(situation),
        benchmarked(decision),
        within_sla(decision, situation.incumbent, model.spec),
        _speculation(situation),
        _progressing(plan, word),
        *_while_true(word),
    ]
    return SpeculativeModelStatus(
        observed_generation=model.generation,
        phase=_phase(word, plan),
        conditions=settle(model, findings, stamp(observation.now)),
        serving=serving,
        candidates=candidate_statuses(decision),
        decision=_decision(situation),
        preflight=situation.preflight.answer,
        replicas=serving.replicas if serving is not None else 0,
        ready_replicas=serving.ready_replicas if serving is not None else 0,
        selector=pod_selector(model.name, situation.serving_revision),
    )


def report_invalid(
    model: SpeculativeModel, observation: Observation, reason: str, message: str
) -> SpeculativeModelStatus:
    """Return the status of a model whose spec cannot be acted on: what served goes on, what was known stays."""
    word = Word(is_ready=False, reason=reason, message=message, is_stalled=True)
    serving = serving_server(observation)
    wanted = serving.replicas if serving is not None else 1
    findings = [
        Finding(type=ConditionType.READY, status=FALSE, reason=reason, message=message),
        _available(observation, wanted),
        Finding(type=ConditionType.PROGRESSING, status=FALSE, reason=reason, message=message),
        *_while_true(word),
    ]
    given = {finding.type for finding in findings}
    kept = [
        Finding(type=ConditionType(had.type), status=had.status, reason=had.reason, message=had.message)
        for had in model.status.conditions
        if had.type in {kind.value for kind in ConditionType if kind not in given and kind not in ONLY_WHILE_TRUE}
    ]
    return model.status.model_copy(
        update={
            "observed_generation": model.generation,
            "phase": "Stalled",
            "conditions": settle(model, [*findings, *kept], stamp(observation.now)),
        }
    )


def report_unreadable(unreadable: UnreadableModel, now: str) -> SpeculativeModelStatus:
    """Return the status of an object that does not parse; nothing else is known of it."""
    words = unreadable.message[:MESSAGE_MAXIMUM]

    def condition(kind: ConditionType, status: ConditionStatus) -> Condition:
        return Condition(
            type=kind.value,
            status=status,
            reason="InvalidModel",
            message=words,
            observed_generation=unreadable.generation,
            last_transition_time=now,
        )

    return SpeculativeModelStatus(
        observed_generation=unreadable.generation,
        phase="Stalled",
        conditions=[condition(ConditionType.READY, FALSE), condition(ConditionType.STALLED, TRUE)],
    )


def settle(model: SpeculativeModel, findings: list[Finding], now: str) -> list[Condition]:
    """Return findings as conditions; the transition time moves only when a condition's status does."""
    had = {condition.type: condition for condition in model.status.conditions}
    conditions: list[Condition] = []
    for finding in findings:
        before = had.get(finding.type.value)
        is_same = before is not None and before.status is finding.status
        conditions.append(
            Condition(
                type=finding.type.value,
                status=finding.status,
                reason=finding.reason,
                message=finding.message[:MESSAGE_MAXIMUM],
                observed_generation=model.generation,
                last_transition_time=before.last_transition_time if before is not None and is_same else now,
            )
        )
    return conditions


def pod_selector(model: str, revision: str | None) -> str:
    """Return the label selector of the pods that serve, for the scale subresource."""
    if revision is None:
        return f"{MODEL}={model},{ROLE}={ROLE_SERVE}"
    return f"{MODEL}={model},{REVISION}={revision},{ROLE}={ROLE_SERVE}"


def _truth(value: bool) -> ConditionStatus:
    return TRUE if value else FALSE


def _wanted_replicas(situation: Situation) -> int:
    """Return the replicas that what serves should have."""
    target, serving = situation.target, situation.serving
    if target is not None and target.revision == situation.serving_revision:
        return situation.decision.replicas
    return serving.replicas if serving is not None else max(1, situation.decision.replicas)


def _word(situation: Situation, plan: Plan, outcome: Outcome) -> Word:
    """Return how the model is, the most pressing matter first."""
    if outcome.refused is not None:
        reason, message = outcome.refused
        return Word(is_ready=False, reason=reason, message=message, is_stalled=True)
    if situation.model.spec.suspend:
        return Word(is_ready=False, reason="Suspended", message=plan.waiting[1] if plan.waiting else "")
    if plan.waiting is not None:
        reason, message = plan.waiting
        is_stuck = reason in STALLING
        return Word(is_ready=False, reason=reason, message=message, is_stalled=is_stuck, is_reconciling=not is_stuck)
    if plan.doing is not None:
        reason, message = plan.doing
        return Word(is_ready=False, reason=reason, message=message, is_reconciling=True)
    serving = situation.serving
    return _nothing_serves(situation) if serving is None else _something_serves(situation, serving)


def _something_serves(situation: Situation, serving: Server) -> Word:
    wanted, ready = _wanted_replicas(situation), _ready_replicas(serving)
    if ready != wanted or serving.replicas != wanted:
        message = f"{ready} of {wanted} replicas are Ready.{_unready(serving)}"
        return Word(is_ready=False, reason="ReplicasUnavailable", message=message, is_reconciling=True)
    target = situation.target
    if _is_advice(situation) and target is not None and target.revision != situation.serving_revision:
        message = f"{_served(situation, serving)} The proposal in status.decision is another: {target.shape}."
        return Word(is_ready=True, reason="Recommended", message=message)
    return Word(is_ready=True, reason="Serving", message=_served(situation, serving))


def _is_advice(situation: Situation) -> bool:
    return situation.model.spec.selection.mode is SelectionMode.RECOMMEND


def _nothing_serves(situation: Situation) -> Word:
    decision = situation.decision
    if _is_advice(situation) and decision.serve is not None:
        message = f"Nothing serves; the proposal is {decision.serve.shape}: {decision.message}"
        return Word(is_ready=False, reason="Recommended", message=message)
    is_stuck = decision.reason in DEAD_ENDS
    reason = decision.reason if is_stuck else "NothingServes"
    return Word(
        is_ready=False, reason=reason, message=decision.message, is_stalled=is_stuck, is_reconciling=not is_stuck
    )


def _ready_replicas(server: Server) -> int:
    return sum(1 for pod in server.pods if pod.is_ready and not pod.is_terminating)


def _unready(server: Server) -> str:
    unready = [pod for pod in server.pods if not pod.is_ready and pod.is_active]
    words = [f"{pod.name} ({pod.waiting or pod.phase})" for pod in unready[:3]]
    return f" Not Ready: {', '.join(words)}." if words else ""


def _served(situation: Situation, serving: Server) -> str:
    candidate = situation.candidate_of(serving)
    shape = str(candidate.shape) if candidate is not None else f"revision {serving.revision}"
    count = serving.replicas
    return f"{shape} serves with {count} replica{'s' if count != 1 else ''}.{_left_out(situation, candidate)}"


def _left_out(situation: Situation, serving: Candidate | None) -> str:
    """Return why what serves is without the drafter that the spec names, or an empty text."""
    status, _, message = situation.preflight.judgement.drafter
    question = situation.preflight.question
    named = (question.drafter_uri, question.drafter_revision)
    if status is not FALSE or serving is None or (serving.drafter_uri, serving.drafter_revision) == named:
        return ""
    return f" Without the drafter that the spec names: {message}"


def _drafter_compatible(situation: Situation) -> Finding:
    status, reason, message = situation.preflight.judgement.drafter
    return Finding(type=ConditionType.DRAFTER_COMPATIBLE, status=status, reason=reason, message=message)


def _available(observation: Observation, wanted: int) -> Finding:
    serving = serving_server(observation)
    if serving is None:
        return Finding(
            type=ConditionType.AVAILABLE, status=FALSE, reason="NothingServes", message="No revision serves yet."
        )
    ready = _ready_replicas(serving)
    message = f"{ready} of {wanted} replicas are Ready.{_unready(serving) if ready < wanted else ''}"
    if ready < min(1, wanted):
        return Finding(type=ConditionType.AVAILABLE, status=FALSE, reason="ReplicasUnavailable", message=message)
    return Finding(type=ConditionType.AVAILABLE, status=TRUE, reason="Serving", message=message)


def _speculation(situation: Situation) -> Finding:
    def finding(status: ConditionStatus, reason: str, message: str) -> Finding:
        return Finding(type=ConditionType.SPECULATION_ACTIVE, status=status, reason=reason, message=message)

    candidate = situation.incumbent
    if candidate is None:
        return finding(UNKNOWN, "NothingServes", "No revision serves yet.")
    if not candidate.speculative_tokens:
        inactive = [each for each in situation.decision.assessments if each.reason == "SpeculationInactive"]
        if inactive:
            one = inactive[0]
            return finding(FALSE, one.reason, f"{one.candidate.shape}: {one.message}; what serves has no drafter.")
        return finding(FALSE, "NoDrafter", "The serving candidate has no drafter.")
    assessment = situation.decision.assessment_of(candidate)
    rate = assessment.acceptance_rate if assessment is not None else None
    if rate is None:
        return finding(UNKNOWN, "NotMeasured", "Nothing measured says whether it speculates.")
    if rate <= 0:
        return finding(FALSE, "CountersStill", "Its speculation counters did not move when it was measured.")
    return finding(TRUE, "CountersMove", f"{round(100 * rate)} % of drafted tokens were accepted when it was measured.")


def _progressing(plan: Plan, word: Word) -> Finding:
    def finding(status: ConditionStatus, reason: str, message: str) -> Finding:
        return Finding(type=ConditionType.PROGRESSING, status=status, reason=reason, message=message)

    if word.is_stalled or word.is_ready:
        return finding(FALSE, word.reason, word.message)
    if plan.waiting is not None:
        return finding(FALSE, *plan.waiting)
    if plan.doing is not None:
        return finding(TRUE, *plan.doing)
    return finding(_truth(word.is_reconciling), word.reason, word.message)


def _while_true(word: Word) -> list[Finding]:
    findings: list[Finding] = []
    if word.is_reconciling:
        findings.append(Finding(type=ConditionType.RECONCILING, status=TRUE, reason=word.reason, message=word.message))
    if word.is_stalled:
        findings.append(Finding(type=ConditionType.STALLED, status=TRUE, reason=word.reason, message=word.message))
    return findings


def _phase(word: Word, plan: Plan) -> str:
    if word.reason == "Suspended":
        return "Suspended"
    if word.is_stalled:
        return "Stalled"
    if word.is_ready:
        return "Serving"
    if plan.waiting is not None:
        return "Waiting"
    if plan.doing is not None:
        return plan.doing[0]
    return "Recommended" if word.reason == "Recommended" else "Pending"


def _serving(situation: Situation) -> ServingStatus | None:
    serving, candidate, service = situation.serving, situation.incumbent, situation.observation.service
    if serving is None or candidate is None or service is None:
        return None
    assessment = situation.decision.assessment_of(candidate)
    had = situation.model.status.serving
    since = stamp(service.moved_at) if service.moved_at is not None else (had.since if had is not None else None)
    return serving_status(candidate, assessment, replicas=serving.replicas).model_copy(
        update={
            "revision": serving.revision,
            "candidate": candidate.digest,
            "ready_replicas": _ready_replicas(serving),
            "engine_image": candidate.engine_image,
            "endpoint": f"http://{situation.model.name}.{situation.model.namespace}:{PORT}/v1",
            "since": since,
        }
    )


def _decision(situation: Situation) -> DecisionStatus:
    had = situation.model.status.decision
    decided = decision_status(situation.decision, time=had.time if had is not None else None)
    if had is not None and had.time is not None and decided == had:
        return decided
    return decided.model_copy(update={"time": stamp(situation.observation.now)})
