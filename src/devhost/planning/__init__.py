"""Pure decisions: which device goes to which resource, under which token, and which to prefer.

Import from here: ``plan``, ``settings``, ``tokens``, ``naming``, ``affinity``, ``give``.
May import: ``backend``.
"""
