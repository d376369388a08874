"""`devhost import generic-device-plugin`: from the objects that carry its configuration, and its domain."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from devhost_import.command import command

from devhost.config import loads
from devhost.discovery import catalog
from devhost.planning.settings import Settings

pytest.importorskip("devhost_udev", reason="the result is for the udev backend")

FILE = "devices: [{name: serial, groups: [{paths: [{path: '/dev/ttyUSB*'}]}]}]"
FUSE = '{"name": "fuse", "groups": [{"count": 10, "paths": [{"path": "/dev/fuse"}]}]}'
VIDEO = "name: video\ngroups:\n  - paths:\n      - path: /dev/video0\n"


def run(text: str, *arguments: str) -> Result:
    return CliRunner().invoke(command, ["generic-device-plugin", "-", *arguments], input=text)


def converted(text: str, *arguments: str) -> Settings:
    """The output as settings, which must be valid."""
    done = run(text, *arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return loads(done.stdout, "converted.yaml", catalog.load)


def names(text: str, *arguments: str) -> list[str]:
    return [entry.name for entry in converted(text, *arguments).resources]


def refused(text: str, *arguments: str) -> str:
    """The one line of the error, with exit code 2 and nothing on standard output."""
    done = run(text, *arguments)
    assert getattr(done.exception, "exit_code", None) == 2, (done.output, done.exception)
    assert done.stdout == ""
    (line,) = str(done.exception).splitlines()
    return line


def daemon_set(*args: str, image: str = "squat/generic-device-plugin", env: Any = ()) -> str:
    container = {"name": "plugin", "image": image, "args": list(args), "env": list(env)}
    spec = {"template": {"spec": {"containers": [container]}}}
    return yaml.safe_dump(
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "generic"}, "spec": spec}
    )


def config_map(name: str = "generic", **data: str) -> str:
    metadata = {"name": name, "namespace": "kube-system"}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def together(*documents: str) -> str:
    return "\n---\n".join(documents) + "\n---\n"


OTHERS = ("apiVersion: v1\nkind: Namespace\nmetadata: {name: x}", "kind: ServiceAccount\napiVersion: v1")


def test_without_a_domain_both_defaults_and_the_options_to_add_are_named() -> None:
    """The plugin's default is squat.ai before 0.2.0 and devic.es since: a guess would lose every pod."""
    line = refused(FILE)
    assert "squat.ai before version 0.2.0 and devic.es since" in line
    assert "add the one that your pods request: --domain devic.es or --domain squat.ai)" in line


APP = (
    "{image: {repository: ghcr.io/squat/generic-device-plugin, tag: 0.2.0}, args: [--device, '%s'], env: %s}"
)


@pytest.mark.parametrize(
    "env", ["{DOMAIN: a.org}", "{DOMAIN: {value: a.org}}", "[{name: DOMAIN, value: a.org}]"]
)
def test_a_domain_among_the_variables_of_a_chart_counts_in_each_form(env: str) -> None:
    app = APP % (FUSE.replace("\n", " "), env)
    assert names(app) == ["a.org/fuse"]  # of app-template 1
    assert names(f"controllers: {{main: {{containers: {{app: {app}}}}}}}") == ["a.org/fuse"]


@pytest.mark.parametrize(
    ("more", "domain"),
    [("", "squat.ai"), ("image: {tag: 0.2.0}", "squat.ai"), ("env: {DOMAIN: a.org}", "a.org")],
)
def test_values_of_the_plugins_chart_contain_the_file(more: str, domain: str) -> None:
    """That chart sets the variable DOMAIN, for each version of the image."""
    text = yaml.safe_dump({"config": {"data": FILE}})
    assert names(text + more) == [f"{domain}/serial"]
    line = refused(yaml.safe_dump({"config": {"data": FILE, "enabled": False}}) + more)
    assert "its devices are in the file /etc/generic-device-plugin/config.yaml" in line


@pytest.mark.parametrize("domain", ["squat.ai", "devic.es", "device.example.com"])
def test_a_given_domain_is_that_of_the_resources(domain: str) -> None:
    assert names(FILE, "--domain", domain) == [f"{domain}/serial"]
    assert names(f"domain: {domain}\n{FILE}") == [f"{domain}/serial"]
    assert names(daemon_set("--domain", domain, "--device", FUSE)) == [f"{domain}/fuse"]


def test_a_file_without_devices_needs_no_domain() -> None:
    assert names("devices: []") == []


@pytest.mark.parametrize(
    ("image", "domain"),
    [
        ("squat/generic-device-plugin:0.2.0", "devic.es"),
        ("ghcr.io/squat/generic-device-plugin:0.2.0@sha256:66c8d5c2", "devic.es"),
        ("registry.local:5000/squat/generic-device-plugin:v1.0.3", "devic.es"),
        ("squat/generic-device-plugin:0.1.0", "squat.ai"),
    ],
)
def test_the_image_tag_selects_the_default_domain(image: str, domain: str) -> None:
    text = daemon_set("--device", FUSE, image=image)
    assert names(text) == [f"{domain}/fuse"]
    assert f"# Domain: {domain}, the default of version" in run(text).stdout


@pytest.mark.parametrize("tag", ["", ":latest", ":36bfc606bba2064de6ede0ff2764cbb52edff70d", ":0.2.0-rc.1"])
def test_an_image_tag_without_version_selects_no_default_domain(tag: str) -> None:
    text = daemon_set("--device", FUSE, image=f"squat/generic-device-plugin{tag}")
    assert "the domain is missing" in refused(text)


def test_the_domain_comes_from_the_option_then_the_flag_then_the_variable_then_the_file() -> None:
    """The same order as the plugin's own, below the option of the import."""
    held = config_map(**{"config.yaml": f"domain: file.org\n{FILE}"})
    variable = [{"name": "DOMAIN", "value": "variable.org"}]
    assert names(together(held, daemon_set())) == ["file.org/serial"]
    assert names(together(held, daemon_set(env=variable))) == ["variable.org/serial"]
    everything = together(held, daemon_set("--domain=flag.org", env=variable))
    assert names(everything) == ["flag.org/serial"]
    assert names(everything, "--domain", "option.org") == ["option.org/serial"]


def test_a_daemon_set_gives_its_devices_as_flags_in_any_form() -> None:
    text = daemon_set("--listen=:9090", "--device", VIDEO, f"--device={FUSE}", "--log-level", "debug")
    video, fuse = converted(text, "--domain", "a.org").resources
    assert (video.name, video.share.replicas) == ("a.org/video", 1)
    assert (fuse.name, fuse.share.replicas) == ("a.org/fuse", 10)
    assert "# -listen :9090: see the options of `devhost run`" in run(text, "--domain", "a.org").stdout


def test_a_daemon_set_is_found_among_other_objects_and_in_a_list() -> None:
    text = daemon_set("--device", FUSE)
    assert names(together(*OTHERS, text), "--domain", "a.org") == ["a.org/fuse"]
    items = [yaml.safe_load(one) for one in (*OTHERS, text)]
    for kind in ("List", "DaemonSetList"):
        listed = json.dumps({"apiVersion": "v1", "kind": kind, "items": items})
        assert names(listed, "--domain", "a.org") == ["a.org/fuse"]


def test_the_device_flag_of_early_versions_is_a_name_and_paths() -> None:
    """`serial,/dev/ttyUSB*,/dev/ttyACM*`: each path makes devices of its own."""
    text = daemon_set("--device", "serial,/dev/ttyUSB*, /dev/ttyACM*")
    settings = converted(text, "--domain", "squat.ai")
    assert [entry.name for entry in settings.resources] == ["squat.ai/serial"]
    groups = settings.backends["udev"].groups  # type: ignore[attr-defined]
    assert [[member.path for member in group.members] for group in groups] == [
        ["/dev/ttyUSB*"],
        ["/dev/ttyACM*"],
    ]


def test_a_config_map_holds_the_file() -> None:
    assert names(config_map(**{"config.yaml": FILE}), "--domain", "a.org") == ["a.org/serial"]
    assert names(together(*OTHERS, config_map(anything=FILE)), "--domain", "a.org") == ["a.org/serial"]


def test_of_several_entries_the_requested_one_or_the_one_with_devices_is_read() -> None:
    mixed = config_map(**{"notes.txt": "hello", "devices.yaml": FILE})
    assert names(mixed, "--domain", "a.org") == ["a.org/serial"]
    both = config_map(one=FILE, other=f"devices: [{FUSE}]")
    assert names(both, "--domain", "a.org", "--key", "other") == ["a.org/fuse"]
    assert "choose one with --key, which may be one, other" in refused(both, "--domain", "a.org")
    assert "choose one with --key, which may be one, other" in refused(both, "--key", "third")


def test_a_daemon_set_with_a_file_requires_the_config_map() -> None:
    """The name of the file that its --config says is the key."""
    text = daemon_set("--config", "/etc/plugin/second.yaml", "--domain", "a.org")
    held = config_map(**{"first.yaml": FILE, "second.yaml": f"devices: [{FUSE}]"})
    assert names(together(text, held)) == ["a.org/fuse"]
    line = refused(text)
    assert "its devices are in the file /etc/plugin/second.yaml" in line and "ConfigMap" in line


def test_an_entry_that_the_pod_mounts_under_another_name_is_read() -> None:
    text = daemon_set("--config", "/etc/plugin/second.yaml", "--domain", "a.org")
    assert names(together(text, config_map(**{"first.yaml": FILE}))) == ["a.org/serial"]


def test_an_ambiguous_source_is_refused() -> None:
    twice = together(daemon_set("--device", FUSE), daemon_set("--device", VIDEO))
    assert "different configurations of generic-device-plugin: DaemonSet generic" in refused(
        twice, "--domain", "a.org"
    )
    maps = together(config_map("a", x=FILE), config_map("b", y=FILE))
    assert "different configurations of generic-device-plugin: ConfigMap a, ConfigMap b" in refused(
        maps, "--domain", "a.org"
    )


def test_the_section_of_microshift_is_read_with_its_own_domain() -> None:
    """MicroShift builds the plugin in, calls `usb` `usbs` and has a domain of its own."""
    text = """
apiServer: {}
genericDevicePlugin:
  status: Enabled
  devices:
  - {name: fuse, groups: [{paths: [{path: /dev/fuse}]}]}
  - {name: converter, groups: [{usbs: [{vendor: "0x1a86", product: "0x7523", serial: ""}]}]}
"""
    settings = converted(text)
    assert "# status: set it to Disabled before devhost serves these resources." in run(text).stdout
    assert [entry.name for entry in settings.resources] == [
        "device.microshift.io/fuse",
        "device.microshift.io/converter",
    ]
    _, converter = settings.backends["udev"].groups  # type: ignore[attr-defined]
    assert [(one.id_vendor, one.id_product) for one in converter.usb] == [("1a86", "7523")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Secret", 'a "Secret" contains no configuration'),
        ("kind: Secret", "see docs/migration.md"),
        (
            daemon_set("--device", FUSE, image="nginx").replace("--device", "--port"),
            "contains no configuration",
        ),
        (daemon_set("--device", FUSE, "--domian", "x.org"), "no flag --domian (did you mean domain?)"),
        (daemon_set("--device", "name: x"), "the key groups is required"),
        (daemon_set("--device", "]"), "args[1]"),
        (config_map(), "has no data."),
        ("foo: 1", "unknown key"),
    ],
)
def test_other_objects_and_documents_are_refused(text: str, message: str) -> None:
    done = run(text, "--domain", "a.org")
    assert getattr(done.exception, "exit_code", None) == 2, done.output
    assert message in str(done.exception)


def test_the_error_for_an_unknown_file_links_to_the_guide() -> None:
    done = run("foo: 1")
    assert "docs/migration.md" in str(done.exception)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("paths: [{path: /}]", "/ is not a device"),
        ("paths: [{path: '/dev/{x}'}]", "backslash and brace"),
        ("paths: [{path: /dev/x, mountPath: '/dev/{index}'}]", "backslash and brace"),
        ("paths: [{path: /dev/a, mountPath: /dev/x}, {path: /dev/b, mountPath: /dev/x}]", "already has"),
        ("paths: [{path: /dev/a}, {path: /srv/a, mountPath: /dev/}]", "already has"),
    ],
)
def test_values_that_devhost_cannot_use_are_refused(group: str, message: str) -> None:
    text = f"devices: [{{name: x, groups: [{{{group}}}]}}]"
    assert message in refused(text, "--domain", "a.org")


def test_a_key_that_the_plugin_ignores_is_omitted_with_a_remark() -> None:
    """The plugin's help names the count there, and the plugin ignores it there."""
    text = run(
        "{name: x, count: 3, groups: [{paths: [{path: /a, mountType: x}]}]}", "--domain", "a.org"
    ).stdout
    assert "count: this import does not know it (the plugin reads it in each group)" in text
    assert "groups[0].paths[0].mountType: this import does not know it" in text


def test_keys_are_read_in_any_case() -> None:
    text = "{Name: x, groups: [{COUNT: 2, paths: [{Path: /dev/x}]}]}"
    assert "share: {replicas: 2}" in run(text, "--domain", "a.org").stdout
