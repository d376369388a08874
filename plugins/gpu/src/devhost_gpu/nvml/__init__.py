"""NVIDIA's management library: a program that uses it, and the side of the backend that asks that program."""
