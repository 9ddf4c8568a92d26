"""A stream of requests through a stable Service, from a pod inside the cluster, counted one by one.

The pod runs until its standard input closes and then prints one line of JSON. Every request uses a connection of its
own, as most clients behind a Service do not know when an endpoint goes away. Counting begins after a first answer,
which is tried for: a node with two busy cores writes the rules of a new Service late, and that is not the operator's.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import Any

from tests.e2e.rehearsal import REPLAY_IMAGE
from tests.e2e.world import World

PROGRAM = r"""
import http.client, json, sys, threading, time
host, model, streams, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
stop, lock, total, failures = threading.Event(), threading.Lock(), 0, []
def one(timeout=30):
    c = http.client.HTTPConnection(host, 8000, timeout=timeout)
    try:
        body = {"model": model, "prompt": "hello", "max_tokens": 64, "temperature": 0, "ignore_eos": True}
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse(); body = r.read()
        if r.status != 200: raise RuntimeError(f"{r.status} {body[:120]!r}")
        if json.loads(body)["usage"]["completion_tokens"] != 64: raise RuntimeError("cut short")
    finally: c.close()
def work():
    global total
    while not stop.is_set():
        began = time.time()
        try: one(); bad = None
        except Exception as e: bad = f"{time.strftime('%H:%M:%S')} after {time.time()-began:.2f} s: {e!r}"
        with lock:
            total += 1
            if bad: failures.append(bad)
        time.sleep(0.2 if bad else pause)
for left in range(10, -1, -1):
    try: one(timeout=3); break
    except Exception as e:
        if not left: raise
        time.sleep(0.5)
threads = [threading.Thread(target=work) for _ in range(streams)]
[t.start() for t in threads]
print("started", flush=True)
sys.stdin.read()
stop.set(); [t.join() for t in threads]
print(json.dumps({"total": total, "failures": failures[:20], "failed": len(failures)}), flush=True)
"""


@dataclass(slots=True)
class Traffic:
    """Requests under way; `finish` stops them and returns {total, failed, failures}."""

    process: subprocess.Popen[str]

    def finish(self) -> dict[str, Any]:
        """Stop the stream, wait for what is in flight and return the counts."""
        out, errors = self.process.communicate(timeout=120)
        lines = [line for line in out.splitlines() if line.startswith("{")]
        assert lines, f"the traffic pod printed no count: {out!r} {errors!r}"
        counts: dict[str, Any] = json.loads(lines[-1])
        return counts


def start_traffic(world: World, service: str, model: str, *, streams: int = 2, pause: float = 0.0) -> Traffic:
    """Start a pod that sends requests to a Service of the world's namespace until `finish`.

    Each stream sends one after the other, with a pause in seconds between them.
    """
    process = subprocess.Popen(
        [
            world.kubectl_program, "--kubeconfig", str(world.kubeconfig), "-n", world.namespace,
            "run", "traffic", "--rm", "-i", "--quiet", "--restart=Never", f"--image={REPLAY_IMAGE}",
            "--image-pull-policy=IfNotPresent", "--command", "--",
            "python3", "-c", PROGRAM, service, model, str(streams), str(pause),
        ],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    world.wait_until(
        "the traffic pod runs",
        lambda: "started" in world.try_kubectl("logs", "traffic").stdout,
        seconds=60,
    )
    return Traffic(process)
