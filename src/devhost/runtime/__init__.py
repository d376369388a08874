"""What every package needs, without knowledge of devices: loops, threads, tasks, log, sockets, HTTP, systemd.

Import from here: every module but ``connections`` and ``outlet``.
May import: ``backend``.
"""
