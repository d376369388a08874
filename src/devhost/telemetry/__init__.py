"""What operators see of a running host: its log, metrics, HTTP, status, page and systemd notifications.

Nothing here knows the host: it receives values, and callables for what it shows.

Import from here: ``log``, ``metrics``, ``document``, ``http``, ``status``, ``systemd``, ``watchdog``.
May import: ``backend``.
"""
