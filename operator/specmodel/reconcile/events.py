"""Which transitions are worth an Event: a courtesy to people who read `kubectl describe`. Pure.

Events are posted after the status is stored, and only for what changed between the stored status and the new one, so
that nothing is said twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from specmodel.api.conditions import Condition, ConditionStatus, ConditionType
from specmodel.api.model import SpeculativeModelStatus

#: Reasons of Progressing that people should notice.
WARNINGS = frozenset(
    {
        "BudgetExceeded",
        "Forbidden",
        "MeasurementBlocked",
        "NoMatchingGPU",
        "NameTaken",
        "Rejected",
        "RolloutDeadlineExceeded",
        "WaitingForGPUs",
    }
)
MESSAGE_MAXIMUM = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One Event on the model."""

    reason: str
    message: str
    is_warning: bool = False


def events(before: SpeculativeModelStatus, after: SpeculativeModelStatus) -> tuple[Event, ...]:
    """Return the Events of one change of status, in the order in which they are told."""
    found = [*_verdicts(before, after), *_decided(before, after), *_promoted(before, after), *_words(before, after)]
    return tuple(
        Event(reason=event.reason, message=event.message[:MESSAGE_MAXIMUM], is_warning=event.is_warning)
        for event in found
    )


def _condition(status: SpeculativeModelStatus, kind: ConditionType) -> Condition | None:
    return next((condition for condition in status.conditions if condition.type == kind.value), None)


def _verdicts(before: SpeculativeModelStatus, after: SpeculativeModelStatus) -> list[Event]:
    had = {candidate.candidate: candidate.verdict for candidate in before.candidates}
    found: list[Event] = []
    for candidate in after.candidates:
        if candidate.verdict == "Unmeasured" or had.get(candidate.candidate) == candidate.verdict:
            continue
        tokens = candidate.speculative_tokens
        shape = f"{candidate.gpus_per_replica} GPU{'s' if candidate.gpus_per_replica > 1 else ''}"
        shape += "" if candidate.weights == "None" else f" {candidate.weights}"
        shape += f" γ={tokens}" if tokens else " no drafter"
        is_bad = candidate.verdict == "Failed"
        reason = "CandidateFailed" if is_bad else "CandidateMeasured"
        said = f"{shape}: {candidate.verdict}, {candidate.reason}. {candidate.message}"
        found.append(Event(reason=reason, message=said.strip(), is_warning=is_bad))
    return found


def _decided(before: SpeculativeModelStatus, after: SpeculativeModelStatus) -> list[Event]:
    old, new = before.decision, after.decision
    if new is None or new.reason == "Undetermined":
        return []
    if old is not None and (old.reason, old.candidate) == (new.reason, new.candidate):
        return []
    return [Event(reason="Decided", message=new.message)]


def _promoted(before: SpeculativeModelStatus, after: SpeculativeModelStatus) -> list[Event]:
    old, new = before.serving, after.serving
    if new is None or (old is not None and old.revision == new.revision):
        return []
    origin = f" instead of {old.revision}" if old is not None else ""
    return [Event(reason="Promoted", message=f"Revision {new.revision} serves{origin}.")]


def _words(before: SpeculativeModelStatus, after: SpeculativeModelStatus) -> list[Event]:
    found: list[Event] = []
    stalled_before, stalled = (_condition(status, ConditionType.STALLED) for status in (before, after))
    if stalled is not None and (stalled_before is None or stalled_before.reason != stalled.reason):
        found.append(Event(reason=stalled.reason, message=stalled.message, is_warning=True))
    old, new = (_condition(status, ConditionType.PROGRESSING) for status in (before, after))
    has_changed = new is not None and (old is None or (old.reason, old.status) != (new.reason, new.status))
    if new is not None and has_changed and stalled is None:
        is_news = new.status is ConditionStatus.TRUE or new.reason in WARNINGS or new.reason == "Suspended"
        if is_news:
            found.append(Event(reason=new.reason, message=new.message, is_warning=new.reason in WARNINGS))
    ready_before, ready = (_condition(status, ConditionType.READY) for status in (before, after))
    was_ready = ready_before is not None and ready_before.status is ConditionStatus.TRUE
    if ready is not None and ready.status is ConditionStatus.TRUE and not was_ready:
        found.append(Event(reason="Ready", message=ready.message))
    return found
