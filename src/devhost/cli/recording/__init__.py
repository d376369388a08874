"""Records what backends read on a machine as a tree of files that can be used as ``--root``.

It runs the backends like ``devhost discover``, traces the paths that they access, and copies these files. It
needs no knowledge of hardware, so third-party backends are recorded as well. Alternatives that were rejected:

- copying all of sysfs: tens of thousands of files per machine, and reading some of them has side effects;
- an intermediate file system: needs FUSE or root, which a user with a bug to report may not have;
- tracing system calls: needs a tracer, which may be missing or forbidden, as in containers.

Tracing in the process needs no privileges, but cannot see a library that reads from C. Therefore each
recording is verified: the backends run again on the tree. If they now take another path than on the machine
(files instead of a library that works only there), the missing files are copied from the machine, until
nothing is missing. Finally the devices are compared with those of the machine, and each difference is
reported.

Contents are copied right after a run, not during it: a file that changes in between is recorded with its
later content, and a file at which a backend hangs is not read a second time.
"""
