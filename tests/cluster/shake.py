#!/usr/bin/env python3
"""Shakes the cluster: kills `up` and `down` at random moments and sees whether the next ones put everything right.

It compares the machine before and after: processes, interfaces, routes, rules, mounts, cgroups, folders. It uses a
cluster of its own name and leaves others alone. Run as root: `python3 tests/cluster/shake.py --times 10`.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

NAME = "shake"
PROGRAM = str(Path(__file__).resolve().parent / "cluster.py")
LONGEST_SECONDS = 12.0
"""`up` takes about this long: later kills would come after its end."""
SETTLE_SECONDS = 10.0


def picture() -> dict[str, set[str]]:
    """Return what a cluster may leave on this machine, in words that two moments can be compared by."""

    def lines(*command: str) -> set[str]:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        return {" ".join(line.split()) for line in done.stdout.splitlines()}

    processes = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if NAME in words and PROGRAM not in words and "shake.py" not in words:
                processes.add(words)
    cgroups = Path("/sys/fs/cgroup").glob(f"**/*{NAME}*")
    return {
        "processes": processes,
        "interfaces": {line.split("@")[0] for line in lines("ip", "-o", "link", "show")},
        "routes": lines("ip", "route", "show", "table", "all"),
        "mounts": set(Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()),
        "cgroups": {str(each) for each in cgroups},
        "rules": lines("iptables-save"),
        "folders": {
            str(each) for top in ("/run", "/var/lib", "/var/log", "/run/specmodel", "/var/lib/specmodel")
            if Path(top).exists() for each in Path(top).iterdir() if each.name != "specmodel"
        },
    }  # fmt: skip


def differences(before: dict[str, set[str]]) -> list[str]:
    """Return what is there now and was not, after giving the kernel a moment to take interfaces away."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        after = picture()
        found = [f"{kind}: {each}" for kind in before for each in sorted(after[kind] - before[kind])]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.3)


def run(command: str, *, kill_after: float | None = None, how: int = signal.SIGKILL) -> int | None:
    """Run a command of the cluster and return its exit code, or None when it was killed."""
    child = subprocess.Popen(
        [sys.executable, PROGRAM, "--name", NAME, command], stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return child.wait(timeout=kill_after)
    except subprocess.TimeoutExpired:
        # Of one process alone, as the kernel or a person would: what it started is not told.
        os.kill(child.pid, how)
        child.wait()
        return None


def main() -> int:
    """Shake, and return 1 when something was not put right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)  # noqa: S311 - moments, not secrets
    run("down")
    before = picture()
    failures = 0
    for turn in range(asked.times):
        victim, how = chance.choice(["up", "up", "down"]), chance.choice([signal.SIGKILL, signal.SIGINT])
        after = chance.uniform(0, LONGEST_SECONDS if victim == "up" else 0.4)
        if victim == "down":
            run("up")
        ended = run(victim, kill_after=after, how=how)
        story = f"{victim} {'ended' if ended is not None else signal.Signals(how).name} after {after:.2f}s"
        healing = chance.choice(["up", "down"])
        wrong = [f"{healing} failed"] if run(healing) != 0 else []
        if healing == "up" and run("status") != 0:
            wrong.append("status is not well")
        if healing == "up" and run("down") != 0:
            wrong.append("down failed")
        wrong += differences(before)
        failures += bool(wrong)
        print(f"{turn + 1:3}: {story}, then {healing}: {'; '.join(wrong) or 'all is well'}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
