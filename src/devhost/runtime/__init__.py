"""What every package needs and no device has a part in: loops, threads, tasks, log, sockets, HTTP, systemd.

Import from here: every module but ``connections`` and ``outlet``.
May import: ``backend``.
"""
