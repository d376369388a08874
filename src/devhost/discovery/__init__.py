"""Running backends: catalog, threads, scans, probes, health, validation and kernel events.

Import from here: ``catalog``, ``manager``, ``scanner``, ``uevents``, ``observers``, ``reconciler``.
May import: ``planning`` and every package below it.
"""
