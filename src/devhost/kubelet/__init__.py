"""The device plugin API v1beta1: registration, the servers, and the podresources client.

Import from here: ``registration``, ``podresources_poller``, ``rivals``, ``preflight``; the protocols
from ``api``.
May import: ``allocation`` and every package below it.
"""
