"""devhost: one process per Kubernetes node for every special device of that node."""

__version__ = "0.1.0"
