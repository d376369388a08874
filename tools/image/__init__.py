"""Builds the image of the DaemonSet without a daemon or a registry, and tests that it runs: docs/image.md."""
