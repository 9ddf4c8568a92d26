"""Count what an account wrote, from the API server's audit log: the only witness that cannot be talked round."""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

WRITES = {"create", "update", "patch", "delete", "deletecollection"}


def writes_of(account: str, *, since: datetime) -> Counter[str]:
    """Return the writes of a ServiceAccount since a time, counted by `verb resource/subresource`.

    `account` is `system:serviceaccount:<namespace>:<name>`. Skips where the audit log cannot be read.
    """
    path = os.environ.get("SPECMODEL_AUDIT_LOG")
    if not path:
        pytest.skip("SPECMODEL_AUDIT_LOG does not name the API server's audit log")
    counted: Counter[str] = Counter()
    with Path(path).open(encoding="utf-8") as lines:
        for line in lines:
            event = json.loads(line)
            if event["verb"] not in WRITES or event["user"]["username"] != account:
                continue
            if datetime.fromisoformat(event["requestReceivedTimestamp"]) < since:
                continue
            reference = event.get("objectRef", {})
            subresource = f"/{reference['subresource']}" if "subresource" in reference else ""
            counted[f"{event['verb']} {reference.get('resource', '?')}{subresource}"] += 1
    return counted
