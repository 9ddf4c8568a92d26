"""`make demo`: the main job, watched by a person.

Installs the operator, applies `examples/commerce-agent.yaml`, tells what happens as the object's own conditions tell
it, then tightens the SLA of the same model while requests stream through its Service, and prints what was decided
beside what the engine's table says. Reads the cluster as a user would; decides nothing itself.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.e2e.rehearsal import install_operator
from tests.e2e.traffic import start_traffic
from tests.e2e.world import EXAMPLES, Json, World, condition, is_settled

BEGAN = time.monotonic()
DEADLINE_SECONDS = 900


def say(text: str) -> None:
    """Print one line with the time since the start."""
    elapsed = int(time.monotonic() - BEGAN)
    print(f"[{elapsed // 60:02d}:{elapsed % 60:02d}] {text}", flush=True)


def show(world: World, *arguments: str) -> None:
    """Print a kubectl command and what it answers."""
    print(f"\n$ kubectl {' '.join(arguments)}")
    print(world.kubectl(*arguments).rstrip(), flush=True)


def watch(world: World, name: str, is_done: Callable[[Json], bool]) -> Json:
    """Print each new word of a model's conditions until it is done; exit with the picture at the deadline."""
    said = ""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        model = world.get("specm", name)
        ready, progressing = condition(model, "Ready"), condition(model, "Progressing")
        words = f"Ready={ready.get('status', '-')} {ready.get('reason', '')}: {ready.get('message', '')}"
        if progressing.get("reason") not in (None, ready.get("reason"), "Serving"):
            words += f" | {progressing['reason']}: {progressing['message']}"
        if ready and words != said:
            say(words)
            said = words
        if is_done(model):
            return model
        time.sleep(1)
    print(world.picture())
    sys.exit(f"the model did not settle within {DEADLINE_SECONDS} s; the picture above is what there was")


def table(model: Json) -> None:
    """Print the candidates as judged."""
    rows = [("candidate", "verdict", "carries", "req/s", "P50 ms", "P99 ms", "accepted", "why")]
    for one in model["status"]["candidates"]:
        gpus = one["gpusPerReplica"]
        label = f"{gpus} GPU{'s' if gpus > 1 else ''}"
        label += f" {one['weights']}" if one["weights"] != "None" else ""
        label += f" γ={one['speculativeTokens']}" if one["speculativeTokens"] else " no drafter"
        accepted = one.get("acceptanceRatePercent")
        rows.append(
            (
                label, one["verdict"], str(one.get("capacity", "-")), one.get("requestsPerSecond", "-"),
                str(one.get("p50Milliseconds", "-")), str(one.get("p99Milliseconds", "-")),
                "-" if accepted is None else f"{accepted} %", one["reason"],
            )
        )  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    print()
    for row in rows:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    print()


def act(world: World, manifest: Path, name: str) -> Json:
    """Apply a manifest and watch it to its end."""
    print(f"\n$ kubectl apply -f {manifest.relative_to(EXAMPLES.parent)}")
    world.apply(manifest)
    model = watch(world, name, is_settled)
    table(model)
    say(model["status"]["decision"]["message"])
    return model


def main() -> None:
    """Run the demo that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", nargs="?", default="sla", choices=["sla", "tight", "fp8"])
    which = parser.parse_args().which
    world = World(Path(os.environ["KUBECONFIG"]), os.environ.get("KUBECTL", "kubectl"))
    say("installing the operator from charts/specmodel")
    try:
        install_operator(world)
    except AssertionError as refusal:
        sys.exit(f"demo: {refusal}")
    if which == "fp8":
        act(world, EXAMPLES / "commerce-agent-fp8.yaml", "commerce-agent-fp8")
    elif which == "tight":
        act(world, EXAMPLES / "commerce-agent-tight-sla.yaml", "commerce-agent")
    else:
        act(world, EXAMPLES / "commerce-agent.yaml", "commerce-agent")
        show(world, "get", "specm")
        say("now the same model with a tighter SLA (P99 ≤ 1100 ms), while requests stream through its Service")
        traffic = start_traffic(world, "commerce-agent", "commerce-agent")
        act(world, EXAMPLES / "commerce-agent-tight-sla.yaml", "commerce-agent")
        counts = traffic.finish()
        say(f"{counts['total']} requests were sent meanwhile, {counts['failed']} failed")
        for failure in counts["failures"]:
            say(f"  failed: {failure}")
    show(world, "get", "specm")
    show(world, "get", "bench")
    show(world, "describe", "specm")


if __name__ == "__main__":
    main()
