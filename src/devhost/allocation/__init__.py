"""Handing out devices: token checks, the backend's answer, direct or CDI injection, who holds what.

Import from here: ``allocations``, ``allocator``, ``injection``, ``inventory``.
May import: ``config`` and every package below it.
"""
