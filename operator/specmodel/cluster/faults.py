"""What an error of the API server means for a pass. Pure.

409, 429, 5xx, no answer ──► TransientError(after)      try the pass again
403 ──────────────────────► RefusedError("Forbidden")   a role, a quota: a person must act
400, 422, admission ──────► RefusedError("Rejected")    the object itself
"""

from __future__ import annotations

from datetime import timedelta

from specmodel.cluster.client import ApiError
from specmodel.reconcile.action import RefusedError, TransientError

SOON = timedelta(seconds=2)
LATER = timedelta(seconds=10)
MUCH_LATER = timedelta(seconds=60)
#: The server's own words are kept up to so many characters: the middle of a printed object helps nobody.
MESSAGE_MAXIMUM = 1500


def transient(error: ApiError, what: str) -> TransientError:
    """Return the error as a fault that passes, with when to try again."""
    after = error.retry_after or (SOON if error.status == 409 else LATER)
    if error.status in (401, 403, 404):
        after = MUCH_LATER
    return TransientError(f"{what}: {error.message}", after=after)


def of_write(error: ApiError, what: str) -> TransientError | RefusedError:
    """Return what a failed write means. `what` names the object, as "Deployment/name"."""
    is_admission = "admission webhook" in error.message or error.message.startswith("ValidatingAdmissionPolicy")
    # The API server answers 500 when a manifest does not fit the schema.
    is_misfit = error.status == 500 and "failed to create typed patch object" in error.message
    words = f"{what}: {error.message}"
    message = words if len(words) <= MESSAGE_MAXIMUM else f"{words[: MESSAGE_MAXIMUM - 200]} … {words[-190:]}"
    if error.status == 403 and error.reason == "NamespaceTerminating":
        return transient(error, what)
    if error.status in (400, 405, 406, 413, 415, 422) or is_misfit or (error.status == 403 and is_admission):
        return RefusedError("Rejected", message)
    if error.status == 403:
        return RefusedError("Forbidden", message)
    return transient(error, what)
