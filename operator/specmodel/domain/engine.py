"""Which engine image serves, which version it is, and which of its flags a user may not set.

The image of a model is resolved once: from the spec, else from the incumbent, else from the operator's settings, so
that upgrading the operator changes no engine. Rendering the arguments is `manifests`' work.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from specmodel.api.model import SpeculativeModel
from specmodel.domain.candidate import Candidate, EngineChoice
from specmodel.domain.invalid import InvalidModelError
from specmodel.domain.settings import Settings

#: The oldest vLLM whose command line this operator renders.
OLDEST_VERSION = (0, 22, 0)

#: Flags that the operator renders itself, and what a user sets instead (spec fields).
RESERVED_FLAGS: dict[str, str] = {
    "--model": "spec.model.uri",
    "--revision": "spec.model.revision",
    "--served-model-name": "spec.model.servedName",
    "--tokenizer-revision": "spec.model.revision",
    "--hf-token": "spec.model.tokenSecretRef",
    "--tensor-parallel-size": "spec.hardware.gpusPerReplica",
    "-tp": "spec.hardware.gpusPerReplica",
    "--speculative-config": "spec.drafter",
    "-sc": "spec.drafter",
    "--quantization": "spec.quantization.weights",
    "-q": "spec.quantization.weights",
    "--kv-cache-dtype": "spec.quantization.kvCache",
    "--max-num-seqs": "spec.workload.concurrency (twice its largest level, at least 64)",
    "--cudagraph-capture-sizes": "spec.workload.concurrency",
    "--compilation-config": "spec.workload.concurrency",
    "-cc": "spec.workload.concurrency",
    "-O": "spec.workload.concurrency",
    "--host": "nothing: the operator's Service and probes need the port as it is",
    "--port": "nothing: the operator's Service and probes need the port as it is",
    "--uds": "nothing: the operator's Service and probes need the port as it is",
    "--root-path": "nothing: the operator's probes need the paths as they are",
    "--ssl-keyfile": "a proxy or mesh in front of the Service",
    "--ssl-certfile": "a proxy or mesh in front of the Service",
    "--api-key": "a proxy or mesh in front of the Service",
    "--shutdown-timeout": "spec.serving.rollout.drainSeconds",
    "--config": "spec.engine.extraArgs, each flag by itself",
    "--data-parallel-size": "spec.serving.replicas",
    "-dp": "spec.serving.replicas",
    "--pipeline-parallel-size": "spec.hardware.gpusPerReplica",
    "-pp": "spec.hardware.gpusPerReplica",
    "--disable-log-stats": "nothing: acceptance is read from the engine's metrics",
}

_VERSION_TAG = re.compile(r"^v?(\d+)\.(\d+)\.(\d+)$")


def resolve_engine(model: SpeculativeModel, incumbent: Candidate | None, settings: Settings) -> EngineChoice:
    """Return the engine that the model's candidates run.

    Raises `InvalidModelError`: EngineVersionUnknown, EngineUnsupported, or ReservedFlag for `engine.extraArgs`.
    """
    engine = model.spec.engine
    check_extra_args(engine.extra_args)
    if engine.image is None and engine.version is None and incumbent is not None:
        return EngineChoice(image=incumbent.engine_image, version=incumbent.engine_version)
    image = engine.image or (incumbent.engine_image if incumbent else settings.engine_image)
    version = engine.version or version_of(image)
    if version is None:
        message = (
            f"cannot tell vLLM's version from the tag of image {image!r}: set spec.engine.version, for example 0.25.1"
        )
        raise InvalidModelError("EngineVersionUnknown", message)
    oldest = ".".join(str(part) for part in OLDEST_VERSION)
    if tuple(int(part) for part in version.split(".")) < OLDEST_VERSION:
        message = (
            f"engine {version} is older than {oldest}, the oldest vLLM that this operator renders for: "
            "use a newer spec.engine.image"
        )
        raise InvalidModelError("EngineUnsupported", message)
    return EngineChoice(image=image, version=version)


def version_of(image: str) -> str | None:
    """Return X.Y.Z of an image reference whose tag is vX.Y.Z or X.Y.Z, else None."""
    name = image.partition("@")[0].rpartition("/")[2]
    found = _VERSION_TAG.match(name.partition(":")[2])
    return ".".join(found.groups()) if found else None


def check_extra_args(extra_args: Sequence[str]) -> None:
    """Raise `InvalidModelError` (ReservedFlag) when an argument is a flag that the operator owns.

    vLLM reads `--flag=value`, `--flag value`, `--flag_name` for `--flag-name` and `--flag.member value` for JSON flags.
    """
    for index, argument in enumerate(extra_args):
        if not argument.startswith("-"):
            continue
        flag = argument.partition("=")[0].partition(".")[0]
        flag = f"--{flag[2:].replace('_', '-')}" if flag.startswith("--") else flag
        instead = RESERVED_FLAGS.get(flag) or RESERVED_FLAGS.get(f"--{flag.removeprefix('--no-')}")
        if instead is None:
            continue
        message = f"spec.engine.extraArgs[{index}]: {argument!r} is a flag that the operator owns: use {instead}"
        raise InvalidModelError("ReservedFlag", message)
