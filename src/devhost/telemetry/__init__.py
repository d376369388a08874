"""What operators see of a running host: metrics, status and page.

Nothing here knows the host: it receives values, and callables for what it shows.

Import from here: ``metrics``, ``document``, ``status``, ``ask``, ``page``.
May import: ``runtime`` and ``backend``.
"""
