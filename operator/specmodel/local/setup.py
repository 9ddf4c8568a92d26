"""From arguments and manifest to what is measured: candidates, devices, engine, files, and the results folder."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from specmodel import __version__
from specmodel.api.model import SpeculativeModel
from specmodel.bench.prompts import PromptsError, read_prompts
from specmodel.cli.manifest import read_written
from specmodel.cli.reading import InputError
from specmodel.domain.candidate import Candidate, EngineChoice, digest_of, enumerate_candidates
from specmodel.domain.engine import resolve_engine
from specmodel.domain.measurement import workload_digest
from specmodel.domain.settings import Settings
from specmodel.engines.releases import checked_releases, release_for
from specmodel.local.devices import Machine, find_machine
from specmodel.local.installed import installed_version
from specmodel.local.session import Setup
from specmodel.local.store import Store
from specmodel.local.terminal import tell
from specmodel.local.weights import fingerprint
from specmodel.manifests.engine_arguments import CLAIM, HUB, Paths

#: In the environment of candidates with pretended acceptance: such figures never pass for those of a real drafter.
SYNTHETIC = "SPECMODEL_SYNTHETIC_ACCEPTANCE"


def set_up(options: argparse.Namespace) -> tuple[Setup, dict[str, Any]]:
    """Return what to measure. Raises `InputError` and `InvalidModelError`."""
    model, written = read_written(options.file)
    machine = find_machine(options.devices)
    try:
        command = tuple(shlex.split(options.vllm))
    except ValueError as error:
        raise InputError(f"--vllm: {options.vllm!r} is no command: {error}") from error
    version, build = installed_version(command)
    candidates = _candidates(model, machine, version, options)
    drafted = sorted({one.speculative_tokens for one in candidates} - {0})
    # Rates of steps to come may stand beside those of this one: they are part of the folder's conditions.
    lacking = sorted(set(options.synthetic_acceptance) - set(drafted))
    if lacking and len(lacking) == len(options.synthetic_acceptance):
        raise InputError(
            f"--synthetic-acceptance: no candidate here drafts {', '.join(map(str, lacking))} tokens; "
            f"{options.file}: spec.drafter.speculativeTokens: {', '.join(map(str, drafted)) or 'none'}"
        )
    if options.schedule and not drafted:
        raise InputError(f"--schedule: no candidate drafts; {options.file} names no drafter")
    prompts, digest = _prompts(model, options.prompts)
    store = Store(folder=options.results or Path("specmodel-try") / model.name)
    setup = Setup(
        model=model,
        candidates=candidates,
        workload=workload_digest(model.spec.workload, digest),
        machine=machine,
        store=store,
        engine_command=command,
        paths=_paths(model, options),
        prompts=prompts,
        prompts_digest=digest,
        load_format=options.load_format,
        synthetic_acceptance=options.synthetic_acceptance,
        schedule=options.schedule,
        side_by_side=not options.one_at_a_time and not machine.is_cpu,
    )
    store.open(
        {
            "product": machine.product,
            "driver": machine.driver,
            "cores": machine.cores or None,
            "engine": build,
            "model": fingerprint(setup.paths.model),
            "drafter": fingerprint(setup.paths.drafter) if setup.paths.drafter is not None else None,
            "instrument": __version__,
            "loadFormat": options.load_format or "auto",
            "syntheticAcceptancePercent": {str(g): round(100 * r, 6) for g, r in options.synthetic_acceptance.items()},
            "schedule": [list(step) for step in options.schedule],
            "command": ["specmodel", "try", *sys.argv[2:]],
        }
    )
    return setup, written


def _candidates(
    model: SpeculativeModel, machine: Machine, version: str, options: argparse.Namespace
) -> tuple[Candidate, ...]:
    """Return the operator's own candidates, with this machine's engine. Raises `InputError`, `InvalidModelError`."""
    settings = Settings()
    chosen = resolve_engine(model, None, settings)
    # The flags must be those of the engine that is here.
    engine = model.spec.engine.model_copy(update={"version": version})
    here = model.model_copy(update={"spec": model.spec.model_copy(update={"engine": engine})})
    if release_for(version) is None:
        checked = ", ".join(release.version for release in checked_releases())
        raise InputError(
            f"--vllm: this is vLLM {version}, and no release of that minor was checked, so its flags are not known: "
            f"name one of {checked}, or any patch of these minors"
        )
    image = resolve_engine(here, None, settings).image
    if chosen.version != version:
        tell(
            f"specmodel try: a cluster would serve this manifest with vLLM {chosen.version}; this machine has "
            f"{version}, and figures are of that"
        )
    candidates = enumerate_candidates(model, EngineChoice(image=image, version=version), settings)
    products = candidates[0].gpu_products
    if not machine.is_cpu and machine.product not in products:
        raise InputError(
            f"{options.file}: spec.hardware.gpuProducts: {', '.join(products)} are allowed, this machine has "
            f"{machine.product}: set gpuProducts: [{machine.product}] to measure on it"
        )
    most = max(candidate.gpus_per_replica for candidate in candidates)
    if most > len(machine.devices):
        here_are = f"{len(machine.devices)} GPU{'s' * (len(machine.devices) > 1)}"
        tell(f"specmodel try: candidates with more than {here_are} are left out: this machine has no more")
        candidates = tuple(one for one in candidates if one.gpus_per_replica <= len(machine.devices))
    if not candidates:
        raise InputError(
            f"{options.file}: spec.hardware.gpusPerReplica: every candidate needs more GPUs than there are"
        )
    return tuple(_marked(one, options) for one in candidates)


def _marked(candidate: Candidate, options: argparse.Namespace) -> Candidate:
    """Return the candidate with what changes its figures in its digest: what only this command adds."""
    rate = options.synthetic_acceptance.get(candidate.speculative_tokens)
    if rate is not None:
        candidate = replace(candidate, env=(*candidate.env, (SYNTHETIC, f"{100 * rate:g}")))
    if options.schedule and candidate.speculative_tokens:
        steps = ",".join(f"{first}-{last}={tokens}" for first, last, tokens in options.schedule)
        candidate = replace(candidate, env=(*candidate.env, ("SPECMODEL_SCHEDULE", steps)))
    if options.load_format:
        candidate = replace(candidate, env=(*candidate.env, ("SPECMODEL_LOAD_FORMAT", options.load_format)))
    return candidate


def _prompts(model: SpeculativeModel, given: Path | None) -> tuple[Path, str | None]:
    wanted = model.spec.workload.dataset.prompts
    if wanted is None:
        if given is not None:
            raise InputError("--prompts: the manifest's workload.dataset is synthetic; set workload.dataset.prompts")
        return Path("/dev/null"), None
    if given is None:
        reference = wanted.config_map_ref
        raise InputError(f"--prompts: give the file that ConfigMap {reference.name} holds as {reference.key}")
    if given.exists() and not given.is_file():
        raise InputError(f"--prompts: {given} must be a file: it is read more than once")
    try:
        read_prompts(given)
        return given, digest_of(given.read_text(encoding="utf-8"))
    except PromptsError as error:
        raise InputError(f"{given}: {error}") from error
    except OSError as error:
        raise InputError(f"{given}: {error.strerror or error}") from error


def _paths(model: SpeculativeModel, options: argparse.Namespace) -> Paths:
    drafter = model.spec.drafter
    wanted = drafter.uri if drafter is not None else None
    return Paths(
        model=_path(options.model, model.spec.model.uri, "--model"),
        drafter=_path(options.drafter, wanted, "--drafter") if wanted is not None else None,
    )


def _path(given: str | None, uri: str, option: str) -> str:
    if given is not None:
        try:
            path = Path(given).expanduser().resolve()
        except RuntimeError as error:
            raise InputError(f"{option}: {given}: {error}") from error
        if not (path / "config.json").is_file():
            raise InputError(f"{option}: {given} holds no config.json; it must be the folder of a checkpoint")
        return str(path)
    if uri.startswith(CLAIM):
        raise InputError(f"{option}: the manifest's {uri} is a volume of a cluster: give the folder on this machine")
    return uri.removeprefix(HUB)
