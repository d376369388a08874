"""What operators see of a running host: its log, metrics, probes and status.

Nothing here knows the host. It is told what happened (``metrics``, ``log``) and given callables for
what it shows (``http``, ``status``).
"""
