"""`devhost check`: output and exit code for valid and invalid files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from devhost_testing.commands.demonstration import bundled_config

from devhost.cli.check import command

PLUGIN = """
from devhost.backend import Attribute, Backend, Edits, hookimpl

class Card(Backend):
    name = "card"
    attributes = {"model": Attribute(str, "model", "X100")}
    def discover(self): return []
    def allocate(self, request): return Edits()

@hookimpl
def devhost_backends(): return [Card]
"""
GOOD = """
version: 1
backendPaths: [plugins]
resources:
- {name: example.com/card, backend: card, where: {model: X*}}
"""


@pytest.fixture
def directory(tmp_path: Path, no_installed_plugins: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with one drop-in backend, `good.yaml` and `bad.yaml`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "card.py").write_text(PLUGIN)
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(GOOD.replace("model:", "modle:").replace("version: 1", "version: 2"))
    return tmp_path


def check(*files: str, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(command, files, input=stdin)


@pytest.mark.usefixtures("directory")
def test_a_valid_file_is_one_line_and_exit_code_0() -> None:
    done = check("good.yaml")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "good.yaml: ok (1 resource, 1 backend)\n", "")


@pytest.mark.usefixtures("directory")
def test_an_invalid_file_is_a_line_for_each_error_and_exit_code_2() -> None:
    done = check("bad.yaml")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "bad.yaml:2:10: version: must be 1, not the number 2",
        'bad.yaml:5:51: resources[0].where: backend card has no attribute "modle" (did you mean model?)',
    ]


@pytest.mark.usefixtures("directory")
def test_an_invalid_file_does_not_prevent_checking_the_others() -> None:
    done = check("bad.yaml", "good.yaml", "missing.yaml", ".")
    assert done.exit_code == 2
    assert done.stdout == "good.yaml: ok (1 resource, 1 backend)\n"
    create = "create it with at least `version: 1` and `resources: []`"
    assert f"missing.yaml: there is no such file (check the path, or {create})\n" in done.stderr
    assert ".: this is a directory (name the YAML file in it)" in done.stderr


def test_a_backend_with_options_but_no_resource_is_counted(directory: Path) -> None:
    file = directory / "options.yaml"
    file.write_text("version: 1\nbackendPaths: [plugins]\nresources: []\nbackends: {card: {}}\n")
    assert check("options.yaml").stdout == "options.yaml: ok (0 resources, 1 backend)\n"


@pytest.mark.usefixtures("directory")
def test_a_dash_reads_standard_input() -> None:
    done = check("-", stdin="version: 1\nresources: []\n")
    assert (done.exit_code, done.stdout) == (0, "<stdin>: ok (0 resources, 0 backends)\n")
    done = check("-", stdin=b"\xff")
    assert (done.exit_code, done.stderr) == (
        2,
        "<stdin>:1:1: this is not UTF-8 text (save the file as UTF-8)\n",
    )


def test_a_broken_plugin_that_no_resource_needs_is_a_warning(directory: Path) -> None:
    (directory / "plugins" / "broken.py").write_text("import nothing_like_this")
    done = check("good.yaml", "good.yaml")
    assert done.exit_code == 0
    assert done.stderr.count("warning: plugin ") == 1
    reason = "ModuleNotFoundError: No module named 'nothing_like_this'"
    assert f"broken.py was refused: plugins/broken.py:1: {reason}\n" in done.stderr


def test_a_broken_plugin_that_a_resource_needs_is_an_error_with_its_reason(directory: Path) -> None:
    (directory / "plugins" / "card.py").write_text("import nothing_like_this")
    done = check("good.yaml")
    assert done.exit_code == 2
    assert done.stderr.startswith(
        'good.yaml:5:37: resources[0].backend: backend "card" is not installed (plugin '
    )
    assert "No module named 'nothing_like_this'" in done.stderr.splitlines()[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1\n\nraise ValueError('two\\nlines')\n", "3: ValueError: two lines"),
        ("def f():\n    return 1 / 0\n\n\nf()\n", "2: ZeroDivisionError: division by zero"),
        ("import json\njson.loads('{')\n", "2: JSONDecodeError: Expecting property name"),
        ("x = 1\ndef f(:\n", "2: SyntaxError: invalid syntax"),
        (PLUGIN.replace("return [Card]", "raise OSError('no card')"), "11: OSError: no card"),
    ],
)
def test_a_drop_in_that_raises_is_reported_with_file_and_line(
    directory: Path, text: str, reason: str
) -> None:
    """The line is the last one in the drop-in, even if the error was raised elsewhere."""
    (directory / "plugins" / "card.py").write_text(text)
    done = check("good.yaml")
    assert done.exit_code == 2
    first, *_ = done.stderr.splitlines()
    assert f"card.py was refused: plugins/card.py:{reason}" in first


CONFIG_MAP = """apiVersion: v1
kind: ConfigMap
metadata: {name: devhost}
data:
  devhost.yaml: |
    version: 1
    resources: []
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            CONFIG_MAP,
            "2:1: this is a Kubernetes ConfigMap, not a configuration of devhost "
            '(keep only the text of its key "devhost.yaml", without the indentation)',
        ),
        (
            f"{CONFIG_MAP}  other.yaml: x\n",
            "2:1: this is a Kubernetes ConfigMap, not a configuration of devhost "
            "(keep only the text of one of its keys, without the indentation: devhost.yaml, other.yaml)",
        ),
        (
            CONFIG_MAP[CONFIG_MAP.index("data:\n  dev") :],
            "1:1: this is a Kubernetes ConfigMap, not a configuration of devhost "
            '(keep only the text of its key "devhost.yaml", without the indentation)',
        ),
        (
            "apiVersion: apps/v1\nkind: DaemonSet\nspec: {}\n",
            "2:1: this is a Kubernetes DaemonSet, not a configuration of devhost "
            "(a configuration begins with `version: 1`)",
        ),
    ],
)
def test_a_kubernetes_object_is_refused_in_one_line_with_the_key_to_keep(text: str, said: str) -> None:
    done = check("-", stdin=text)
    assert (done.exit_code, done.stderr) == (2, f"<stdin>:{said}\n")


@pytest.mark.parametrize("variable", ["${NODE}", "$(NODE_NAME)", "$NODE", "{{ .Values.node }}"])
def test_a_variable_in_a_name_is_refused_because_it_is_not_expanded(variable: str) -> None:
    done = check("-", stdin=f"version: 1\nresources:\n- name: 'example.com/{variable}'\n  backend: udev\n")
    assert (done.exit_code, done.stderr) == (
        2,
        f'<stdin>:3:9: resources[0].name: "example.com/{variable}" has "{variable}" in it, and variables are '
        "not expanded (write the name itself; {ATTRIBUTE} is replaced by an attribute of the device)\n",
    )


def test_a_drop_in_writable_by_others_is_an_error_if_a_resource_needs_it(directory: Path) -> None:
    file = directory / "plugins" / "card.py"
    file.chmod(0o664)
    done = check("good.yaml")
    assert done.exit_code == 2
    at_fault = file.resolve()
    fix = f"{at_fault} is writable by its group, who can change it (run `chmod go-w {at_fault}`)"
    assert fix in done.stderr.splitlines()[0]
    file.chmod(0o644)
    assert check("good.yaml").exit_code == 0


def test_a_drop_in_writable_by_others_is_a_warning_if_no_resource_needs_it(directory: Path) -> None:
    file = directory / "plugins" / "other.py"
    file.write_text(PLUGIN.replace('"card"', '"other"'))
    file.chmod(0o646)
    done = check("good.yaml")
    assert done.exit_code == 0
    assert done.stderr.startswith("warning: plugin ") and "chmod go-w" in done.stderr


def test_no_file_is_a_usage_error() -> None:
    assert check().exit_code == 2


@pytest.mark.usefixtures("directory")
def test_optional_entries_without_their_package_are_a_note() -> None:
    entries = "".join(
        f"- {{name: a.b/{name}, backend: {backend}, optional: true}}\n"
        for name, backend in (("one", "gpu"), ("two", "gpu"), ("three", "rdma"))
    )
    done = check("-", stdin=GOOD + entries)
    assert (done.exit_code, done.stdout) == (0, "<stdin>: ok (1 resource, 1 backend)\n")
    more, one = done.stderr.splitlines()
    assert more.startswith(
        "note: 2 optional entries are not served: backend gpu is not installed (install the "
    )
    assert one.endswith(": backend rdma is not installed (install the package devhost-rdma)")
    assert one.startswith("note: 1 optional entry is not served")


@pytest.mark.usefixtures("directory")
def test_the_default_configuration_is_valid_with_any_set_of_packages() -> None:
    done = check(str(bundled_config()))
    assert done.exit_code == 0, done.stderr
    assert len(done.stderr.splitlines()) == 5


@pytest.mark.parametrize(
    ("dra", "of_entry", "note"),
    [
        ("a.example.com", "", "looks for the driver gpu.nvidia.com, not a.example.com"),
        (
            "gpu.nvidia.com",
            ", driver: b.example.com",
            "looks for the driver gpu.nvidia.com, not b.example.com",
        ),
        ("gpu.nvidia.com", "", ""),
        ("a.example.com", ", driver: gpu.nvidia.com", ""),
    ],
)
def test_a_profile_with_another_driver_than_its_readers_look_for_is_a_note(
    tmp_path: Path, dra: str, of_entry: str, note: str
) -> None:
    file = tmp_path / "devhost.yaml"
    terms = f"{{profile: nvidia{of_entry}}}"
    entry = f"{{name: nvidia.com/gpu, backend: gpu, where: {{vendor: nvidia}}, serve: dra, dra: {terms}}}"
    file.write_text(f"version: 1\ndra: {{driver: {dra}}}\nresources: [{entry}]\n")
    done = check(str(file))
    start = "note: resources[0].dra.profile: what reads these names, such as dcgm-exporter, "
    assert (done.exit_code, done.stderr) == (0, f"{start}{note}\n" if note else "")


@pytest.mark.usefixtures("directory")
def test_json_has_every_file_with_its_errors_and_the_same_exit_code() -> None:
    done = check("-o", "json", "good.yaml", "bad.yaml")
    good, bad = json.loads(done.stdout)["files"]
    assert good == {
        "file": "good.yaml",
        "valid": True,
        "errors": [],
        "notes": [],
        "resources": 1,
        "backends": ["card"],
    }
    assert not bad["valid"]
    lines = [(one["file"], one["line"], one["column"]) for one in bad["errors"]]
    assert lines == [("bad.yaml", 2, 10), ("bad.yaml", 5, 51)]
    assert all(one["message"] for one in bad["errors"])
    assert (done.stderr, done.exit_code) == ("", 2)


@pytest.mark.usefixtures("directory")
def test_json_has_the_plugins_that_were_refused() -> None:
    Path("plugins/broken.py").write_text("import nothing_of_this_name")
    done = check("-o", "json", "good.yaml")
    (refused,) = json.loads(done.stdout)["refusedPlugins"]
    assert "nothing_of_this_name" in refused["reason"]
    assert done.exit_code == 0


DATA = Path(__file__).parents[2] / "packages" / "import" / "tests" / "data"
NOT_A_FILE_OF_THE_PLUGIN = ("default-values.yaml", "empty.yaml", ".rules", "SOURCES.md")
NO_WORD_OF_THE_PLUGIN = (
    "amd-device-plugin/values.yaml",
    "gke-device-plugin/any-mapping.yaml",
    "sriov-network-device-plugin/operator-values-of-today.yaml",
)


@pytest.mark.parametrize(
    "file",
    [
        file
        for file in sorted([*DATA.rglob("*"), *DATA.with_name("inputs").rglob("*")])
        if file.is_file() and not str(file).endswith((*NOT_A_FILE_OF_THE_PLUGIN, *NO_WORD_OF_THE_PLUGIN))
    ],
    ids=lambda file: f"{file.parent.name}/{file.name}",
)
def test_the_file_of_another_plugin_is_recognized_and_its_import_is_named(file: Path) -> None:
    done = check(str(file))
    (line,) = done.stderr.splitlines()
    assert done.exit_code == 2
    assert line.startswith(f"{file}: this is the configuration of ")
    assert f"`devhost import {file.parent.name} {file}`" in line


def test_text_that_mentions_another_plugin_is_not_taken_for_its_file() -> None:
    done = check(str(DATA / "SOURCES.md"))
    assert done.exit_code == 2
    assert "devhost import" not in done.stderr
    mentioned = "This page describes the image intel-gpu-plugin and its settings."
    assert "devhost import" not in check("-", stdin=mentioned).stderr


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("version: 1", "version: 2 # was resourceList, timeSlicing and akri.sh/v0"),
        "version: 1\nbackends: {card: {groups: [{paths: [x]}]}}\nresource: []\n",
        '{"version": 1, "backends": {"card": {"groups": [{"paths": []}]}}}',
        "version: 1\nresources:\n  - {name: a.b/permittedHostDevices}\n",
    ],
)
def test_a_configuration_with_errors_is_not_taken_for_that_of_another_plugin(text: str) -> None:
    done = check("-", stdin=text)
    assert done.exit_code == 2
    assert "devhost import" not in done.stderr
