"""What people and programs see of a host: log, problems, status, events of observers.

It follows what :mod:`devhost.host` decides (:mod:`.publication`), and decides nothing.
"""
