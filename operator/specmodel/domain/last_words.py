"""Why an engine did not start or died, in words, from the end of what it printed.

vLLM's last line seldom says why ("Engine core initialization failed. See root cause above."): the cause stands further
up, under another process's name. What is known is explained; what is not is quoted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: How many characters of the engine's own words are quoted.
QUOTED_MAXIMUM = 600
#: vLLM puts process name, level, time and place before a line: `(EngineCore pid=7) ERROR 11-30 10:00:00 [core.py:1] `.
_PREFIX = re.compile(r"^(?:\([^)]*pid=\d+\)\s*)?(?:(?:ERROR|INFO|WARNING)\s+\d\d-\d\d\s[\d:.]+\s+\[[^\]]*\]\s*)?")
_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b\s*:?|^error:|: error: ")
#: Errors that only say that another process failed.
_SECOND_HAND = re.compile(
    r"Engine core initialization failed|Engine process failed to start|EngineDeadError|EngineCore encountered an issue"
    r"|WorkerProc initialization failed|Worker proc .* died|Failed core proc"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cause:
    pattern: re.Pattern[str]
    words: str


def _cause(pattern: str, words: str) -> _Cause:
    return _Cause(pattern=re.compile(pattern, re.IGNORECASE), words=words)


#: The first that matches is told: from what names its cause most exactly to what only names the part that failed.
CAUSES = (
    _cause(
        r"bus error|no space left on device.*?/dev/shm|/dev/shm.*?no space left|insufficient shared memory"
        r"|insufficient space in /dev/shm"
        r"|error while creating shared memory|unable to (?:open|allocate) shared memory|shm_open",
        "Its processes ran out of shared memory (/dev/shm): a pod needs an emptyDir of medium Memory there, of 2 GiB "
        "or more for tensor parallelism; outside a cluster enlarge /dev/shm.",
    ),
    _cause(
        r"nccl.*?(?:system error|unhandled|internal error|invalid usage|remote|timed? ?out|error)",
        "NCCL could not connect its GPUs: with tensor parallelism they must reach one another. Usual causes: too "
        "little /dev/shm, a network interface that is not there (NCCL_SOCKET_IFNAME), peer access refused by a virtual "
        "machine (NCCL_P2P_DISABLE=1 tells), GPUs of different kinds. NCCL_DEBUG=INFO in engine.env has it say which.",
    ),
    _cause(
        r"cuda out of memory|torch\.(?:cuda\.)?outofmemoryerror",
        "The GPU's memory is too small for it: use more GPUs per replica, FP8 weights, a smaller --max-model-len, or "
        "free what else is on the GPU.",
    ),
    _cause(
        r"no available memory for the cache blocks|kv cache is needed, which is larger than|free memory on device",
        "Too little GPU memory is left for the KV cache: lower --max-model-len, use FP8, or more GPUs per replica; "
        "nothing else may use the GPU.",
    ),
    _cause(
        r"total number of attention heads .*? must be divisible by tensor parallel size|must be divisible by .*?tensor",
        "The model's heads cannot be divided among so many GPUs: use another hardware.gpusPerReplica.",
    ),
    _cause(
        r"world size .*? is larger than .*?(?:gpus|devices)|invalid device ordinal|visible devices?.*?is less than",
        "It was given fewer GPUs than its tensor parallel size.",
    ),
    _cause(
        r"401 client error|gatedrepoerror|repository not found|403 client error",
        "The hub refuses the weights: check the model's name and revision, and model.tokenSecretRef.",
    ),
    _cause(
        r"couldn't connect to|offline mode is enabled|localentrynotfounderror|name resolution",
        "The hub cannot be reached, and the weights are not in the cache.",
    ),
    _cause(r"address already in use", "Another process listens on its port."),
    _cause(
        r"driver version is insufficient|no kernel image is available|forward compatibility was attempted",
        "The GPU's driver and the image's CUDA do not fit together: update the driver or use an older engine image.",
    ),
    _cause(
        r"unrecognized arguments|invalid choice|expected (?:one|at least one) argument", "It knows no such argument."
    ),
)


def explain(printed: str) -> str:
    """Return in words why an engine failed, with the line that says so; empty when it printed nothing."""
    lines = [line for raw in printed.splitlines() if (line := _PREFIX.sub("", raw).strip())]
    if not lines:
        return ""
    quoted = _root(lines)
    for cause in CAUSES:
        telling = next((line for line in reversed(lines) if cause.pattern.search(line)), None)
        if telling is not None:
            return f"{cause.words} Its words: {_short(telling)}"
    return _short(quoted)


def _root(lines: list[str]) -> str:
    """Return the last error that is not about another process, else the last lines."""
    errors = [line for line in lines if _ERROR.search(line)]
    roots = [line for line in errors if not _SECOND_HAND.search(line)]
    if roots or errors:
        return (roots or errors)[-1]
    return " | ".join(lines[-3:])


def _short(line: str) -> str:
    return line if len(line) <= QUOTED_MAXIMUM else f"{line[: QUOTED_MAXIMUM - 1]}…"
