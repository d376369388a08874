"""The process: composition, reload, one service per resource, problems and status.

Import from here: ``daemon.run``, :class:`~devhost.host.host.Host`, ``survey`` for commands without a kubelet.
May import: ``kubelet`` and every package below it.
"""
