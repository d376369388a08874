"""Dynamic Resource Allocation: ResourceSlices of the same plan, and claims that the kubelet prepares.

Import from here: nothing, unless the configuration has ``dra:``; then ``publisher``, ``prepare``,
``server`` and ``kube``. The process imports this package only in that case.
May import: ``allocation`` and every package below it; never ``kubelet``.
"""
