"""devhost backend for any device node that udev can describe."""
