"""Programming, where a resource asks for it: a bitstream of the node's own into the region a container gets.

It happens at PreStartContainer, through the kernel's interface, and never into a region that anybody else
uses. devhost opens no node itself: :mod:`.child` does, in a process of its own. All but the words of the
configuration is imported by the first container that wants it.
"""
