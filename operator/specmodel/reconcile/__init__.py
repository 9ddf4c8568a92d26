"""In which order: plan the difference, apply it through a port, report honestly. Knows no Kubernetes client."""
