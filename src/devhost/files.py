"""Files that other programs read while we write them: whole or not at all, whatever happens in between."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def make_directory(path: Path) -> None:
    """Makes a directory that everybody may read, with those above it; one that is there stays as it is.

    Raises:
        OSError: it cannot be made.
    """
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o755)  # whatever the umask is: its readers may not be root


def replace_file(path: Path, data: bytes, part: str) -> None:
    """Makes a file hold ``data``, mode 0644. Who opens it meanwhile sees the old content or the new one.

    Args:
        part: what the unfinished file's name, which ends in ``.part``, begins with. It lies beside the
            finished one, so it must be a name that those who list the directory do not take for one.

    Raises:
        OSError: it cannot be written; the old file, if there is one, is untouched.
    """
    descriptor, unfinished = tempfile.mkstemp(".part", part, path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        os.replace(unfinished, path)  # noqa: PTH105 - the name mkstemp gave is a string
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)  # noqa: PTH108 - as above
        raise


def holds(path: Path, data: bytes) -> bool:
    """Whether a file holds just this, readable for everybody."""
    try:
        return path.read_bytes() == data and stat.S_IMODE(path.stat().st_mode) == 0o644
    except OSError:
        return False
