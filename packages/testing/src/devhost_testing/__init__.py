"""The public test kit for backend authors: simulated kubelets, machines in files, whole nodes.

Import from here: its modules; ``docs/backends/testing.md`` lists them.
May import: every package below ``cli``.
"""
