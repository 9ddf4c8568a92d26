"""Which engine image serves, which version it is, and which of its flags a user may set.

The image of a model is resolved once: from the spec, else from the incumbent, else from the operator's settings, so
that upgrading the operator changes no engine. A version is claimed when a release of its minor was checked: what that
release's own parser takes is recorded in `engines`, and the user's arguments are held against it before a pod starts.
Rendering the arguments is `manifests`' work.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from specmodel.api.model import SpeculativeModel
from specmodel.domain.candidate import Candidate, EngineChoice
from specmodel.domain.invalid import InvalidModelError
from specmodel.domain.settings import Settings
from specmodel.engines.command_line import completions, faults, is_flag, owner_of, spelling
from specmodel.engines.releases import Release, checked_releases, nearest_release, release_for

_DEPLOYMENT = "nothing: one replica is one process group on one node"
_PORT = "nothing: the operator's Service and probes need the port as it is"
_PROXY = "a proxy or mesh in front of the Service"
_HTTP = "nothing: the operator's probes and benchmark speak HTTP to the engine"

#: Flags that the operator renders itself or that would change what it relies on, and what a user sets instead.
_OWNED: dict[str, str] = {
    "--model": "spec.model.uri",
    "--revision": "spec.model.revision",
    "--served-model-name": "spec.model.servedName",
    "--tokenizer-revision": "spec.model.revision",
    "--hf-token": "spec.model.tokenSecretRef",
    "--tensor-parallel-size": "spec.hardware.gpusPerReplica",
    "--speculative-config": "spec.drafter",
    "--spec-method": "spec.drafter",
    "--spec-model": "spec.drafter",
    "--spec-tokens": "spec.drafter",
    "--quantization": "spec.quantization.weights",
    "--kv-cache-dtype": "spec.quantization.kvCache",
    "--max-num-seqs": "spec.workload.concurrency (twice its largest level, at least 64)",
    "--cudagraph-capture-sizes": "spec.workload.concurrency",
    "--max-cudagraph-capture-size": "spec.workload.concurrency",
    "--compilation-config": "spec.workload.concurrency",
    "--optimization-level": "spec.workload.concurrency",
    "-O": "spec.workload.concurrency",
    "--host": _PORT,
    "--port": _PORT,
    "--uds": _PORT,
    "--root-path": "nothing: the operator's probes need the paths as they are",
    "--ssl-keyfile": _PROXY,
    "--ssl-certfile": _PROXY,
    "--api-key": _PROXY,
    "--shutdown-timeout": "spec.serving.rollout.drainSeconds",
    "--config": "spec.engine.extraArgs, each flag by itself",
    "--data-parallel-size": "spec.serving.replicas",
    "--pipeline-parallel-size": "spec.hardware.gpusPerReplica",
    "--nnodes": _DEPLOYMENT,
    "--headless": _HTTP,
    "--grpc": _HTTP,
    "--disable-log-stats": "nothing: acceptance is read from the engine's metrics",
}


def _reserved() -> dict[str, str]:
    """Return the owned flags, each followed by every other spelling that a checked release has for it."""
    result: dict[str, str] = {}
    for owned, instead in _OWNED.items():
        found = [release.flags[owned].names for release in checked_releases() if owned in release.flags]
        others = {name for names in found for name in names if not name.startswith("--no-")} - {owned}
        result |= dict.fromkeys((owned, *sorted(others)), instead)
    return result


#: Flags that `engine.extraArgs` may not hold, in every spelling, and what a user sets instead.
RESERVED_FLAGS: dict[str, str] = _reserved()

#: May be set, but not to `dummy`: nothing that serves has random weights.
LOAD_FORMAT = "--load-format"

_VERSION_TAG = re.compile(r"^v?(\d+)\.(\d+)\.(\d+)$")


def resolve_engine(model: SpeculativeModel, incumbent: Candidate | None, settings: Settings) -> EngineChoice:
    """Return the engine that the model's candidates run.

    Raises `InvalidModelError`: EngineVersionUnknown, EngineUnsupported, or for `engine.extraArgs` ReservedFlag,
    UnknownFlag, InvalidFlagValue and UnsupportedFlag. What serves already is never refused for its version.
    """
    engine = model.spec.engine
    check_extra_args(engine.extra_args)
    with_drafter = model.spec.drafter is not None
    if engine.image is None and engine.version is None and incumbent is not None:
        choice = EngineChoice(image=incumbent.engine_image, version=incumbent.engine_version)
        release = release_for(choice.version)
        if release is not None:
            check_flags(release, choice.version, engine.extra_args, with_drafter=with_drafter)
        return choice
    image = engine.image or (incumbent.engine_image if incumbent else settings.engine_image)
    version = engine.version or version_of(image)
    if version is None:
        message = (
            f"cannot tell vLLM's version from the tag of image {image!r}: set spec.engine.version, for example "
            f"{version_of(settings.engine_image) or checked_releases()[-1].version}"
        )
        raise InvalidModelError("EngineVersionUnknown", message)
    release = release_for(version)
    if release is None:
        raise InvalidModelError("EngineUnsupported", _unsupported(version))
    check_flags(release, version, engine.extra_args, with_drafter=with_drafter)
    return EngineChoice(image=image, version=version)


def _unsupported(version: str) -> str:
    """Return why a version is not claimed and what to do, with every release that is."""
    checked = ", ".join(release.version for release in checked_releases())
    nearest = nearest_release(version).version
    return (
        f"engine {version}: no vLLM of that minor release was checked, so its flags are not known here. Use an image "
        f"of a checked release ({checked}; any patch of these minors); if yours is built from one, say so with "
        f"spec.engine.version, for example {nearest}; or wait for an operator that has checked {version}"
    )


def version_of(image: str) -> str | None:
    """Return X.Y.Z of an image reference whose tag is vX.Y.Z or X.Y.Z, else None."""
    name = image.partition("@")[0].rpartition("/")[2]
    found = _VERSION_TAG.match(name.partition(":")[2])
    return ".".join(found.groups()) if found else None


def check_extra_args(extra_args: Sequence[str]) -> None:
    """Raise `InvalidModelError` (ReservedFlag) when an argument is a flag that the operator owns.

    vLLM reads `--flag=value`, `--flag value`, `--flag_name` for `--flag-name`, `--flag.member value` for JSON flags
    and -O3 for -O 3.
    """
    for index, argument in enumerate(extra_args):
        if not argument.startswith("-"):
            continue
        flag = spelling(argument).flag
        instead = RESERVED_FLAGS.get(flag) or RESERVED_FLAGS.get(f"--{flag.removeprefix('--no-')}")
        if instead is not None:
            raise _owned(index, argument, instead)
        following = extra_args[index + 1] if index + 1 < len(extra_args) else ""
        if flag == LOAD_FORMAT and "dummy" in (argument.partition("=")[2], following):
            message = (
                f"spec.engine.extraArgs[{index}]: {argument!r} would serve random weights: leave it out; "
                "`specmodel try --load-format dummy` measures speed with them"
            )
            raise InvalidModelError("ReservedFlag", message)


def check_flags(release: Release, version: str, extra_args: Sequence[str], *, with_drafter: bool) -> None:
    """Raise `InvalidModelError` for the first argument that the release does not take, or not with a drafter.

    An abbreviation that only flags of the operator's complete is ReservedFlag, every other is UnknownFlag.
    """
    for index, argument in enumerate(extra_args):
        if not is_flag(argument):
            continue
        flag, found = owner_of(release, argument)
        full = completions(release, found.flag) if flag is None else [flag.name]
        if full and all(name in RESERVED_FLAGS for name in full):
            raise _owned(index, argument, RESERVED_FLAGS[full[0]])
    wrong = next(iter(faults(release, extra_args, with_drafter=with_drafter)), None)
    if wrong is None:
        return
    stands_for = "" if version == release.version else f" (engine {version} is taken for vLLM {release.version})"
    raise InvalidModelError(wrong.kind, f"spec.engine.extraArgs[{wrong.index}]: {wrong.message}{stands_for}")


def _owned(index: int, argument: str, instead: str) -> InvalidModelError:
    message = f"spec.engine.extraArgs[{index}]: {argument!r} is a flag that the operator owns: use {instead}"
    return InvalidModelError("ReservedFlag", message)
