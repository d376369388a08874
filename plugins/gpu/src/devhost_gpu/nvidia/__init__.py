"""NVIDIA GPUs and MIG instances: cards, what containers get, health, CDI names."""
