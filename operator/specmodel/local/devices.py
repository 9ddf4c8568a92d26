"""Which GPUs this machine has, in the names that Kubernetes would give them; or a CPU in as many parts as asked for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from specmodel.cli.reading import InputError

#: `nvidia-smi` answers in a second or two; a driver that hangs is no reason to wait for ever.
ANSWER_SECONDS = 60
CPU = "CPU"
_CPU = re.compile(r"^cpu(?::([1-9][0-9]?))?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The devices that candidates may use, all of one product."""

    #: As in the label `nvidia.com/gpu.product`, or `CPU`.
    product: str
    #: Indices of GPUs as nvidia-smi counts them, or of parts of the CPU.
    devices: tuple[int, ...]
    #: GiB of one GPU, 0 for a CPU.
    memory_gib: float = 0.0
    driver: str = ""
    #: Cores of one part of a CPU, and those that this program may use.
    cores: int = 0
    cpus: tuple[int, ...] = ()

    @property
    def is_cpu(self) -> bool:
        """Whether there is no GPU in it."""
        return self.product == CPU

    def environment(self, devices: tuple[int, ...]) -> dict[str, str]:
        """Return the variables that keep an engine on these devices."""
        if not self.is_cpu:
            return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        parts = [",".join(map(str, self.cpus[device * self.cores : (device + 1) * self.cores])) for device in devices]
        return {"VLLM_CPU_OMP_THREADS_BIND": "|".join(parts)}


def find_machine(asked: str) -> Machine:
    """Return the machine for `auto`, `cpu`, `cpu:PARTS`, or GPU indices such as `0,1`. Raises `InputError`."""
    found = _CPU.match(asked)
    if found:
        return _cpu(int(found.group(1) or 1))
    if asked != "auto" and not re.fullmatch(r"\d+(,\d+)*", asked):
        raise InputError(f"--devices: {asked!r} must be auto, cpu, cpu:PARTS, or GPU indices such as 0,1")
    gpus = _gpus()
    wanted = _visible(gpus) if asked == "auto" else sorted({int(index) for index in asked.split(",")})
    lacking = [index for index in wanted if index not in gpus]
    if lacking:
        there = ", ".join(map(str, sorted(gpus)))
        raise InputError(f"--devices: there is no GPU {', '.join(map(str, lacking))}; nvidia-smi lists {there}")
    chosen = [gpus[index] for index in wanted]
    if divided := [index for index in wanted if gpus[index].is_divided]:
        raise InputError(
            f"--devices: GPU {', '.join(map(str, divided))} is divided by MIG: figures of a part are not those of a "
            "whole GPU; name others with --devices, or switch MIG off"
        )
    products = sorted({gpu.product for gpu in chosen})
    if len(products) > 1:
        raise InputError(f"--devices: candidates must be compared on one product; these are {', '.join(products)}")
    return Machine(
        product=products[0],
        devices=tuple(wanted),
        memory_gib=min(gpu.memory_gib for gpu in chosen),
        driver=chosen[0].driver,
    )


def _cpu(parts: int) -> Machine:
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    cores = len(cpus) // parts
    if not cores:
        raise InputError(f"--devices: cpu:{parts} asks for more parts than there are cores")
    return Machine(product=CPU, devices=tuple(range(parts)), cores=cores, cpus=cpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    product: str
    memory_gib: float
    driver: str
    uuid: str
    #: By MIG, into parts.
    is_divided: bool


def _visible(gpus: Mapping[int, _Gpu]) -> list[int]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves to this program: those of another user are not taken."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return sorted(gpus)
    found = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        named = [
            index
            for index, gpu in gpus.items()
            if part == str(index) or (part.startswith("GPU-") and gpu.uuid.startswith(part))
        ]
        if len(named) != 1:
            raise InputError(
                f"--devices: CUDA_VISIBLE_DEVICES is {text!r}, and {part!r} is no GPU that nvidia-smi lists; "
                "name indices with --devices"
            )
        found.add(named[0])
    if not found:
        raise InputError("--devices: CUDA_VISIBLE_DEVICES is empty, which leaves no GPU; --devices=cpu uses none")
    return sorted(found)


def _gpus() -> dict[int, _Gpu]:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise InputError("--devices: nvidia-smi is not on the PATH, so that no GPU is known; --devices=cpu uses none")
    query = "--query-gpu=index,name,memory.total,driver_version,uuid,mig.mode.current"
    try:
        done = subprocess.run(
            [program, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"--devices: nvidia-smi did not answer for {ANSWER_SECONDS} s") from error
    if done.returncode:
        raise InputError(f"--devices: nvidia-smi failed: {(done.stderr or done.stdout).strip()[:300]}")
    gpus: dict[int, _Gpu] = {}
    for line in done.stdout.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 6 or not re.fullmatch("[0-9]+", fields[0]):
            continue
        memory = float(fields[2]) / 1024 if re.fullmatch(r"[0-9]+(\.[0-9]+)?", fields[2]) else 0.0
        # As GPU feature discovery writes the label.
        gpus[int(fields[0])] = _Gpu(
            product=fields[1].replace(" ", "-"),
            memory_gib=memory,
            driver=fields[3],
            uuid=fields[4],
            is_divided=fields[5] == "Enabled",
        )
    if not gpus:
        raise InputError(f"--devices: nvidia-smi lists no GPU: {done.stdout.strip()[:200]!r}")
    return gpus
