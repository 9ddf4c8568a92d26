"""Scenarios on a real cluster: real API server, kubelet, pods, Services and Jobs; only the GPUs are not there."""
