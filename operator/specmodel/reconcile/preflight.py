"""Before a GPU is taken: read the checkpoints' files once, and let no candidate start that they rule out. Pure.

    no answer ──► Job ──► its pod's last message ──► status.preflight ──► Job deleted
                   └── no message in time: counts as not read, and candidates go on

The answer is kept in the status under the digest of what was read: data, no phase, so that a restart at any line reads
nothing twice. Until it is there, nothing new is measured; what serves, and what is measured already, goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from specmodel.api.model import PreflightStatus, SpeculativeModel
from specmodel.domain.candidate import Candidate
from specmodel.domain.checkpoint import CheckpointError
from specmodel.domain.observation import Observation, PreflightJob
from specmodel.domain.preflight import (
    CERTAIN,
    Cause,
    Judgement,
    Policy,
    Question,
    Reading,
    Unread,
    judge,
    policy_of,
    question_of,
    reading_from_json,
)
from specmodel.domain.settings import Settings
from specmodel.manifests.names import model_owner
from specmodel.manifests.preflight import DEADLINE_SECONDS, preflight_job
from specmodel.reconcile.action import Action, Apply, Delete
from specmodel.reconcile.times import parse_stamp, stamp

#: A Job that said nothing is given this long beyond its deadline.
SILENCE = timedelta(seconds=30)
PATIENCE = timedelta(seconds=DEADLINE_SECONDS) + SILENCE
#: When to look whether an answer was stored, or a former Job is gone.
SOON = timedelta(seconds=3)
#: What is not there, or refused, is looked for again after this time: somebody may have mended it.
LOOK_AGAIN = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What is known of a model's checkpoints, and the Jobs that read them."""

    question: Question
    judgement: Judgement
    #: The answer, as it is to be kept in status; None while there is none.
    answer: PreflightStatus | None = None
    #: True when the answer is in the status already: its Job has done its work.
    is_stored: bool = False
    #: When to read again, or None.
    again_at: datetime | None = None
    #: The Job that reads now, or has just read.
    job: PreflightJob | None = None
    #: Jobs that nobody waits for.
    others: tuple[PreflightJob, ...] = ()

    @property
    def is_pending(self) -> bool:
        """Whether nothing is known yet."""
        return self.answer is None


def understand_preflight(
    model: SpeculativeModel, observation: Observation, candidates: Sequence[Candidate], proven: Collection[str]
) -> Preflight:
    """Return what is known of the checkpoints. `proven`: digests of candidates that were measured or serve."""
    question = question_of(model, candidates)
    stored, known = _stored(model, question)
    again_at = _again_at(stored, known)
    jobs = [job for job in observation.preflights if job.digest == question.digest]
    fresh = [job for job in jobs if stored is None or (again_at is not None and job.created_at >= again_at)]
    job = max(fresh, key=lambda one: (one.created_at, one.name), default=None)
    read = _read(job, observation.now) if job is not None else None
    answer, is_stored, reading = stored, stored is not None, known
    if read is not None:
        reading, is_stored = read, False
        answer = PreflightStatus(digest=question.digest, result=read.to_json(), time=stamp(observation.now))
        again_at = None
    return Preflight(
        question=question,
        judgement=judge(reading, candidates, _policy(model, observation), proven=proven),
        answer=answer,
        is_stored=is_stored,
        again_at=again_at,
        job=job,
        others=tuple(one for one in observation.preflights if one is not job),
    )


def preflight_actions(
    preflight: Preflight, model: SpeculativeModel, candidates: Sequence[Candidate], settings: Settings, now: datetime
) -> tuple[list[Action], timedelta | None]:
    """Return what brings an answer about and takes Jobs away that gave theirs, and when to look again."""
    actions: list[Action] = []
    for job in preflight.others:
        is_asked = job.digest == preflight.question.digest
        why = "its answer is in the status" if is_asked else "another question is asked now"
        if not job.is_being_deleted:
            actions.append(Delete(kind="Job", name=job.name, uid=job.uid, why=why))
    is_due = preflight.is_pending or (preflight.again_at is not None and now >= preflight.again_at)
    if preflight.job is not None:
        is_open = preflight.is_pending or preflight.is_stored
        return actions, preflight.job.created_at + PATIENCE - now if is_open else SOON
    if not is_due:
        return actions, preflight.again_at - now if preflight.again_at is not None else None
    owner = model_owner(model.name, model.uid)
    if any(job.digest == preflight.question.digest for job in preflight.others):
        return actions, SOON
    manifest = preflight_job(owner, preflight.question, candidates[0], settings=settings)
    actions.append(Apply(manifest=manifest, why="read the checkpoints before a GPU is taken"))
    return actions, PATIENCE


def _policy(model: SpeculativeModel, observation: Observation) -> Policy:
    secret = model.spec.model.token_secret_ref
    return policy_of(
        model,
        token_secret=(secret.name, secret.key) if secret is not None else None,
        products=frozenset(observation.supply.products_ready),
    )


def _stored(model: SpeculativeModel, question: Question) -> tuple[PreflightStatus | None, Reading | None]:
    """Return the answer in the status, if it is to this question and can be understood: anyone may have edited it."""
    stored = model.status.preflight
    if stored is None or stored.digest != question.digest:
        return None, None
    try:
        return stored, reading_from_json(stored.result)
    except CheckpointError:
        return None, None


def _again_at(stored: PreflightStatus | None, reading: Reading | None) -> datetime | None:
    if stored is None or reading is None:
        return None
    parts = (reading.target, reading.drafter)
    if not any(isinstance(part, Unread) and part.cause in CERTAIN for part in parts):
        return None
    read_at = parse_stamp(stored.time)
    return read_at + LOOK_AGAIN if read_at is not None else None


def _read(job: PreflightJob, now: datetime) -> Reading | None:
    """Return what a Job read, or that it read nothing; None while it may still answer."""
    if job.answer is not None:
        try:
            return reading_from_json(job.answer)
        except CheckpointError as error:
            return _nothing(f"Job {job.name} answered with something else: {error}")
    if job.failure is not None:
        words = next((pod.last_words for pod in reversed(job.pods) if pod.last_words), "") or job.failure[1]
        return _nothing(f"Job {job.name} failed: {job.failure[0]}: {words}")
    if job.is_complete:
        return _nothing(f"Job {job.name} ended without an answer")
    if now < job.created_at + PATIENCE:
        return None
    waits = next((pod.unschedulable or pod.waiting for pod in job.pods if pod.unschedulable or pod.waiting), None)
    return _nothing(f"Job {job.name} did not answer in {PATIENCE.seconds} s: {waits or 'its pod did not end'}")


def _nothing(words: str) -> Reading:
    return Reading(target=Unread(cause=Cause.UNREACHABLE, message=words))
