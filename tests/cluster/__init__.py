"""A real Kubernetes cluster for tests and the demo, on this machine and nothing else."""
