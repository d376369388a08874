"""``make gpu``: this backend on a machine with a real NVIDIA GPU."""
