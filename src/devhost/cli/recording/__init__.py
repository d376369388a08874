"""Records what backends read of a machine as a tree of files that ``--root`` takes for the machine.

It lets the backends look, as ``devhost discover`` does, watches them, and copies what they looked at. So it
knows nothing of hardware, and a stranger's backend is recorded as well as an own one. Weighed against:

- copying all of sysfs: tens of thousands of files a machine, and some of them do things when they are read;
- a file system in between: needs FUSE or root, which whoever meets a bug may not have;
- tracing system calls: needs a tracer that may be missing or forbidden, as in containers.

Watching in the process itself needs nothing, and cannot see a library that reads from C. So a recording is
not trusted but rehearsed: the backends look again, at the tree. Where they now take another way than on the
machine (files instead of a library that works only there), what they miss is fetched from the machine, until
nothing is missing. The devices they find at last are compared with the machine's; each difference is told.

Contents are copied right after a look, not during it: a file that changes in between is recorded as it is
then, and a file that hangs is not read a second time.
"""

from __future__ import annotations

from .manifest import CONFIGURATION, MANIFEST, Recording
from .recorder import record

__all__ = ["CONFIGURATION", "MANIFEST", "Recording", "record"]
