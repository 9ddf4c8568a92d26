"""What the status and the Events say, beside what the simulations show."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from specmodel.api.conditions import REASONS, ConditionStatus, ConditionType
from specmodel.api.model import CandidateStatus, DecisionStatus, ServingStatus, SpeculativeModelStatus
from specmodel.domain.assessment import Verdict
from specmodel.reconcile.action import Key, Outcome, Plan, UnreadableModel
from specmodel.reconcile.events import events
from specmodel.reconcile.report import pod_selector, report, report_invalid, report_unreadable
from specmodel.reconcile.situation import Situation, understand
from specmodel.reconcile.times import parse_stamp, stamp
from tests.support.rehearsal import Rehearsal, model_of, rehearse


def served() -> Rehearsal:
    rehearsal = rehearse(model_of({"hardware": {"gpusPerReplica": [1]}}))
    rehearsal.run()
    return rehearsal


def situation_of(rehearsal: Rehearsal) -> Situation:
    model = rehearsal.cluster.model
    assert model is not None
    observation = asyncio.run(rehearsal.cluster.observe(model))
    return understand(model, observation, rehearsal.cluster.settings)


def status_of(status: SpeculativeModelStatus, kind: ConditionType) -> tuple[ConditionStatus, str] | None:
    return next(((c.status, c.reason) for c in status.conditions if c.type == kind.value), None)


def test_the_same_facts_give_the_same_status_however_late_it_is() -> None:
    rehearsal = served()
    situation = situation_of(rehearsal)
    assert rehearsal.cluster.model is not None
    first = rehearsal.cluster.model.status
    assert report(situation, Plan(), Outcome()).to_wire() == first.to_wire()


def test_a_refusal_stalls_with_the_servers_own_words_and_ready_is_false() -> None:
    situation = situation_of(served())
    status = report(situation, Plan(), Outcome(refused=("Forbidden", "deployments.apps is forbidden")))
    assert status_of(status, ConditionType.READY) == (ConditionStatus.FALSE, "Forbidden")
    assert status_of(status, ConditionType.STALLED) == (ConditionStatus.TRUE, "Forbidden")
    assert status_of(status, ConditionType.AVAILABLE) == (ConditionStatus.TRUE, "Serving")


def test_an_invalid_spec_keeps_what_was_known_and_what_serves() -> None:
    situation = situation_of(served())
    status = report_invalid(situation.model, situation.observation, "ReservedFlag", "use spec.drafter")
    assert status_of(status, ConditionType.STALLED) == (ConditionStatus.TRUE, "ReservedFlag")
    assert status_of(status, ConditionType.AVAILABLE) == (ConditionStatus.TRUE, "Serving")
    assert status_of(status, ConditionType.WITHIN_SLA) == (ConditionStatus.TRUE, "WithinLimits")
    assert status.serving == situation.model.status.serving


def test_a_drafter_that_drafted_in_vain_is_named_where_the_baseline_serves_in_its_place() -> None:
    situation = situation_of(served())
    decision = situation.decision
    useless = [
        replace(each, verdict=Verdict.FAILED, reason="SpeculationInactive", message="none of 21 drafted tokens")
        if each.candidate.speculative_tokens
        else each
        for each in decision.assessments
    ]
    (baseline,) = [each.candidate for each in useless if not each.candidate.speculative_tokens]
    changed = replace(situation, incumbent=baseline, decision=replace(decision, assessments=tuple(useless)))
    status = report(changed, Plan(), Outcome())
    assert status_of(status, ConditionType.SPECULATION_ACTIVE) == (ConditionStatus.FALSE, "SpeculationInactive")
    plain = report(replace(situation, incumbent=baseline), Plan(), Outcome())
    assert status_of(plain, ConditionType.SPECULATION_ACTIVE) == (ConditionStatus.FALSE, "NoDrafter")


def test_reconciling_and_stalled_are_there_only_while_true() -> None:
    rehearsal = served()
    assert rehearsal.cluster.model is not None
    status = rehearsal.cluster.model.status
    assert status_of(status, ConditionType.RECONCILING) is None
    assert status_of(status, ConditionType.STALLED) is None
    busy = report(situation_of(rehearsal), Plan(doing=("Measuring", "cell 1 of 3")), Outcome())
    assert status_of(busy, ConditionType.RECONCILING) == (ConditionStatus.TRUE, "Measuring")


def test_a_transition_time_moves_with_the_status_alone() -> None:
    rehearsal = served()
    assert rehearsal.cluster.model is not None
    before = {c.type: c.last_transition_time for c in rehearsal.cluster.model.status.conditions}
    rehearsal.cluster.now = datetime(2027, 1, 1, tzinfo=UTC)
    busy = report(situation_of(rehearsal), Plan(doing=("Measuring", "cell 1 of 3")), Outcome())
    after = {c.type: c.last_transition_time for c in busy.conditions}
    assert after["Available"] == before["Available"]
    assert after["Ready"] == "2027-01-01T00:00:00Z"


def test_an_object_that_does_not_parse_is_stalled_in_words() -> None:
    broken = UnreadableModel(key=Key(namespace="a", name="b"), generation=3, uid="u", message="spec.model: missing")
    status = report_unreadable(broken, "2026-11-30T12:00:00Z")
    assert status_of(status, ConditionType.STALLED) == (ConditionStatus.TRUE, "InvalidModel")
    assert status.conditions[0].message == "spec.model: missing"


def test_every_reason_of_a_condition_is_documented() -> None:
    rehearsal = served()
    assert rehearsal.cluster.model is not None
    assert {c.reason for c in rehearsal.cluster.model.status.conditions} <= set(REASONS)


def test_the_scale_subresource_selects_only_pods_that_serve() -> None:
    assert pod_selector("agent", "0123456789") == (
        "specmodel.dev/model=agent,specmodel.dev/revision=0123456789,specmodel.dev/role=serve"
    )


def test_nothing_changed_is_no_event() -> None:
    rehearsal = served()
    assert rehearsal.cluster.model is not None
    assert events(rehearsal.cluster.model.status, rehearsal.cluster.model.status) == ()


def test_a_promotion_a_decision_and_a_failed_candidate_are_events() -> None:
    def candidate(verdict: str) -> CandidateStatus:
        return CandidateStatus(
            candidate="c",
            gpus_per_replica=2,
            speculative_tokens=3,
            weights="FP8",
            verdict=verdict,
            reason="EngineFailed",
        )

    def serving(revision: str) -> ServingStatus:
        return ServingStatus(revision=revision, gpus_per_replica=1, speculative_tokens=0, weights="None", replicas=1)

    before = SpeculativeModelStatus(candidates=[candidate("Unmeasured")], serving=serving("old"))
    decision = DecisionStatus(reason="LowestCost", message="it costs least", candidate="c")
    after = SpeculativeModelStatus(candidates=[candidate("Failed")], serving=serving("new"), decision=decision)
    found = events(before, after)
    assert [(event.reason, event.is_warning) for event in found] == [
        ("CandidateFailed", True),
        ("Decided", False),
        ("Promoted", False),
    ]
    assert "2 GPUs FP8 γ=3" in found[0].message
    assert "instead of old" in found[2].message


@pytest.mark.parametrize("text", [None, "", "yesterday", "2026-13-01T00:00:00Z"])
def test_what_is_no_time_is_none(text: str | None) -> None:
    assert parse_stamp(text) is None


def test_times_survive_the_wire() -> None:
    now = datetime(2026, 11, 30, 12, 0, 5, tzinfo=UTC)
    assert parse_stamp(stamp(now)) == now
