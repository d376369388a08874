"""Text from hardware, firmware and third-party code, as devhost shows it and hands it out."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with every character that does not print escaped as ``\\n``, ``\\x1b``, ``\\u202e`` …

    Attributes of a device come from its firmware. They must not be able to forge a log line, control a
    terminal, change the direction of the text around them, or look like another attribute. The decision
    follows Unicode's categories, as in ``str.isprintable``: escaped are control and format characters (Cc,
    Cf), line and paragraph separators (Zl, Zp), every space but the ordinary one (Zs), private and unassigned
    characters (Co, Cn), and bytes that are not UTF-8, which Python keeps as surrogates (Cs) and no stream can
    encode.

    The joiners in some scripts and emoji (U+200C, U+200D) are format characters as well: if they are escaped
    a word stays legible, and two names that differ only in them can be distinguished.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
