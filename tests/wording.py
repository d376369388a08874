"""Finds words to avoid in what people read: ``python tests/wording.py [--count] [PATH…]``."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CODE = ("src/*.py", "plugins/*/src/*.py", "packages/*/src/*.py", "examples/*.py", "tools/*", "bench/*.py")
TESTS = ("test_*.py", "*/test_*.py")
PROSE = (
    "*.md",
    "config/*.yaml",
    "deploy/*",
    "src/*.html",
    "src/*.js",
    "src/*.css",
    "Makefile",
    "examples/*.yaml",
)
NOT_OURS = ("*_pb2*", "*.proto", "*.svg", "*.png", "packages/import/tests/data/*", "LICENSE", "*.json")

LONGEST = 35
"""Words of a sentence in Markdown."""


@dataclass(frozen=True)
class Found:
    file: str
    line: int
    text: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text!r}: write {self.instead}"


class Wording:
    """The words of ``tests/wording.yaml`` and where they are right."""

    def __init__(self, file: Path = ROOT / "tests" / "wording.yaml") -> None:
        document: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
        self._words = [
            (re.compile(rf"(?<![\w`-])(?:{entry['not']})(?![\w`-])", re.IGNORECASE), str(entry["but"]))
            for entry in document["words"]
        ]
        self.allowed = [(str(entry["file"]), str(entry["text"])) for entry in document["allowed"]]

    def search(self, file: str, line: int, text: str) -> Iterator[Found]:
        """What is in a line and is not allowed there."""
        for glob, right in self.allowed:
            if fnmatch(file, glob):
                text = text.replace(right, " " * len(right))
        for pattern, instead in self._words:
            for match in pattern.finditer(text):
                yield Found(file, line, match.group(), instead)

    def check(self, path: Path) -> list[Found]:
        """What is in a file and is not allowed there."""
        file = path.relative_to(ROOT).as_posix()
        return [found for line, text in lines(path) for found in self.search(file, line, text)]


def files(paths: list[str] | None = None) -> list[Path]:
    """The tracked files in which people read."""
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *(paths or ())],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    return [
        ROOT / name
        for name in tracked
        if any(fnmatch(name, glob) for glob in (*CODE, *PROSE, *TESTS))
        and not any(fnmatch(name, glob) for glob in NOT_OURS)
        if (ROOT / name).is_file()
    ]


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """What people read of a file, with its line numbers."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.name.startswith("test_"):
        return names(text)
    if path.suffix == ".py" or text.startswith("#!/usr/bin/env python"):
        return python(text)
    if path.suffix == ".md":
        return markdown(text)
    return iter(enumerate(text.splitlines(), 1))


def python(text: str) -> Iterator[tuple[int, str]]:
    """Strings, docstrings and comments."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Constant(value=str(value)):
                for offset, line in enumerate(value.splitlines()):
                    yield node.lineno + offset, re.sub(r"``?[^`\n]*``?", " ", line)


def names(text: str) -> Iterator[tuple[int, str]]:
    """What tests promise: their names, as sentences."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\s*(?:async )?def test_(\w+)", line):
            yield number, match[1].replace("_", " ")


def markdown(text: str) -> Iterator[tuple[int, str]]:
    """Prose: no code blocks, no code in a line, no addresses of links."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark:
            fence = "" if fence and mark[1].startswith(fence) else fence or mark[1]
        elif not fence:
            yield number, re.sub(r"\]\([^)]*\)", "]", re.sub(r"``?[^`]+``?", "`", line))


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Sentences of a page, with the line where each begins; a table's cell or a list item ends one."""
    start, words = 0, ""
    for number, line in [*markdown(path.read_text(encoding="utf-8")), (0, "")]:
        if not line.strip() or re.match(r"\s*([-*#>|]|\d+\.)", line):
            yield from ((start, each) for each in re.split(r"(?<=[.!?:;])\s", words) if each)
            start, words = number, ""
        if line.lstrip().startswith("|"):
            for cell in line.split("|"):
                yield from ((number, each) for each in re.split(r"(?<=[.!?:;])\s", cell) if each)
        else:
            start = start or number
            words += " " + line.strip()


def long_sentences(path: Path) -> list[str]:
    """Those of more than ``LONGEST`` words."""
    file = path.relative_to(ROOT).as_posix()
    return [
        f"{file}:{line}: {len(text.split())} words: {text.strip()[:60]}…"
        for line, text in sentences(path)
        if len(text.split()) > LONGEST
    ]


def main(arguments: list[str]) -> int:
    wording = Wording()
    paths = files([each for each in arguments if each != "--count"])
    found = [str(each) for path in paths for each in wording.check(path)]
    found += [each for path in paths if path.suffix == ".md" for each in long_sentences(path)]
    if "--count" not in arguments:
        print(*found, sep="\n")
    print(f"{len(found)} found in {len(paths)} files")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
