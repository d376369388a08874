"""``devhost release`` and ``devhost resume``: whether the running host may keep a driver in use."""
