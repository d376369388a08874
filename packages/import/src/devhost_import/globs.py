"""Globs of ``where``: made of regular expressions, and whether two may match one device node.

Some plugins let any number of resources have one node; devhost allows this only with ``shared``. In doubt the
answer is yes, which keeps what the plugin does.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from itertools import chain, combinations, islice, product
from typing import TypeVar

from devhost.config.diagnostics import shown

from .writing import Block, Written, given

MOST = 64  # globs for one expression
LONGEST = 256  # characters that a repetition with a number is written out to
LONGEST_RUN = 4  # repetitions of a class if * or + is not at the end of the expression
BOUNDED = f"devhost matches a repetition that is not at the end up to {LONGEST_RUN} times."

_BEGIN, _END, _ANY = "\x02", "\x03", "?*"  # anchors are characters that no name has
_PART = r"(?:\[!?\]?[^]]*\]|[^]\[])"
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": "\t\n\f\r "}
_PARTS = {"^": _BEGIN, r"\A": _BEGIN, "$": _END, r"\z": _END, ".": "?"}
_PARTS |= {rf"\{name}": f"[{body}]" for name, body in _CLASSES.items()}
_PARTS |= {rf"\{name.upper()}": f"[!{body}]" for name, body in _CLASSES.items()}
_TIMES = {"": (1, 1), "*": (0, -1), "+": (1, -1), "?": (0, 1)}
_TOKEN = re.compile(r"(?s)(\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|.)((?:[*+?]|\{\d+(?:,\d*)?\})?)\??")
_GROUP = re.compile(r"\((\?P?<\w+>|\?:)?([^()]*)\)(\?\??)?")  # without another one inside
# what is no group and no alternative: escaped, in a class, or where a repetition would come to be
_CHARACTER = re.compile(r"\\[()|]|\[\^?\]?(?:\\.|[^]\\])*?[()|]|[(|]\{")

T = TypeVar("T")


class Inexpressible(ValueError):
    """The expression is valid, but no globs are equivalent."""


class Invalid(ValueError):
    """It is not a regular expression."""


@dataclass(frozen=True, slots=True)
class Glob:
    """Matches what ``never`` does not match. ``is_bounded``: longer repetitions do not match."""

    text: str
    never: str = ""
    is_bounded: bool = False

    def block(self, attribute: str, start: str = "") -> Block:
        never = {attribute: start + self.never} if self.never else {}
        return {attribute: start + self.text, **given(**{"not": never})}


def of_expression(expression: str, *, whole: bool = False) -> list[Glob]:
    """The globs that together match what the expression matches, anywhere in the value or as a ``whole``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of [[:alpha:]], which Go supports
        try:
            re.compile(re.sub(r"\(\?P?<\w+>", "(", expression.replace(r"\z", "$")))
        except (re.error, OverflowError, RecursionError) as error:
            raise Invalid(f"{shown(expression)} is not a regular expression: {error}") from None
    if _CHARACTER.search(expression):
        raise Inexpressible("it has a bracket or | as a character")
    texts: list[str] = []
    for plain in few(_alternatives(expression)):
        parts = [_repeated(_part(token), times) for token, times in _TOKEN.findall(plain)]
        for one in map("".join, few(product(*parts))):
            before = "" if whole or one.startswith(_BEGIN) else _ANY
            after = "" if whole or one.endswith(_END) else _ANY
            texts.append(before + one.lstrip(_BEGIN).rstrip(_END) + after)
    return [*dict.fromkeys(few(chain.from_iterable(map(_globs, texts))))]


def few(every: Iterable[T]) -> list[T]:
    """All of them, of which there may be :data:`MOST`."""
    if len(found := [*islice(every, MOST + 1)]) > MOST:
        raise Inexpressible(f"it needs more than {MOST} globs")
    return found


def _alternatives(expression: str) -> Iterator[str]:
    """The expressions without groups and alternatives that together match the same."""
    waiting = [expression]
    while waiting:
        one = waiting.pop()
        if (group := _GROUP.search(one)) is None:
            yield from one.split("|")
            continue
        if group[2].startswith("?"):
            raise Inexpressible("it has a flag such as (?i)")
        if one[group.end() :].startswith(("*", "+", "{")):
            raise Inexpressible("it repeats a group")
        inside = [*([""] if group[3] else []), *group[2].split("|")]
        waiting += [f"{one[: group.start()]}{each}{one[group.end() :]}" for each in reversed(inside)]


def _part(token: str) -> str:
    if token in _PARTS:
        return _PARTS[token]
    if token[0] == "[" and len(token) > 1:
        negated = "!" if token[1] == "^" else ""
        body = re.sub(r"\\([dws.])", lambda one: _CLASSES.get(one[1], one[1]), token[1 + len(negated) : -1])
        if re.search(r"[]\[!^\\*?]", body):
            raise Inexpressible("it has a named class such as [[:alpha:]], or a special character in a class")
        return f"[{negated}{body}]"
    if len(token) == 2 and token[1].isalnum():
        raise Inexpressible(f"it has {token}")
    return f"[{token[-1]}]" if token[-1] in "*?[]" else token[-1]


def _repeated(part: str, times: str) -> list[str]:
    least, comma, most = times[1:-1].partition(",")
    low, high = _TIMES.get(times) or (int(least), int(most or -1) if comma else int(least))
    if max(low, high) > LONGEST:
        raise Inexpressible("it repeats something too often")
    return [part * count for count in range(low, high + 1)] if high >= 0 else [f"{part * low}{part}*"]


def _globs(text: str) -> Iterator[Glob]:
    """The globs of parts in order; none if an anchor is inside, where it never matches."""
    if _BEGIN in text or _END in text:
        return
    text = re.sub(rf"(?s)({_PART}\*)*\?\*({_PART}\*)*", _ANY, text)  # .* includes what is repeated beside it
    every = re.finditer(rf"(?s)({_PART})(\*?)", text)
    repeated = next((one for one in every if one[2] and one[0] != _ANY), None)
    if repeated is None:
        yield Glob(text.replace(_ANY, "*"))
        return
    before, part, after = text[: repeated.start()], repeated[1], text[repeated.end() :]
    if after or _ANY in before:
        for count in range(LONGEST_RUN + 1):
            yield from (replace(one, is_bounded=True) for one in _globs(before + part * count + after))
    else:
        others = f"[{part[2:]}" if part[:2] == "[!" else f"[!{part.strip('[]') or ']'}]"
        yield Glob(f"{before}*", f"{before}*{others}*")


USB = "/dev/bus/usb"  # the directory with the nodes of whole USB devices
DIRECTORIES = frozenset({  # names below /dev that are always directories
    "accel", "block", "bsg", "bus", "char", "cpu", "disk", "dma_heap", "dri", "dsa", "dvb", "iax", "net",
    "infiniband", "input", "mapper", "serial", "snd", "usb", "v4l", "vfio", "vhost", "vg"})  # fmt: skip
_OF_KERNEL = DIRECTORIES | {
    "fuse", "gpiomem", "hwrng", "kfd", "kvm", "loop-control", "nitro_enclaves", "ppp", "rfkill", "uhid",
    "uinput", "userfaultfd", "vchiq", "vcio", "vcsm-cma", "vhost-net", "vhost-vsock", "vsock", "watchdog",
}  # fmt: skip
_LINK = re.compile(r"(/dev/([^/]+)/by-[^/]+/)[^/]*")  # of udev's standard rules, and where such links lead:
_LINKS = {"serial": ["/dev/tty*"], "v4l": ["/dev/v*", "/dev/media*", "/dev/radio*"]}
_LINKS |= {name: [f"/dev/{name}/*"] for name in ("dri", "input", "snd")}
# a name without a number looks like a link from a custom udev rule, which leads to a node with one
_OWN_LINK = re.compile(rf"/dev/(?!({'|'.join(_OF_KERNEL)})$)[A-Za-z][A-Za-z_-]*")
_NUMBERED = re.compile(r"/dev/[^/]*[*?\[0-9][^/]*")
_DISKS = ("sd", "vd", "xvd", "hd", "sr", "nvme", "mmcblk", "loop", "nbd", "md", "dm-")
_DISK = re.compile(rf"(?:.*/)?({'|'.join(_DISKS)})[^/]*")  # not offered together with its partitions
SIGN = re.compile(r"[*?\[]")
_start = lru_cache(maxsize=1 << 16)(partial(SIGN.split, maxsplit=1))  # what is before the first sign

# devices with parts that are devices: USB devices with their serial ports, disks with partitions
_WHOLE: Sequence[Block] = [
    *({"subsystem": "usb", "devType": "usb_device", "sysName": f"{n}*"} for n in (*range(1, 10), "usb")),
    *({"subsystem": "block", "devType": "disk", "sysName": f"{name}*"} for name in _DISKS),
]


def shared(paths: Sequence[str], apart: Callable[[int, int], bool]) -> set[int]:
    """The numbers of those globs that may match what another one matches, or the whole or a part of it. A USB
    device has :data:`USB`. ``apart``: whether two of them are for different nodes although they may meet."""
    found = {n for n, path in enumerate(paths) if SIGN.search(path) and _DISK.fullmatch(path)}
    for (n, one), (m, other) in combinations(enumerate(paths), 2):
        if may_be_one(one, other) and not apart(n, m):
            found |= {n, m}
    # a path does not show which USB device a serial port or a camera belongs to
    whole = {n for n, path in enumerate(paths) if may_be_one(path, USB)}
    return found | whole if len(whole) < len(paths) else found


def shared_blocks(selections: Sequence[Sequence[Block]]) -> set[int]:
    """The same for selections by blocks of ``where``."""
    others = (chain(_WHOLE, *selections[:n], *selections[n + 1 :]) for n in range(len(selections)))
    pairs = map(product, selections, others)
    return {n for n, each in enumerate(pairs) if any(_may_select_one(a, b) for a, b in each)}


def _may_select_one(one: Block, other: Block) -> bool:
    keys = (one.keys() & other.keys()) - {"not"}
    return all(any(_meet(a, b) for a, b in product(_texts(one[key]), _texts(other[key]))) for key in keys)


def _texts(value: Written) -> list[str]:
    return [str(one).lower() for one in ([value] if isinstance(value, (str, int)) else value)]


def may_be_one(one: str, other: str) -> bool:
    """Whether both globs may match the same node, or a disk and one of its partitions."""
    directory, reach = _reach(one)
    another, reached = _reach(other)
    if directory and directory == another:
        return _meet(one, other)
    if any(may_be_link(a) and _NUMBERED.fullmatch(b) for a, b in ((one, other), (other, one))):
        return True
    return any(_meet(a, b) for a, b in product(reach, reached))


def may_be_link(path: str) -> bool:
    return _OWN_LINK.fullmatch(path) is not None


@lru_cache(maxsize=1 << 16)
def _reach(path: str) -> tuple[str, Sequence[str]]:
    """The directory of a standard link, and the path itself with the nodes to which it or a disk leads."""
    if link := _LINK.fullmatch(path):
        return link[1], [path, *_LINKS.get(link[2], ["/dev/*"])]
    return "", [path, f"{path}*"] if _DISK.fullmatch(path) else [path]


def _meet(one: str, other: str) -> bool:
    """Whether a path may match both. A path may be a directory, which means everything below it."""
    start, another = _start(one)[0], _start(other)[0]
    # of thousands of paths few begin alike, and comparing starts is fast
    if not (start.startswith(another) or another.startswith(start)):
        return False
    if start != one:  # a glob
        return another != other or _meet(other, one)
    return fnmatchcase(one, other) or fnmatchcase(one, f"{other}/*") or other.startswith(f"{one}/")
