"""Who holds GPUs, what the budget leaves, and where replicas would fit. Arithmetic only; decides nothing.

    budget ──minus── held (pods of all servers, terminating ones too, and pods still to be made) ──► what may be added

GPUs of a pod are held until the pod is gone, not until its deletion was asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from specmodel.domain.candidate import Candidate
from specmodel.domain.observation import Observation, Pod, Server


def committed(server: Server) -> int:
    """Return the GPUs that a server holds or is about to: terminating pods, and the wanted or live ones."""
    terminating = sum(pod.gpus for pod in server.pods if pod.is_terminating)
    live = sum(pod.gpus for pod in server.pods if not pod.is_terminating)
    wanted = 0 if server.is_being_deleted else server.replicas * gpus_per_replica(server)
    return terminating + max(live, wanted)


def gpus_per_replica(server: Server) -> int:
    """Return GPUs per replica by the server's candidate, else by its pods."""
    if server.candidate is not None:
        return server.candidate.gpus_per_replica
    return max((pod.gpus for pod in server.pods), default=0)


def held(observation: Observation) -> int:
    """Return the GPUs that all of the model's pods hold or are about to."""
    return sum(committed(server) for server in observation.servers) + sum(p.gpus for p in observation.stray_pods)


def _pods(observation: Observation) -> Iterable[tuple[str, Pod]]:
    for server in observation.servers:
        for pod in server.pods:
            yield server.name, pod
    for pod in observation.stray_pods:
        yield "", pod


def room(observation: Observation, *, without: Collection[str] = ()) -> dict[str, int]:
    """Return free GPUs by node, as if the servers named in `without` were gone."""
    rooms = {node.name: node.free for node in observation.supply.nodes}
    for server, pod in _pods(observation):
        if server in without and pod.node in rooms:
            rooms[pod.node] += pod.gpus
    return rooms


def waiting_pods(observation: Observation, *, without: Collection[str] = ()) -> list[int]:
    """Return GPUs of each pod that has no node yet or is still to be made, largest first."""
    sizes: list[int] = []
    for server in observation.servers:
        if server.name in without:
            continue
        live = [pod for pod in server.pods if pod.is_active]
        sizes += [pod.gpus for pod in live if pod.node is None]
        if not server.is_being_deleted:
            sizes += [gpus_per_replica(server)] * max(0, server.replicas - len(live))
    return sorted((size for size in sizes if size), reverse=True)


def fits(observation: Observation, gpus: int, replicas: int, *, without: Collection[str] = ()) -> bool:
    """Return whether that many more replicas find nodes, after the pods that already wait; True when unknown."""
    if not observation.supply.is_known:
        return True
    rooms = room(observation, without=without)
    wanted = [*waiting_pods(observation, without=without), *([gpus] * replicas)]
    return all(_take(rooms, size) for size in wanted)


def _take(rooms: dict[str, int], size: int) -> bool:
    """Take a pod's GPUs from the node that it fills best."""
    places = sorted((free, name) for name, free in rooms.items() if free >= size)
    if not places:
        return False
    rooms[places[0][1]] -= size
    return True


def never_fit(observation: Observation, candidates: Iterable[Candidate]) -> Mapping[str, str]:
    """Return, by digest, candidates that fit no node even if all of the model's own pods were gone, each with why.

    Empty when supply is unknown, and when no candidate fits: then there is nothing to go on with meanwhile.
    """
    supply = observation.supply
    offered = list(candidates)
    if not supply.is_known:
        return {}
    everyone = {"", *(server.name for server in observation.servers)}
    largest = max(room(observation, without=everyone).values(), default=0)
    refused = [candidate for candidate in offered if candidate.gpus_per_replica > largest]
    if len(refused) == len(offered):
        return {}
    return {
        candidate.digest: (
            f"{candidate.shape} wants {candidate.gpus_per_replica} GPUs on one node; "
            f"the node with most has {largest} for it ({supply_in_words(observation)})"
        )
        for candidate in refused
    }


def no_match_in_words(observation: Observation, candidate: Candidate) -> str:
    """Return why no node can host a candidate's pods: nobody has its products, or what keeps pods off those who do."""
    supply = observation.supply
    present = [product for product in candidate.gpu_products if product in supply.products_seen]
    if not present:
        return f"No node offers {', '.join(candidate.gpu_products)}; {supply_in_words(observation)}."
    names = ", ".join(present)
    count = sum(1 for product in supply.products_ready if product in present)
    if not count:
        return (
            f"No node can run pods on {names}: the nodes that have it are not Ready, are cordoned, or share or cut "
            "their GPUs. Make one Ready, uncordon one, or let one offer whole GPUs."
        )
    nodes = f"the {count} nodes that offer" if count > 1 else "the 1 node that offers"
    selector = ", ".join(f"{key}: {value}" for key, value in candidate.placement.node_selector)
    if not selector:
        return f"Taints keep the pods off {nodes} {names}: add hardware.tolerations, or remove the taints."
    return (
        f"hardware.nodeSelector {{{selector}}} or taints keep the pods off {nodes} {names}: correct "
        "hardware.nodeSelector or label the nodes to match; for taints, add hardware.tolerations."
    )


def supply_in_words(observation: Observation) -> str:
    """Return what is free and which products were seen, for messages."""
    supply = observation.supply
    if not supply.is_known:
        return "free GPUs are unknown: the operator may not read nodes"
    seen = ", ".join(supply.products_seen) or "none"
    nodes = f"{len(supply.nodes)} node" + ("s" if len(supply.nodes) != 1 else "")
    return f"{supply.free} free of {sum(node.allocatable for node in supply.nodes)} on {nodes}; products seen: {seen}"
