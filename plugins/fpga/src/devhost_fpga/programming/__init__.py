"""Programs a bitstream into the region that a container gets, if its resource asks for that.

This happens at PreStartContainer, through the kernel's interface, and never while another container uses the
region. devhost itself opens no node: :mod:`.child` does so in a separate process. The package is imported
when the first container needs it.
"""
