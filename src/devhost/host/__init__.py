"""The process: composition, reload, one service per resource, problems and status.

Import from here: ``daemon.serve``, :class:`~devhost.host.host.Host`.
May import: ``kubelet`` and every package below it.
"""
