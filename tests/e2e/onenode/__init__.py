"""A Kubernetes cluster of one node in namespaces of its own: real control plane, kubelet and runtime."""
