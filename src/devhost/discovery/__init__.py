"""Running backends: catalog, scans, probes, health, validation and kernel events.

Import from here: ``catalog``, ``manager``, ``scanner``, ``uevents``, ``observers``.
May import: ``planning`` and every package below it.
"""
