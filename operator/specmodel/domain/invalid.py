"""The one error of the domain: a spec that parses but cannot be acted on.

Expected situations of a healthy spec are values (verdicts, decisions), never this.
"""

from __future__ import annotations


class InvalidModelError(Exception):
    """The spec cannot be acted on: reason (see conditions.REASONS) and what to write instead.

    Reported as Stalled; what served goes on serving.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


#: The short name that the domain uses.
InvalidModel = InvalidModelError
