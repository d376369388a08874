"""What hooks of plugins do with a device between two containers.

Import from here: ``preparation``.
"""
