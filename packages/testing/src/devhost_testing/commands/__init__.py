"""The commands ``devhost kubelet`` and ``devhost demo``."""
