"""A Kubernetes cluster in separate namespaces: real control plane, kubelets and runtimes."""
