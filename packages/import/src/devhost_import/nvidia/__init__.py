"""Converts configurations of the NVIDIA device plugin and of the GPU operator."""
