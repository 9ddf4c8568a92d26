"""Times as the API server writes them: RFC 3339 in UTC, whole seconds. Reads no clock."""

from __future__ import annotations

from datetime import UTC, datetime


def stamp(time: datetime) -> str:
    """Return a time as the API server writes it."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_stamp(text: str | None) -> datetime | None:
    """Return the time that a text says, in UTC, or None for no text and for text that is no time (it may be edited)."""
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
