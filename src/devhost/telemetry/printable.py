"""Text from devices, drivers and plugins, made safe for one line of a log or a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with every character that is not seen as itself written as ``\\n``, ``\\x1b``, ``\\u202e`` …

    A device's attribute is whatever its firmware says; it must not be able to forge a log line, steer a
    terminal, turn the direction of what stands beside it, or look like another one's. What is seen goes by
    Unicode's categories, as ``str.isprintable`` has them: no control or format character (Cc, Cf), no line
    end of any script (Zl, Zp), no blank but the ordinary one (Zs), nothing whose look is not settled (Co, Cn)
    and no byte that was not UTF-8, as Python keeps it (Cs), for no stream could encode it.

    The joiners that some scripts and emoji are written with (U+200C, U+200D) are format characters as well:
    with them written out a word stays legible, and two names that differ in them can be told apart.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
