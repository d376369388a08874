"""The catalog: what is found, and that one broken plugin harms nobody else."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from devhost.backend import AllocateRequest, Attribute, Backend, Device, Edits, trusted
from devhost.discovery import catalog
from devhost.discovery.entry_points import Distribution, EntryPoint
from devhost.planning.give import Give, GiveMount
from devhost.planning.settings import ResourceSettings, Settings, Share

GOOD = """
from devhost.backend import Attribute, Backend, Edits, hookimpl

class {cls}(Backend):
    name = "{name}"
    attributes = {{"model": Attribute(str, "model", "X100")}}
    def discover(self): return []
    def allocate(self, request): return Edits()

@hookimpl
def devhost_backends(): return [{cls}]
"""


load = partial(catalog.load, points=())
"""Loads plugins without those that are installed on this machine."""


@pytest.fixture(autouse=True)
def _forget_modules() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("devhost_dropin_", "pluginpkg_")):
            del sys.modules[name]


def drop_in(directory: Path, name: str, text: str) -> Path:
    directory.mkdir(exist_ok=True)
    file = directory / f"{name}.py"
    file.write_text(text)
    return file


def good(name: str) -> str:
    return GOOD.format(cls=name.capitalize(), name=name)


def reasons(found: catalog.Catalog) -> str:
    return "\n".join(refusal.reason for refusal in found.refused)


def test_a_drop_in_provides_its_backend(tmp_path: Path) -> None:
    file = drop_in(tmp_path, "card", "__version__ = '1.2'\n" + good("card"))
    found = load([tmp_path])
    assert found.refused == ()
    assert found.installed["card"].origin == str(file)
    assert found.installed["card"].version == "1.2"
    assert found.installed["card"].hooks == ("devhost_backends",)
    assert found.get("card") is found.installed["card"].backend
    assert found.get("other") is None


def test_two_directories_may_hold_the_same_file_name(tmp_path: Path) -> None:
    drop_in(tmp_path / "a", "card", good("one"))
    drop_in(tmp_path / "b", "card", good("two"))
    assert set(load([tmp_path / "a", tmp_path / "b"]).installed) == {"one", "two"}


def test_an_edited_drop_in_is_seen_at_the_next_load(tmp_path: Path) -> None:
    drop_in(tmp_path, "card", good("one"))
    assert set(load([tmp_path]).installed) == {"one"}
    drop_in(tmp_path, "card", good("two"))  # as long, and within the same second
    assert set(load([tmp_path]).installed) == {"two"}
    assert [file.name for file in tmp_path.iterdir()] == ["card.py"]


def test_private_files_are_not_plugins(tmp_path: Path) -> None:
    drop_in(tmp_path, "_base", "raise RuntimeError")
    drop_in(tmp_path, ".hidden", "raise RuntimeError")
    assert load([tmp_path]) == catalog.Catalog({}, ())


def test_a_missing_directory_is_a_refusal(tmp_path: Path) -> None:
    assert "does not exist" in reasons(load([tmp_path / "none"]))


@pytest.mark.usefixtures("ordinary_rights")
@pytest.mark.parametrize("mode", [0o000, 0o300, 0o600])
def test_an_unreadable_directory_is_refused(tmp_path: Path, mode: int) -> None:
    drop_in(tmp_path / "closed", "card", good("card"))
    (tmp_path / "closed").chmod(mode)
    found = load([tmp_path / "closed"], {"card"})
    (tmp_path / "closed").chmod(0o700)
    assert (found.installed, reasons(found)) == ({}, "it cannot be read: Permission denied")


def test_a_directory_that_cannot_be_listed_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    drop_in(tmp_path, "card", good("card"))
    monkeypatch.setattr(os, "listdir", refuse)
    found = load([tmp_path], {"card"})
    assert found.refused == (catalog.Refusal(str(tmp_path), "", "it cannot be read: Permission denied"),)
    assert found.suspect() == (
        f"perhaps it is in {tmp_path}, which was refused: it cannot be read: Permission denied"
    )


def test_a_drop_in_that_cannot_be_read_is_refused_and_the_others_work(tmp_path: Path) -> None:
    closed = drop_in(tmp_path, "closed", good("closed"))

    def refuse(path: Path) -> bytes:
        if path == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return trusted.read_bytes(path)

    drop_in(tmp_path, "card", good("card"))
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "lost.py").symlink_to(tmp_path / "nowhere")
    found = load([tmp_path], read=refuse)
    assert set(found.installed) == {"card"}
    assert [(refusal.backend, refusal.reason) for refusal in found.refused] == [
        ("closed", "it cannot be read: Permission denied"),
        ("folder", "it cannot be read: Is a directory"),
        ("lost", "the file does not exist"),
    ]
    assert found.why_missing("closed") == f"plugin {closed} was refused: it cannot be read: Permission denied"


def test_a_drop_in_that_others_can_change_is_refused_until_its_mode_is_fixed(tmp_path: Path) -> None:
    """Otherwise any user who can write to it runs code as devhost does."""
    open_to_all, _ = drop_in(tmp_path, "open", good("open")), drop_in(tmp_path, "card", good("card"))
    open_to_all.chmod(0o666)
    found = load([tmp_path])
    assert set(found.installed) == {"card"}
    fix = f"run `chmod go-w {open_to_all}`"
    reason = f"{open_to_all} is writable by its group and others, who can change it ({fix})"
    assert found.refused == (catalog.Refusal(str(open_to_all), "", reason, "open"),)
    open_to_all.chmod(0o644)
    assert set(load([tmp_path]).installed) == {"card", "open"}


def test_nothing_is_imported_from_a_directory_that_others_can_write_to(tmp_path: Path) -> None:
    drop_in(tmp_path / "inner", "card", good("card"))
    for at_fault in (tmp_path / "inner", tmp_path):
        at_fault.chmod(0o775)
        found = load([tmp_path / "inner"], {"card"})
        assert not found.installed
        assert f"run `chmod go-w {at_fault}`" in found.suspect()
        at_fault.chmod(0o755)
    assert set(load([tmp_path / "inner"]).installed) == {"card"}


def test_a_pipe_with_the_name_of_a_drop_in_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "card.py")
    assert reasons(load([tmp_path])) == f"{tmp_path}/card.py is not a regular file"


def test_a_file_in_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text("")
    assert "it is not a directory" in reasons(load([file]))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def f(:", "SyntaxError"),
        ("import nothing_like_this", "ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise BaseException('odd')", "BaseException: odd"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("x = 1", "does not implement devhost_backends"),
        ("from devhost.backend import hookimpl\n@hookimpl\ndef devhost_bakends(): ...", "unknown hook"),
        ("from devhost.backend import hookimpl\n@hookimpl\ndef devhost_backends(x): ...", "devhost_backends"),
        (
            "from devhost.backend import hookimpl\n@hookimpl\ndef devhost_backends(): return 1 / 0",
            "ZeroDivisionError",
        ),
        ("from devhost.backend import hookimpl\n@hookimpl\ndef devhost_backends(): return []", "no backend"),
        (
            "from devhost.backend import hookimpl\n@hookimpl\ndef devhost_backends(): return None",
            "no backend",
        ),
        (
            "from devhost.backend import hookimpl\n@hookimpl\ndef devhost_backends(): return [3]",
            "not a subclass",
        ),
    ],
)
def test_a_broken_plugin_is_refused_with_its_reason_and_the_others_work(
    tmp_path: Path, text: str, reason: str
) -> None:
    drop_in(tmp_path, "broken", text)
    drop_in(tmp_path, "card", good("card"))
    found = load([tmp_path])
    assert reason in reasons(found)
    assert "\n" not in found.refused[0].reason
    assert set(found.installed) == {"card"}


HOOK = "from devhost.backend.observe import hookimpl\n@hookimpl\n"


def test_an_observer_needs_no_backend(tmp_path: Path) -> None:
    file = drop_in(tmp_path, "audit", HOOK + "def devhost_held(news): heard.append(news)\nheard = []")
    found = load([tmp_path])
    (observer,) = found.observers
    assert (found.refused, found.installed) == ((), {})
    assert (observer.name, observer.origin, observer.hooks) == ("audit", str(file), ("devhost_held",))
    observer.call("devhost_held", news=(1,), missed=0)
    assert vars(observer.plugin)["heard"] == [(1,)]


@pytest.mark.parametrize("line", ["", "for_backends = ()", "for_backends = 'card'", "for_backends = (3,)"])
def test_a_hook_for_released_devices_names_its_backends(tmp_path: Path, line: str) -> None:
    drop_in(tmp_path, "reset", f"{HOOK}def devhost_after_release(devices): ...\n{line}")
    found = load([tmp_path])
    assert found.observers == ()
    assert "devhost_after_release needs for_backends, the backends that it is for" in reasons(found)
    drop_in(tmp_path, "reset", f"{HOOK}def devhost_after_release(devices): ...\nfor_backends = ['card']")
    assert load([tmp_path]).observers[0].backends == ("card",)


def test_a_plugin_may_provide_a_backend_and_observe(tmp_path: Path) -> None:
    drop_in(tmp_path, "card", good("card") + "@hookimpl\ndef devhost_left(): ...")
    found = load([tmp_path])
    assert found.refused == ()
    assert set(found.installed) == {"card"}
    assert found.observers[0].hooks == ("devhost_left",)


def test_an_entry_point_may_name_an_object_that_observes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from devhost.backend.observe import hookimpl\n"
    text += "class Audit:\n    def __init__(self): self.heard = []\n"
    text += "    @hookimpl\n    def devhost_left(self, news): self.heard.append(news)\naudit = Audit()"
    drop_in(tmp_path, "pluginpkg_audit", text)
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint("audit", "pluginpkg_audit:audit", Distribution("audit", "1"))]
    (observer,) = load(points=points).observers
    observer.call("devhost_left", news=("gone",), missed=0)
    assert vars(observer.plugin) == {"heard": [("gone",)]}


def test_a_reload_finds_the_same_observer_unless_its_file_was_edited(tmp_path: Path) -> None:
    drop_in(tmp_path, "audit", HOOK + "def devhost_left(news): 1")
    (first,) = load([tmp_path]).observers
    (same,) = load([tmp_path]).observers
    drop_in(tmp_path, "audit", HOOK + "def devhost_left(news): 2")
    (other,) = load([tmp_path]).observers
    assert same.plugin is first.plugin
    assert other.plugin is not first.plugin


def test_observers_of_one_file_name_have_different_names(tmp_path: Path) -> None:
    for directory in ("a", "b"):
        drop_in(tmp_path / directory, "audit", HOOK + "def devhost_left(news): ...")
    found = load([tmp_path / "a", tmp_path / "b"])
    assert [one.name for one in found.observers] == ["audit", str(tmp_path / "b" / "audit.py")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            HOOK + "def devhost_alocated(news): ...",
            "unknown hook devhost_alocated (did you mean devhost_allocated?)",
        ),
        (
            HOOK + "def devhost_left(news, pod): ...",
            "devhost_left has the unknown argument pod (valid arguments: news, missed)",
        ),
        (HOOK + "def devhost_left(*, event): ...", "devhost_left has the unknown argument event"),
        (HOOK + "def devhost_left(news, missed=0): ...", "devhost_left has a default for missed"),
        (HOOK + "async def devhost_left(news): ...", "devhost_left must be a plain function"),
        (HOOK + "def devhost_left(news): yield", "devhost_left must be a plain function"),
        ("def devhost_left(news): ...", "nor any hook of an observer (is @hookimpl missing?)"),
    ],
)
def test_an_observer_that_could_not_be_called_is_refused_with_the_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    drop_in(tmp_path, "audit", text)
    found = load([tmp_path])
    assert found.observers == ()
    assert reason in reasons(found)
    assert "Error" not in reasons(found)


def test_a_class_is_refused_as_an_observer_and_an_object_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from devhost.backend.observe import hookimpl\n"
    text += "class Audit:\n"
    text += "    @hookimpl\n    def devhost_left(self, news): ..."
    drop_in(tmp_path, "pluginpkg_class", text)
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint("audit", "pluginpkg_class:Audit", Distribution("audit", "1"))]
    assert reasons(load(points=points)) == (
        "devhost_left is a method of a class: register an object of Audit, not the class"
    )


def test_a_hook_of_a_later_version_may_be_optional(tmp_path: Path) -> None:
    text = "from devhost.backend.observe import hookimpl\n"
    text += "@hookimpl(optionalhook=True)\ndef devhost_rebooted(): ...\n"
    drop_in(tmp_path, "audit", text + "@hookimpl\ndef devhost_left(): ...")
    (observer,) = load([tmp_path]).observers
    assert observer.hooks == ("devhost_left",)


def test_ctrl_c_while_loading_is_not_swallowed(tmp_path: Path) -> None:
    drop_in(tmp_path, "slow", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load([tmp_path])


def test_the_first_of_two_backends_with_the_same_name_stays(tmp_path: Path) -> None:
    drop_in(tmp_path, "a", good("card"))
    drop_in(tmp_path, "b", good("card"))
    found = load([tmp_path])
    assert found.installed["card"].origin.endswith("a.py")
    assert "already provided by" in reasons(found)


def test_a_distribution_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drop_in(tmp_path, "pluginpkg_good", good("card"))
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        EntryPoint("card", "pluginpkg_good", Distribution("a-card", "1.0")),
        EntryPoint("gone", "pluginpkg_none", Distribution("a-gone", "1.0")),
    ]
    found = load(points=points)
    assert (found.installed["card"].origin, found.installed["card"].version) == ("a-card", "1.0")
    assert "No module named" in found.why_missing("gone")


def test_a_missing_backend_is_explained() -> None:
    found = catalog.Catalog({}, (catalog.Refusal("devhost-x", "1", "ImportError: no libx", "x"),))
    assert found.why_missing("x") == "plugin devhost-x was refused: ImportError: no libx"
    assert found.why_missing("gpu") == "install the package devhost-gpu"
    assert found.why_missing("something") == ""


class _Sound(Backend):
    name = "sound"
    attributes: ClassVar[dict[str, Attribute]] = {
        "a": Attribute(str, "a", "1"),
        "sysattr.*": Attribute(str, "b", "2"),
        "ID_*": Attribute(str, "c", "3"),
    }

    def discover(self) -> list[Device]:
        return []

    def allocate(self, request: AllocateRequest) -> Edits:
        return Edits()


FLOAT: Any = float
LIST: Any = ["x"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "Upper"}, "lower-case"),
        ({"name": 3}, "lower-case"),
        ({"api_version": 99}, "API version 99"),
        ({"discover": Backend.discover}, "discover()"),
        ({"allocate": Backend.allocate}, "allocate()"),
        (
            {"prob": lambda self, devices: {}},
            "it defines prob(), which is never called: did you mean probe()",
        ),
        ({"missing_driver": lambda self: ()}, "did you mean missing_drivers()?"),
        ({"deviceInfo": lambda self, device, request: {}}, "did you mean device_info()?"),
        ({"Options": dict}, "not a dataclass"),
        ({"subsystems": "tty"}, "one string"),
        ({"subsystems": (1,)}, "not a tuple of strings"),
        ({"subsystems": None}, "not a tuple of strings"),
        ({"variables": "CARD"}, "variables is one string"),
        ({"variables": (3,)}, "variables is not a tuple of strings"),
        ({"modules": None}, "modules is not a tuple of strings"),
        ({"claim_kinds": "slot"}, "claim_kinds is one string"),
        ({"discover_deadline": "5"}, "discover_deadline is '5', not a number of seconds above zero"),
        ({"discover_deadline": 0}, "discover_deadline is 0, not a number of seconds above zero"),
        ({"discover_deadline": float("nan")}, "discover_deadline is nan, not a number of seconds"),
        ({"takes_shares": "no"}, "takes_shares is 'no', not True or False"),
        (
            {"allocate": lambda self, devices: Edits()},
            "allocate() takes one request: def allocate(self",
        ),
        ({"allocate": lambda self, devices, options=None: Edits()}, "see docs/backends/writing.md"),
        ({"prepare": lambda self, devices: None}, "prepare() takes one request: def prepare(self, request)"),
        ({"device_info": lambda self, device: None}, "device_info() takes a device and the request"),
        ({"attributes": ["a"]}, "not a mapping"),
        ({"attributes": {"a": str}}, "Attribute(type"),
        ({"attributes": {"a": Attribute(FLOAT, "m", 1)}}, "must be str, int, bool or list"),
        ({"attributes": {"a": Attribute(str, 3, "x")}}, "has meaning 3, which is not a str"),  # type: ignore[arg-type]
        ({"attributes": {"a": Attribute(str, "m", "x", hex="no")}}, "has hex 'no', which is not a bool"),  # type: ignore[arg-type]
        ({"attributes": {"a": Attribute(str, "m", "x", words=LIST)}}, "not a tuple of non-empty strings"),
        ({"attributes": {"a": Attribute(str, "m", "x", words=("x", ""))}}, "tuple of non-empty strings"),
        (
            {"attributes": {"a": Attribute(int, "m", 1, words=("x",))}},
            "words, which only strings and lists can have",
        ),
        ({"attributes": {"a": Attribute(str, "m", "x", hex=True, words=("x",))}}, "and not with hex"),
        ({"attributes": {"a": Attribute(int, "m", 1, unit="MB")}}, "a number may have one such as Mi"),
        ({"attributes": {"a": Attribute(str, "m", "x", unit="Mi")}}, "a number may have one"),
        ({"attributes": {"not": Attribute(str, "m", "1")}}, "not usable in YAML"),
        ({"attributes": {"a b": Attribute(str, "m", "1")}}, "not usable in YAML"),
    ],
)
def test_each_flaw_of_a_backend_is_described_in_a_clause(change: dict[str, object], reason: str) -> None:
    assert list(catalog.flaws(_Sound)) == []
    assert reason in "; ".join(catalog.flaws(type("Changed", (_Sound,), change)))


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("resync_interval = 1.0", "devhost scans after each event that watch() yields"),
        ("probe_timeout = 3", "did you mean discover_deadline?"),
        ("discoverDeadline = 3", "did you mean discover_deadline?"),
        ("subsystem = ('tty',)", "did you mean subsystems?"),
        ("takes_share = True", "did you mean takes_shares?"),
        ("exclusive = False", "devhost reads Options, ResourceOptions, api_version, attributes"),
    ],
)
def test_a_setting_that_nothing_reads_is_refused_with_the_right_name(
    tmp_path: Path, text: str, advice: str
) -> None:
    name = text.partition(" ")[0]
    drop_in(tmp_path, "card", good("card").replace('"card"', f'"card"\n    {text}'))
    found = load([tmp_path])
    (refused,) = found.refused
    assert refused.reason.startswith(f"it sets {name}, which nothing reads: {advice}")
    used = f"    {text}\n    def mine(self): return self.{name}"
    drop_in(tmp_path, "card", good("card").replace('"card"', f'"card"\n{used}'))
    assert "card" in load([tmp_path]).installed


def test_a_hook_that_returns_a_class_is_refused_with_the_right_line(tmp_path: Path) -> None:
    drop_in(tmp_path, "card", good("card").replace("return [Card]", "return Card"))
    found = load([tmp_path])
    assert found.installed == {}
    assert reasons(found) == "devhost_backends returned a class, not a list of classes (write return [Card])"


@pytest.mark.parametrize("text", ["_speed = 3", "SPEED = 3", "label = 'A'", "table = {1: 2}", "made = []"])
def test_what_looks_like_no_setting_is_the_business_of_the_backend(tmp_path: Path, text: str) -> None:
    drop_in(tmp_path, "card", good("card").replace('"card"', f'"card"\n    {text}'))
    assert "card" in load([tmp_path]).installed


def test_a_misspelled_required_method_is_one_error() -> None:
    class Odd(Backend):
        name = "odd"

        def discover(self) -> list[Device]:
            return []

        def alocate(self, request: AllocateRequest) -> Edits:
            return Edits()

    found = list(catalog.flaws(Odd))
    assert found == ["it defines alocate(), which is never called: did you mean allocate()?"]


def test_helpers_of_a_backend_with_other_names_are_accepted() -> None:
    helpers = ("_prob", "scan", "read_all", "find", "allocations_of", "is_ready")
    change: dict[str, object] = {name: lambda self: None for name in helpers}
    assert list(catalog.flaws(type("Helped", (_Sound,), change))) == []


def test_a_class_that_raises_on_every_access_is_refused(tmp_path: Path) -> None:
    text = (
        good("card")
        + """
class Meta(type):
    def __getattribute__(cls, name):
        if name == "api_version":
            raise RuntimeError("do not look")
        return super().__getattribute__(name)
class Shy(Card, metaclass=Meta):
    name = "shy"
@hookimpl
def devhost_backends(): return [Shy, Card]
"""
    )
    drop_in(tmp_path, "shy", text)
    found = load([tmp_path])
    assert set(found.installed) == {"card"}
    assert "do not look" in reasons(found)


def packages(monkeypatch: pytest.MonkeyPatch, directory: Path, *backends: str) -> list[EntryPoint]:
    """Installs the project's package for each backend, and a third-party package."""
    names = {name: catalog.OFFICIAL[name] for name in backends} | {"strange": "strange-things"}
    for name in names:
        drop_in(directory, f"pluginpkg_{name}", good(name))
    monkeypatch.syspath_prepend(directory)
    return [
        EntryPoint(name, f"pluginpkg_{name}", Distribution(package, "1.0")) for name, package in names.items()
    ]


def test_a_package_of_the_project_is_imported_only_where_its_backend_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = packages(monkeypatch, tmp_path, "gpu", "rdma")
    assert load(wanted={"rdma"}, points=points).installed.keys() == {"rdma", "strange"}
    assert "pluginpkg_gpu" not in sys.modules


def test_where_a_wanted_backend_is_not_found_every_package_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = packages(monkeypatch, tmp_path, "gpu", "rdma")
    assert load(wanted={"rmda"}, points=points).installed.keys() == {"gpu", "rdma", "strange"}


def test_without_a_list_of_what_is_wanted_everything_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = packages(monkeypatch, tmp_path, "gpu", "rdma")
    assert load(points=points).installed.keys() == {"gpu", "rdma", "strange"}


def test_a_missing_backend_may_be_in_a_refused_plugin(tmp_path: Path) -> None:
    found = load([tmp_path / "nowhere"], {"toy"})
    assert (
        found.suspect()
        == f"perhaps it is in {tmp_path / 'nowhere'}, which was refused: the directory does not exist"
    )
    assert load([tmp_path]).suspect() == ""


class Plain(Backend):
    name = "plain"

    def discover(self) -> list[Device]:
        return []

    def allocate(self, request: AllocateRequest) -> Edits:
        return Edits()


class PlainAgain(Plain):
    """An edited drop-in: another class of the same name."""


def needed(
    entry: ResourceSettings, options: object = None, kind: type[Backend] = Plain
) -> dict[str, catalog.Needed]:
    found = catalog.Catalog({"plain": catalog.Installed(kind, "file.py", "", ())})
    return dict(found.needed(Settings((entry,), {"plain": options})))


ENTRY = ResourceSettings(0, "example.com/x", "plain")


@pytest.mark.parametrize(
    "other",
    [
        needed(ENTRY, options="other"),
        needed(ENTRY, kind=PlainAgain),
        needed(replace(ENTRY, name="example.com/{model}")),
        needed(replace(ENTRY, options="other")),
        needed(replace(ENTRY, give=Give(mounts=(GiveMount("/srv"),)))),
    ],
)
def test_an_edit_concerns_a_backend_if_it_runs_otherwise_or_looks_for_something_else(other: object) -> None:
    assert other != needed(ENTRY)


def test_an_edit_of_how_devices_are_shared_concerns_no_backend() -> None:
    assert needed(replace(ENTRY, share=Share(4), index=1, optional=True)) == needed(ENTRY)
