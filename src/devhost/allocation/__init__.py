"""Handing out devices: token checks, the backend's answer, direct or CDI injection, who holds what.

Import from here: ``allocator``, ``injection``, ``inventory``, ``ledger``.
May import: ``config`` and every package below it.
"""
