"""``devhost cordon``, ``uncordon`` and ``drain``: devices are taken out of service by files, see
:mod:`devhost.discovery.maintenance`."""
