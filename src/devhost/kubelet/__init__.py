"""The device plugin API v1beta1: registration, the servers, and the podresources client.

Import from here: ``registration``, ``kubelet_socket``, ``podresources_poller``, ``rivals``,
``self_check``, ``timing``; the protocols from ``api``.
May import: ``allocation`` and every package below it.
"""
