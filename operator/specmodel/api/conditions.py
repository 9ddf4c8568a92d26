"""Condition types and every reason that the operator may give, each with its meaning and what a person does about it.

This is the only home of reasons: docs/conditions.md is generated from it, and a test refuses a reason used elsewhere
that is not here. Reasons are stable names; messages carry the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from specmodel.api.wire import StatusWire, Timestamp


class ConditionType(StrEnum):
    """The types of condition. `Reconciling` and `Stalled` are present only while true (kstatus)."""

    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    AVAILABLE = "Available"
    DRAFTER_COMPATIBLE = "DrafterCompatible"
    BENCHMARKED = "Benchmarked"
    WITHIN_SLA = "WithinSla"
    SPECULATION_ACTIVE = "SpeculationActive"
    PROGRESSING = "Progressing"


class RunConditionType(StrEnum):
    """The types of condition of a BenchmarkRun."""

    SERVER_READY = "ServerReady"
    COMPLETE = "Complete"
    FAILED = "Failed"


class ConditionStatus(StrEnum):
    """Kubernetes' three values."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(StatusWire):
    """A condition as Kubernetes defines it, with the generation that it speaks of."""

    type: str = Field(max_length=64)
    status: ConditionStatus
    reason: str = Field(min_length=1, max_length=64, pattern=r"^[A-Z][A-Za-z0-9]*$")
    message: str = Field(max_length=4096)
    observed_generation: int | None = Field(default=None, ge=0)
    last_transition_time: Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One reason: what it means, and what a person does about it."""

    name: str
    meaning: str
    what_to_do: str


def _reasons(*rows: tuple[str, str, str]) -> dict[str, Reason]:
    return {name: Reason(name=name, meaning=meaning, what_to_do=what) for name, meaning, what in rows}


#: Reasons of a SpeculativeModel's conditions, its candidates' verdicts and its decision.
REASONS: dict[str, Reason] = _reasons(
    # Ready / Available / Progressing
    ("Serving", "The chosen revision serves with all its replicas, and nothing is left to do.", "Nothing."),
    ("Measuring", "Candidates are being measured; the message says which, cell i of n, and an estimate.", "Wait."),
    ("Preflight", "The checkpoints' files are read before a GPU is taken; it takes seconds.", "Wait."),
    ("Promoting", "The chosen revision is being brought to its replicas before traffic moves to it.", "Wait."),
    ("Draining", "Traffic has moved; the old revision finishes its requests before it is deleted.", "Wait."),
    ("TrafficMoving", "The Service has just moved; for five seconds the nodes may not know yet.", "Wait."),
    ("NothingServes", "No revision serves yet.", "See Ready and Progressing for what is going on."),
    ("ReplicasUnavailable", "Fewer replicas of the serving revision are Ready than wanted.", "Look at the pods named."),
    (
        "WaitingForGPUs",
        "A step needs more free matching GPUs than there are; the message names wanted, free and products seen.",
        "Add GPU nodes, free GPUs, lower gpusPerReplica or, if an outage is acceptable, set rollout.mode: Recreate.",
    ),
    (
        "NoMatchingGPU",
        "No node's GPUs can be used; the message says what keeps the pods off, and lists the products seen.",
        "Set hardware.gpuProducts to a product that your nodes have, or mend what the message names.",
    ),
    (
        "BudgetExceeded",
        "The step would hold more GPUs than hardware.gpuBudget allows.",
        "Raise hardware.gpuBudget or lower serving.replicas.",
    ),
    ("Suspended", "spec.suspend is true: what serves goes on serving and nothing else is done.", "Set it to false."),
    (
        "Recommended",
        "selection.mode is Recommend: the proposal is in status.decision, nothing was changed.",
        "Apply it.",
    ),
    ("RolloutDeadlineExceeded", "A revision did not become Ready in time.", "Look at the pods named in the message."),
    # Stalled
    ("InvalidModel", "The spec cannot be acted on; what served goes on serving.", "Change what the message names."),
    ("EngineVersionUnknown", "The image's tag is not vX.Y.Z and engine.version is not set.", "Set engine.version."),
    (
        "EngineUnsupported",
        "No release of the engine's minor version was checked by this operator; the message lists those that were.",
        "Use an image of one, or name in engine.version the checked one that yours is built from.",
    ),
    ("ReservedFlag", "engine.extraArgs holds a flag that the operator owns.", "Use the field that the message names."),
    (
        "UnknownFlag",
        "engine.extraArgs holds a flag that the engine's release does not have, or an abbreviation.",
        "Write the flag that the message names, or leave it out.",
    ),
    ("InvalidFlagValue", "A flag of engine.extraArgs lacks its value or has a wrong one.", "Correct the value named."),
    (
        "UnsupportedFlag",
        "A flag of engine.extraArgs is one that the engine does not serve together with a drafter.",
        "Leave the flag or the drafter out.",
    ),
    ("DatasetNotFound", "The ConfigMap key of workload.dataset.prompts is missing.", "Create it or correct the name."),
    ("DatasetInvalid", "A line of the prompts is no JSON object with prompt or messages.", "Correct the line named."),
    (
        "Forbidden",
        "The API server refused a write of the operator; the message is its own.",
        "Check the operator's role.",
    ),
    (
        "Rejected",
        "The API server or an admission policy refused an object.",
        "Read the message: it is the server's own.",
    ),
    (
        "NameTaken",
        "An object of the name that the operator needs is there and is somebody else's; it is left as it is.",
        "Give the model another name, or delete the object that the message names.",
    ),
    # Benchmarked / WithinSla / SpeculationActive
    ("Measured", "Every candidate that could win has been measured.", "Nothing."),
    ("MeasurementPending", "Measurements are not complete yet.", "Wait."),
    ("MeasurementBlocked", "Measuring cannot go on; the message says what it waits for.", "See the message."),
    ("WithinLimits", "The serving candidate passed every limit up to its capacity.", "Nothing."),
    (
        "LimitExceeded",
        "No candidate passed; the message names the nearest miss with its number.",
        "Relax the SLA or add hardware.",
    ),
    (
        "Undecided",
        "The samples do not decide a limit at the confidence asked for.",
        "Raise requestsPerCell.max or lower confidence.",
    ),
    ("NoLimits", "The SLA has no limit, so every measured candidate is within it.", "Set sla.limits."),
    ("CountersMove", "The engine's speculation counters moved under load.", "Nothing."),
    (
        "CountersStill",
        "Speculation is configured but its counters did not move.",
        "Check the drafter and the engine's log.",
    ),
    ("NoDrafter", "The model, or the serving candidate, has no drafter.", "Nothing."),
    ("NotMeasured", "The serving candidate has no measurement that says so.", "Wait for the measurement."),
    # DrafterCompatible, and what else was found before a GPU was taken
    ("Compatible", "By their files, the drafter fits the target; the message holds what to look at.", "Nothing."),
    (
        "Incompatible",
        "By their files, the drafter cannot work with the target; the message names both values.",
        "Use a drafter made for this target.",
    ),
    (
        "NotRead",
        "The files could not be read, or not yet; candidates go on, and the engine itself will tell.",
        "See the message; where the hub cannot be reached, put the files on a volume (pvc://).",
    ),
    (
        "DrafterIncompatible",
        "The candidate's drafter does not fit the target, so no GPU was taken; the message names both values.",
        "Use a drafter made for this target, or set drafter.onIncompatible: Baseline to serve without one.",
    ),
    (
        "DrafterNotFound",
        "There is no such drafter, or the token may not read it. It is looked for again every 5 minutes.",
        "Correct drafter.uri, drafter.revision or the Secret in model.tokenSecretRef.",
    ),
    (
        "ModelNotFound",
        "There is no such model, or the token may not read it. It is looked for again every 5 minutes.",
        "Correct model.uri, model.revision or the Secret in model.tokenSecretRef.",
    ),
    (
        "ModelIncompatible",
        "By its files, the model cannot run as the candidate says; the message names both values.",
        "Change what the message names.",
    ),
    (
        "DoesNotFit",
        "Weights, drafter and one sequence of the served length are larger than the GPUs' memory; the message adds up.",
        "Use more gpusPerReplica, FP8 weights, a shorter --max-model-len or GPUs with more memory.",
    ),
    # verdicts of candidates
    ("Passed", "All gates passed.", "Nothing."),
    ("ErrorRateExceeded", "More requests failed than sla.maxErrorRatePercent allows.", "Look at the run's cells."),
    (
        "AcceptanceTooLow",
        "The acceptance rate is below drafter.minAcceptanceRatePercent.",
        "Use a drafter trained for the model.",
    ),
    (
        "SpeculationInactive",
        "Speculation is configured but the engine drafted nothing, or accepted none of what it drafted.",
        "Use a drafter trained for the model, with max_position_embeddings above the workload's prompts and answers.",
    ),
    ("CellsMissing", "Cells that the workload asks for are not measured yet.", "Wait."),
    (
        "SamplesMissing",
        "The result holds percentiles only, which cannot carry a confidence above 0.",
        "Measure with the operator, save every request (`--save-detailed`), or set sla.confidencePercent: 0.",
    ),
    ("SamplesTooFew", "Too few samples to decide at the confidence asked for.", "Raise requestsPerCell.max."),
    (
        "EngineFailed",
        "The engine did not start or died; the message holds its last lines.",
        "Read the message; then correct the spec.",
    ),
    (
        "StartupTimeout",
        "The engine was not Ready within engine.startupTimeoutSeconds.",
        "Raise it or look at the pod's log.",
    ),
    ("NoOutput", "A cell produced no output token.", "Look at the engine's log."),
    ("ImplausibleCell", "A cell's numbers contradict each other.", "Delete the BenchmarkRun to measure anew."),
    ("CannotWin", "Not measured: even its best possible cost is above the best candidate's.", "Nothing."),
    (
        "OverBudget",
        "Its replicas would need more GPUs than hardware.gpuBudget.",
        "Raise gpuBudget or lower the demand.",
    ),
    ("CapacityTooLow", "No measured concurrency passes.", "Relax the SLA."),
    # decision
    ("LowestCost", "Least cost for the demand among eligible candidates.", "Nothing."),
    ("HighestThroughput", "Most requests per second within the budget.", "Nothing."),
    ("LowestLatency", "Lowest value of the SLA's first metric.", "Nothing."),
    ("OnlyEligible", "The only eligible candidate.", "Nothing."),
    ("IncumbentKept", "The incumbent stays: no challenger is better by minGainPercent.", "Nothing."),
    ("IncumbentFallback", "Nobody is eligible; what served goes on serving.", "See the nearest miss."),
    ("BaselineFallback", "Nobody is eligible; the baseline without drafter serves.", "See the nearest miss."),
    ("InconclusiveServes", "Nobody is eligible; a candidate that may pass serves.", "Raise requestsPerCell.max."),
    ("NobodyEligible", "Nobody is eligible and nothing can serve.", "See the nearest miss and the failures."),
    ("Undetermined", "Not decided yet.", "Wait."),
)

#: Reasons of a BenchmarkRun's conditions.
RUN_REASONS: dict[str, Reason] = _reasons(
    ("CellsComplete", "Every cell is measured, or was not needed under the stop rule.", "Nothing."),
    ("Running", "The Job is measuring.", "Wait."),
    ("Pending", "The Job has not started.", "Wait; the message says for what."),
    ("TargetReady", "The server answers.", "Nothing."),
    ("ServerStarting", "The candidate's pod is not Ready yet.", "Wait; the message says for how long at most."),
    (
        "StartupTimeout",
        "The candidate's server was not Ready within engine.startupTimeoutSeconds.",
        "Raise it, or look at the pod's log; delete the run to try again.",
    ),
    (
        "ServerFailed",
        "The candidate's server did not start or died; the message holds its last lines.",
        "Correct the spec.",
    ),
    ("TargetUnreachable", "The target's URL did not answer in time.", "Check spec.target.url."),
    ("ModelNotServed", "The target does not list the model.", "Check spec.target.model against /v1/models."),
    ("Stalled", "No request ended for spec.stallSeconds.", "Look at the engine's log."),
    (
        "DeadlineExceeded",
        "spec.deadlineSeconds passed; finished cells are kept.",
        "Create a new run with a longer deadline.",
    ),
    (
        "JobFailed",
        "The benchmark Job failed repeatedly; the message holds its last lines.",
        "Read the message; delete the run to retry.",
    ),
    ("InvalidRun", "The spec cannot be acted on.", "Change what the message names."),
    (
        "EngineChanged",
        "The engine restarted during a cell: its counters were reset.",
        "Delete the run to measure anew.",
    ),
)
