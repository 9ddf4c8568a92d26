"""Log lines: one JSON object each, on standard error. No secrets, no manifests."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

#: Fields of a line that a caller may add with `extra={"fields": {...}}`.
FIELDS = "fields"


class JsonLines(logging.Formatter):
    """One line per record: time, level, logger, message, then the caller's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one JSON object."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, FIELDS, None)
        if isinstance(fields, dict):
            line.update(fields)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def set_up_logging(level: str) -> None:
    """Send our own lines at a level, and those of libraries from warnings up, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("specmodel").setLevel(level.upper())
    logging.getLogger("kopf").setLevel(logging.WARNING)
