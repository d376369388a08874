"""A Kubernetes cluster of one node in separate namespaces: real control plane, kubelet and runtime."""
