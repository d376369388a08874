"""The process: composition, reload, one service per resource, problems and status.

Import from here: ``daemon.run``, :class:`~devhost.host.host.Host`, ``scan_once`` for commands
without a kubelet.
May import: ``kubelet`` and every package below it.
"""
