"""Makes the image of the DaemonSet without a daemon or a registry, and proves that it runs: docs/image.md."""
