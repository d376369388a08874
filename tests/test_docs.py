"""The documentation is complete, its links lead somewhere, and its examples are right.

Pages with a test of their own: configuration.md, metrics.md, status.md, simulator.md, backends/writing.md
(``test_tutorial.py``) and the module table of architecture.md (``test_imports.py``).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import generate_cli_reference
import pytest
import yaml

from devhost import backend
from devhost.backend import base
from devhost.backend.errors import ConfigError
from devhost.cli.program import COMMANDS
from devhost.config.loader import load
from devhost.discovery import catalog

ROOT = Path(__file__).resolve().parents[1]
PLUGIN_API = ROOT / "docs" / "reference" / "plugin-api.md"
INSTALLED = catalog.load().installed


def _pages() -> list[Path]:
    found = [
        *ROOT.glob("*.md"),
        *ROOT.glob("plugins/*/README.md"),
        *ROOT.glob("packages/*/README.md"),
        *ROOT.glob("examples/*/README.md"),
    ]
    for directory in ("docs", "deploy", "config", "bench"):
        found += (ROOT / directory).rglob("*.md")
    return sorted(found)


PAGES = _pages()


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


class Example(NamedTuple):
    """A complete configuration somewhere in the repository; ``line`` is where it begins."""

    file: Path
    line: int
    text: str


def _blocks(page: Path) -> Iterator[Example]:
    """Blocks marked ``yaml`` that are whole configurations; ``yaml fragment`` marks one that is not."""
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"(?ms)^( *)```yaml *\n(.*?)^ *```$", text):
        body = re.sub(rf"(?m)^{found[1]}", "", found[2])
        if re.search(r"(?m)^version:", body) and re.search(r"(?m)^resources:", body):
            yield Example(page, text.count("\n", 0, found.start()) + 1, body)


def _deployed() -> Iterator[Example]:
    """Configurations that the manifests of deploy/ come with: of overlays, and in values of the chart."""
    deploy = ROOT / "deploy"
    for file in sorted((deploy / "kustomize").rglob("devhost.yaml")):
        yield Example(file, 1, file.read_text(encoding="utf-8"))
    chart = deploy / "helm" / "devhost"
    for file in (chart / "values.yaml", *sorted((chart / "profiles").glob("*.yaml"))):
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        yield Example(file, 1, yaml.safe_dump(values["config"]))


def _examples() -> Iterator[Example]:
    for page in PAGES:
        yield from _blocks(page)
    for file in sorted((ROOT / "config").rglob("*.yaml")):
        yield Example(file, 1, file.read_text(encoding="utf-8"))
    yield from _deployed()


EXAMPLES = list(_examples())


@pytest.fixture(scope="module")
def drop_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the drop-in backends that the tutorial builds, which its examples name."""
    directory = tmp_path_factory.mktemp("examples")
    (directory / "backends").mkdir()
    text = (ROOT / "docs" / "backends" / "writing.md").read_text(encoding="utf-8")
    _, added = re.findall(r"(?ms)^```python\n(.*?)^```$", text)
    whole = (ROOT / "examples/watchdog/src/devhost_watchdog/__init__.py").read_text(encoding="utf-8")
    (directory / "backends" / "watchdog.py").write_text(f"{whole}\n\n{added}", encoding="utf-8")
    return directory


def test_every_configuration_shown_is_right(drop_ins: Path) -> None:
    file = drop_ins / "devhost.yaml"
    wrong = []
    for example in EXAMPLES:
        file.write_text(example.text, encoding="utf-8")
        try:
            load(file)
        except ConfigError as error:
            wrong.append(f"{name(example.file)}, the example at line {example.line}:\n{error}")
    assert wrong == []


def test_there_are_examples_to_check() -> None:
    assert {"README.md", "docs", "config", "deploy"} <= {name(e.file).partition("/")[0] for e in EXAMPLES}


def test_the_page_of_the_commands_is_up_to_date() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert page == generate_cli_reference.page(), "run `make docs`"


def test_the_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [command for command in COMMANDS if f"`devhost {command}" not in text] == []


def test_every_backend_has_a_page_that_links_its_reference() -> None:
    missing = []
    for backend_name in INSTALLED:
        text = (ROOT / "docs" / "backends" / f"{backend_name}.md").read_text(encoding="utf-8")
        links = (f"../reference/backends.md#{part}-of-{backend_name})" for part in ("attributes", "options"))
        missing += [link for link in links if link not in text]
    assert missing == []


def _api() -> Iterator[str]:
    """Every word of the API: public names, hooks, members of Backend, of its options, of Context."""
    yield from backend.__all__
    yield from (hook for hook in vars(base.Hooks) if not hook.startswith("_"))
    for kind in (backend.Backend, backend.Context):
        yield from (member for member in vars(kind) if not member.startswith("_"))
    yield from backend.Backend.__annotations__


def test_the_backend_api_is_described() -> None:
    text = PLUGIN_API.read_text(encoding="utf-8")
    assert [word for word in _api() if not re.search(rf"`[^`\n]*\b{word}\b[^`\n]*`", text)] == []


def _slug(heading: str) -> str:
    """The anchor a forge makes of a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def _prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"))


@cache
def _anchors(page: Path) -> frozenset[str]:
    return frozenset(_slug(heading) for heading in re.findall(r"(?m)^#+ (.+)$", _prose(page)))


def test_every_link_leads_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or (anchor and anchor not in _anchors(file)):
                broken.append(f"{name(page)}: {target}")
    assert broken == []


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {
        (index.parent / target.partition("#")[0]).resolve()
        for target in re.findall(r"\]\(([^)\s]+)\)", index.read_text(encoding="utf-8"))
    }
    pages = set((ROOT / "docs").rglob("*.md")) - {index}
    assert sorted(name(page) for page in pages - linked) == []


def test_decisions_are_numbered_without_gaps_and_have_a_status() -> None:
    records = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert [record.name[:4] for record in records] == [f"{n:04}" for n in range(1, len(records) + 1)]
    for record in records:
        text = record.read_text(encoding="utf-8")
        assert text.startswith(f"# {int(record.name[:4])}. "), name(record)
        assert re.search(r"(?m)^Status: (accepted|superseded by .+)$", text), name(record)


def _tracked() -> list[Path]:
    """The repository's text files: those git knows, or would take."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=240)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("this is not a git checkout")
    return [ROOT / path for path in done.stdout.decode().split("\0") if path and (ROOT / path).is_file()]


def test_no_file_names_a_directory_of_somebodys_machine() -> None:
    """``/home/kubernetes`` is where GKE's node images have their programs."""
    personal = re.compile(
        rb"/(?:home|Users)/(?!kubernetes/)[a-z0-9_]+/|/(?:root|work|workspace)/[a-z0-9_.]", re.IGNORECASE
    )
    found = []
    for file in _tracked():
        for number, line in enumerate(file.read_bytes().splitlines(), 1):
            if personal.search(line):
                found.append(f"{name(file)}:{number}: {line[:100]!r}")
    assert found == []
