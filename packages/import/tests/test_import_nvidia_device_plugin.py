"""`devhost import nvidia-device-plugin`: the same resources from the same GPUs, with remarks on
differences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from devhost_gpu.options import GpuResourceOptions, Mps
from devhost_import import nvidia
from devhost_import.command import command
from devhost_import.source import Source
from importing import installed, said

from devhost.backend.errors import ConfigError
from devhost.backend.where import holds
from devhost.config.loader import load
from devhost.planning.settings import LABEL_DIRECTORY, Prefer, ResourceSettings, Settings

if "gpu" not in installed().installed:
    pytest.skip("the result is for the gpu backend", allow_module_level=True)

README = """version: v1
flags:
  migStrategy: "none"
  failOnInitError: true
  nvidiaDriverRoot: "/"
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: "envvar"
    deviceIDStrategy: "uuid"
"""
"""The example of the plugin's own documentation."""

SLICED = """version: v1
sharing:
  timeSlicing:
    %s
    resources:
    - name: nvidia.com/gpu
      replicas: 10
"""

WRITTEN = """version: v1
flags: {migStrategy: mixed}
resources:
  gpus:
  - {pattern: "A100-SXM4-40GB", name: a100-40}
  - {pattern: "T4*", name: nvidia.com/t4}
  - {pattern: "A100*80GB", name: a100-40}
  - {pattern: "*", name: gpu}
  - {pattern: "V100", name: v100}
  mig:
  - {pattern: "1g.*", name: small}
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      rename: nvidia.com/part
      devices: [0, "3", GPU-b1028956-cfa2-0990-bf4a-5da9abb51763]
      replicas: 4
    - {name: nvidia.com/t4, devices: 2, replicas: 3}
    - {name: nvidia.com/mig-2g.10gb, replicas: 2}
"""


def convert(data: bytes, file_name: str, key: str = "", *, as_written: bool = False) -> str:
    source = Source(data, file_name, "nvidia-device-plugin", key)
    return nvidia.convert(source, as_written=as_written)


@pytest.fixture
def read(tmp_path: Path):
    """Converts and loads the result, as `devhost check` does; gives the text too."""

    def run(source: str, **options: object) -> tuple[Settings, str]:
        text = convert(source.encode(), "config.yaml", **options)
        file = tmp_path / "devhost.yaml"
        file.write_text(text)
        return load(file).settings, text

    return run


def options(settings: Settings) -> object:
    return settings.backends["gpu"]


def taken(entry: ResourceSettings, **attributes: object) -> bool:
    return holds(entry.where, {"vendor": "nvidia", "kind": "gpu", **attributes})


def config_map(**configs: str) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "data": configs})


def command_line(*arguments: str, text: str = README) -> Result:
    return CliRunner().invoke(command, ["nvidia-device-plugin", *arguments], input=text)


def test_the_example_of_the_plugin_needs_no_options(read) -> None:
    settings, text = read(README)
    (entry,) = settings.resources
    assert (entry.name, entry.backend, entry.share.replicas) == ("nvidia.com/gpu", "gpu", 1)
    assert taken(entry) and not taken(entry, kind="mig") and not taken(entry, vendor="amd")
    assert "backends:" not in text
    assert not settings.write_labels


@pytest.mark.parametrize("source", ["{}", "version: v1", '{\n\t"version": "v1"\n}'])
def test_an_empty_configuration_serves_whole_gpus(read, source: str) -> None:
    assert [entry.name for entry in read(source)[0].resources] == ["nvidia.com/gpu"]


def test_options_keep_their_meaning(read) -> None:
    settings, _ = read("""version: v1
flags:
  nvidiaDriverRoot: /run/nvidia/driver
  nvidiaDevRoot: /
  gdsEnabled: true
  plugin: {passDeviceSpecs: true, deviceListStrategy: [volume-mounts, cdi-cri], deviceIDStrategy: index,
           nvidiaCTKPath: /usr/local/nvidia/toolkit/nvidia-ctk}
""")
    found = options(settings)
    assert (found.driver_root, found.dev_root) == ("/run/nvidia/driver", "/")
    assert found.strategies == {"volume-mounts", "device-specs", "cdi"}
    assert found.device_ID_strategy == "index"
    assert found.gds_enabled
    assert found.nvidia_CTK_path == "/usr/local/nvidia/toolkit/nvidia-ctk"


@pytest.mark.parametrize(
    ("plugin", "strategies", "words"),
    [
        ("deviceListStrategy: cdi-annotations", {"cdi"}, "in the field for CDI devices"),
        ("deviceListStrategy: [envvar, volume-mounts]", {"volume-mounts"}, "omitted"),
        ("deviceListStrategy: cdi-cri, passDeviceSpecs: true", {"cdi"}, "passDeviceSpecs"),
    ],
)
def test_only_strategies_with_an_effect_are_kept(read, plugin: str, strategies: set[str], words: str) -> None:
    settings, text = read(f"flags: {{plugin: {{{plugin}}}}}")
    assert options(settings).strategies == strategies
    assert words in text


@pytest.mark.parametrize("strategy", ["envvar", "cdi-cri", "cdi-annotations"])
def test_additional_devices_are_requested_with_any_strategy(read, strategy: str) -> None:
    """The plugin sets the variables with CDI alone as well, and adds names."""
    flags = "gdsEnabled: true, mofedEnabled: true, gdrcopyEnabled: true"
    settings, text = read(f"flags: {{{flags}, plugin: {{deviceListStrategy: {strategy}}}}}")
    found = options(settings)
    assert found.gds_enabled and found.mofed_enabled and found.gdrcopy_enabled
    assert "is omitted" not in text


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts", "[cdi-cri, envvar]", "cdi-cri"])
def test_imex_channels_are_passed_on(read, strategy: str) -> None:
    settings, text = read(
        f"{{imex: {{channelIDs: [0]}}, flags: {{plugin: {{deviceListStrategy: {strategy}}}}}}}"
    )
    assert options(settings).imex_channel_IDs == (0,)
    assert "is omitted" not in text


def test_mig_instances_are_gpus_with_single_and_have_names_with_mixed(read) -> None:
    (entry,) = read("flags: {migStrategy: single}")[0].resources
    assert taken(entry) and taken(entry, kind="mig", profile="1g.5gb")
    gpus, instances = read("flags: {migStrategy: mixed}")[0].resources
    assert not taken(gpus, kind="mig", profile="1g.5gb")
    assert instances.name == "nvidia.com/mig-{profile}"
    assert taken(instances, kind="mig", profile="1g.5gb")
    assert not taken(instances, kind="mig", profile="1c.2g.10gb")  # nor does the plugin serve those


@pytest.mark.parametrize(
    ("key", "name"),
    [("renameByDefault: true", "nvidia.com/gpu.shared"), ("renameByDefault: false", "nvidia.com/gpu")],
)
def test_time_slicing_becomes_replicas(read, key: str, name: str) -> None:
    (entry,) = read(SLICED % key)[0].resources
    assert (entry.name, entry.share.replicas, entry.prefer) == (name, 10, Prefer.SPREAD)


def test_the_packed_policy_packs(read) -> None:
    settings, _ = read(SLICED % "" + "flags: {plugin: {sharedDevicesAllocationPolicy: packed}}\n")
    assert settings.resources[0].prefer is Prefer.PACK


def test_a_shared_profile_comes_before_the_others(read) -> None:
    settings, _ = read(
        "flags: {migStrategy: mixed}\n"
        "sharing: {timeSlicing: {resources: [{name: mig-1g.10gb.me, replicas: 2}]}}"
    )
    _, shared, rest = settings.resources
    assert (shared.name, shared.share.replicas) == ("nvidia.com/mig-1g.10gb.me", 2)
    assert taken(shared, kind="mig", profile="1g.10gb+me")
    assert rest.share.replicas == 1


@pytest.mark.parametrize(
    ("key", "name"),
    [("renameByDefault: true", "nvidia.com/gpu.shared"), ("renameByDefault: false", "nvidia.com/gpu")],
)
def test_mps_uses_the_daemon_of_the_plugin_for_the_shared_resource(read, key: str, name: str) -> None:
    settings, text = read(
        f"flags: {{mpsRoot: /run/mps/}}\nsharing: {{mps: {{{key}, resources: [{{name: gpu, replicas: 4}}]}}}}"
    )
    (entry,) = settings.resources
    assert (entry.name, entry.share.replicas) == (name, 4)
    assert entry.options == GpuResourceOptions(mps=Mps(root="/run/mps")).named(name)
    assert "does not start MPS servers" in text


def test_mps_without_a_root_uses_that_of_the_plugin_chart(read) -> None:
    settings, _ = read("sharing: {mps: {resources: [{name: gpu, replicas: 4}]}}")
    assert settings.resources[0].options.mps == Mps(root="/run/nvidia/mps")


def test_time_slices_and_instances_have_no_mps(read) -> None:
    assert read(SLICED % "")[0].resources[0].options.mps is None
    single = "flags: {migStrategy: single}\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}"
    settings, text = read(single)
    assert str(settings.resources[0].where[0]) == "vendor: nvidia, kind: gpu"
    assert "shares no MIG instances by MPS" in text


def test_what_the_plugin_refuses_to_start_with_is_refused(read) -> None:
    with pytest.raises(ConfigError, match="with migStrategy mixed the plugin does not start"):
        read("flags: {migStrategy: mixed}\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}")


def test_roots_and_programs_without_their_feature_are_named(read) -> None:
    text = read("flags: {mpsRoot: /a, plugin: {nvidiaCTKPath: /b}}")[1]
    assert "mpsRoot is omitted" in text and "nvidiaCTKPath is omitted" in text


def test_instances_with_the_name_of_gpus_are_in_their_entry() -> None:
    resources = "resources: {gpus: [{pattern: '*', name: gpu}], mig: [{pattern: 3g.20gb, name: gpu}]}"
    text = convert(f"flags: {{migStrategy: mixed}}\n{resources}".encode(), "x.yaml", as_written=True)
    assert '- {vendor: nvidia, kind: mig, profile: "*3g.20gb*"}' in text and "already offered" not in text


@pytest.mark.parametrize(
    ("sharing", "most"),
    [
        ("timeSlicing: {resources: [{name: gpu, replicas: 4}]}", None),
        ("timeSlicing: {failRequestsGreaterThanOne: false, resources: [{name: gpu, replicas: 4}]}", None),
        ("timeSlicing: {failRequestsGreaterThanOne: true, resources: [{name: gpu, replicas: 4}]}", 1),
        ("mps: {resources: [{name: gpu, replicas: 4}]}", 1),
        ("mps: {failRequestsGreaterThanOne: false, resources: [{name: gpu, replicas: 4}]}", 1),
    ],
)
def test_the_limit_of_shares_per_container_is_the_same_as_in_the_plugin(
    read, sharing: str, most: int | None
) -> None:
    """The plugin refuses more than one share if failRequestsGreaterThanOne says so, and always with MPS."""
    settings, _ = read(f"sharing: {{{sharing}}}")
    assert [entry.share.max_per_container for entry in settings.resources] == [most]


def test_only_shared_resources_are_limited_to_one(read) -> None:
    settings, _ = read(
        "flags: {migStrategy: mixed}\n"
        "sharing: {timeSlicing: {failRequestsGreaterThanOne: true, resources: [{name: gpu, replicas: 2}]}}"
    )
    assert [entry.share.max_per_container for entry in settings.resources] == [1, None]


def test_a_limit_of_one_share_is_kept_where_only_some_devices_are_shared(read) -> None:
    settings, text = read(
        "sharing:\n  timeSlicing:\n    failRequestsGreaterThanOne: true\n"
        "    resources: [{name: gpu, replicas: 2, devices: [0]}]\n",
        as_written=True,
    )
    (entry,) = settings.resources
    assert (entry.share.max_per_container, len(entry.share.overrides)) == (1, 1)
    assert "maxPerContainer limits whole GPUs of this resource as well" in text


def test_gpu_feature_discovery_becomes_labels(read) -> None:
    settings, text = read("flags: {gfd: {oneshot: false, sleepInterval: 60s}}")
    assert (settings.write_labels, settings.label_directory) == (True, LABEL_DIRECTORY)
    assert "remove that program" in text
    settings, _ = read("flags: {gfd: {outputFile: /srv/features.d/gfd}}")
    assert settings.label_directory == Path("/srv/features.d")


@pytest.mark.parametrize("file", ["''", "gfd", "features.d/gfd"])
def test_a_file_of_labels_without_a_directory_is_omitted_with_a_remark(read, file: str) -> None:
    settings, text = read(f"flags: {{gfd: {{outputFile: {file}}}}}")
    assert (settings.write_labels, settings.label_directory) == (True, LABEL_DIRECTORY)
    assert "flags.gfd.outputFile is omitted" in text


def test_a_program_without_a_directory_is_refused(read) -> None:
    with pytest.raises(ConfigError, match='nvidiaCTKPath: must be an absolute path, not "nvidia-ctk"'):
        read("flags: {plugin: {deviceListStrategy: cdi-cri, nvidiaCTKPath: nvidia-ctk}}")


def test_settings_that_the_plugin_ignores_are_omitted_with_a_remark(read) -> None:
    settings, text = read(WRITTEN)
    assert [entry.name for entry in settings.resources] == [
        "nvidia.com/gpu",
        "nvidia.com/mig-2g.10gb",
        "nvidia.com/mig-{profile}",
    ]
    assert text.count("--as-written applies it") == 3
    assert "nvidia.com/t4 is not a resource with migStrategy mixed" in text


def test_as_written_applies_ignored_settings(read) -> None:
    settings, text = read(WRITTEN, as_written=True)
    by_name = {entry.name: entry for entry in settings.resources}
    assert list(by_name) == [
        "nvidia.com/a100-40",
        "nvidia.com/t4",
        "nvidia.com/part",
        "nvidia.com/gpu",
        "nvidia.com/small",
        "nvidia.com/mig-2g.10gb",
        "nvidia.com/mig-{profile}",
    ]
    a100 = by_name["nvidia.com/a100-40"]
    assert taken(a100, product="NVIDIA A100-SXM4-40GB") and taken(a100, product="NVIDIA A100-SXM4-80GB")
    part = by_name["nvidia.com/part"]
    assert part.share.replicas == 4
    assert taken(part, index=3) and not taken(part, index=1)
    assert taken(part, index=1, uuid="GPU-b1028956-cfa2-0990-bf4a-5da9abb51763")
    (override,) = by_name["nvidia.com/t4"].share.overrides
    assert override.replicas == 3
    assert holds(override.where, {"vendor": "nvidia", "kind": "gpu", "product": "Tesla T4", "index": 1})
    assert "patterns after * never match" in text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("flags: {failOnInitError: false}", "failOnInitError"),
        ("flags: {deviceDiscoveryStrategy: tegra}", "tegra"),
        ("flags: {plugin: {containerDriverRoot: /x}}", "containerDriverRoot"),
        ("flags: {plugin: {cdiAnnotationPrefix: x/}}", "cdiAnnotationPrefix"),
        ("imex: {channelIDs: [0], required: true}", "imex.required"),
        ("flags: {migstrategi: none}", "did you mean migStrategy?"),
        ("sharing: {timeSlicing: {resources: [{name: mig-1g.5gb, replicas: 2}]}}", "is not a resource with"),
    ],
)
def test_settings_without_equivalent_get_a_remark(read, line: str, words: str) -> None:
    _, text = read(line)
    comments = [one for one in text.splitlines() if one.startswith("#")]
    assert any(words in comment for comment in comments)


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("version: v2", "version"),
        ("flags: {migStrategy: both}", "flags.migStrategy"),
        ("flags: {plugin: {deviceListStrategy: [envvars]}}", "flags.plugin.deviceListStrategy[0]"),
        ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 1}]}}", "replicas"),
        ("sharing: {timeSlicing: {resources: [{name: gpu}]}}", "sharing.timeSlicing.resources[0]"),
        ("sharing: {timeSlicing: {resources: []}}", "sharing.timeSlicing.resources"),
        ("sharing: {timeSlicing: {renameByDefault: true}}", "sharing.timeSlicing"),
        ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: some}]}}", "devices"),
        ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: 0}]}}", "devices"),
        ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [x]}]}}", "devices[0]"),
        ("resources: {gpus: [{pattern: '*', name: 'a b'}]}", "resources.gpus[0].name"),
        ("imex: {channelIDs: [1]}", "imex.channelIDs[0]"),
        ("- a list", ""),
        ("kind: Secret", ""),
    ],
)
def test_a_configuration_that_the_plugin_refuses_is_refused_with_the_place(
    read, source: str, path: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(source)
    assert any(one.path.endswith(path) for one in caught.value.diagnostics)
    assert all(str(one).isprintable() for one in caught.value.diagnostics)


def test_both_ways_of_sharing_at_once_are_refused(read) -> None:
    one = "{resources: [{name: gpu, replicas: 2}]}"
    with pytest.raises(ConfigError, match="by timeSlicing or mps, not both"):
        read(f"sharing: {{timeSlicing: {one}, mps: {one}}}")


def test_a_config_map_with_one_configuration_needs_no_key(read) -> None:
    assert [entry.name for entry in read(config_map(any=README))[0].resources] == ["nvidia.com/gpu"]


def test_of_several_configurations_the_requested_one_or_the_default_is_read() -> None:
    both = config_map(default=README, sliced=SLICED % "renameByDefault: true")
    assert "nvidia.com/gpu.shared" not in command_line("-", text=both).stdout
    assert "nvidia.com/gpu.shared" in command_line("--key", "sliced", "-", text=both).stdout


VALUES = """
config:
  map:
    default: |-
      version: v1
      flags: {migStrategy: none}
    sliced: |-
      version: v1
      sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}
    mixed: |-
      version: v1
      flags: {migStrategy: mixed}
  default: %s
"""
"""Values of the plugin's chart, as its documentation has them."""


def replicas(settings: Settings) -> dict[str, int]:
    return {entry.name: entry.share.replicas for entry in settings.resources}


def comments(text: str) -> str:
    return "\n".join(line for line in said(text).splitlines() if line.startswith("#"))


def test_values_of_the_chart_lead_to_its_default_configuration(read) -> None:
    """Nodes without a label of their own have config.default there."""
    settings, text = read(VALUES % "sliced")
    assert replicas(settings) == {"nvidia.com/gpu": 4}
    assert "This is the configuration sliced." in text
    assert "nvidia.com/device-plugin.config (default, mixed), import it with --key" in said(text)


@pytest.mark.parametrize(("default", "expected"), [("mixed", 2), ('""', 1), ("null", 1)])
def test_values_without_a_default_fall_back_as_the_chart_does(read, default: str, expected: int) -> None:
    """The chart's config-manager takes the one called default, or the only one."""
    assert len(read(VALUES % default)[0].resources) == expected
    only = 'config: {map: {any: "flags: {migStrategy: single}"}}'
    assert taken(read(only)[0].resources[0], kind="mig", profile="1g.5gb")


def test_another_configuration_of_values_is_selected_by_key() -> None:
    done = command_line("--key", "mixed", "-", text=VALUES % "sliced")
    assert "nvidia.com/mig-{profile}" in done.stdout
    with pytest.raises(ConfigError, match=r"it has no config\.map\.other .*may be default, sliced, mixed"):
        convert((VALUES % "sliced").encode(), "values.yaml", "other")
    with pytest.raises(ConfigError, match=r"no configuration is the default .*--key, which may be a, b"):
        convert(b'config: {map: {a: "version: v1", b: "version: v1"}}', "values.yaml")


def test_values_that_name_a_config_map_are_refused_with_the_command_to_get_it() -> None:
    with pytest.raises(ConfigError) as caught:
        convert(b"config: {name: plugin-configs, default: a100}", "values.yaml")
    command = (
        "(helm get values RELEASE -n NAMESPACE; echo ---; kubectl get configmap plugin-configs -n NAMESPACE "
        "-o yaml) | devhost import nvidia-device-plugin --key a100 -"
    )
    assert command in str(caught.value)


def test_settings_next_to_the_configuration_take_precedence(read) -> None:
    """The chart makes variables of them, and a variable wins over the plugin's file."""
    more = "migStrategy: mixed\nnvidiaDriverRoot: /run/nvidia/driver\ncompatWithCPUManager: true\n"
    settings, _ = read(VALUES % "sliced" + more + "deviceListStrategy: volume-mounts,cdi-cri\n")
    assert replicas(settings) == {"nvidia.com/gpu": 4, "nvidia.com/mig-{profile}": 1}
    found = options(settings)
    assert found.driver_root == "/run/nvidia/driver"
    assert found.strategies == {"volume-mounts", "device-specs", "cdi"}


def test_settings_alone_are_accepted_as_values(read) -> None:
    assert len(read("migStrategy: mixed\nconfig: {map: {}}\nfailOnInitError: null\n")[0].resources) == 2
    settings, text = read("gfd: {enabled: true}\nimage: {tag: v1}\nmigStrategi: mixed\n")
    assert settings.write_labels and replicas(settings) == {"nvidia.com/gpu": 1}
    assert "image: settings of the plugin's pods" in comments(text)
    assert "migStrategi: this import does not know it (did you mean migStrategy?)" in text


def test_the_root_of_mps_is_that_of_the_chart(read) -> None:
    sharing = 'config: {map: {a: "sharing: {mps: {resources: [{name: gpu, replicas: 4}]}}"}}\n'
    settings, _ = read(sharing + "mps: {root: /run/mps}\n")
    assert settings.resources[0].options.mps == Mps(root="/run/mps")


def test_labels_are_written_where_the_chart_starts_feature_discovery(read) -> None:
    """gfd.enabled of the chart decides, whatever the configuration says under flags.gfd."""
    text = 'config: {map: {a: "flags: {gfd: {oneshot: false}}"}}\n'
    settings, result = read(text)
    assert not settings.write_labels and "gfd.enabled" in comments(result)
    assert read(text + "gfd: {enabled: true}\n")[0].write_labels


def test_the_configuration_is_read_from_values_of_the_gpu_operator(read) -> None:
    text = """
driver: {enabled: false}
mig: {strategy: mixed}
devicePlugin:
  config:
    create: true
    name: time-slicing
    default: any
    data:
      any: "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
      other: "version: v1"
"""
    settings, result = read(text)
    assert replicas(settings) == {"nvidia.com/gpu": 4, "nvidia.com/mig-{profile}": 1}
    assert settings.write_labels
    assert "(other), import it with --key" in said(result)


@pytest.mark.parametrize(
    "wrap",
    [
        "nvidia-device-plugin: {migStrategy: mixed}",
        "{kind: HelmRelease, spec: {values: {migStrategy: mixed}}}",
        "{kind: HelmChart, spec: {valuesContent: 'migStrategy: mixed'}}",
    ],
)
def test_values_are_found_in_parent_charts_and_objects_of_other_tools(read, wrap: str) -> None:
    assert len(read(wrap)[0].resources) == 2


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("migStrategy: both", "migStrategy"),
        ("failOnInitError: maybe", "failOnInitError"),
        ("nvidiaDriverRoot: run/nvidia/driver", "nvidiaDriverRoot"),
        ("deviceListStrategy: envvar,env", "deviceListStrategy[1]"),
        ("config: {map: {a: 'flags: {migStrategy: both}'}}", "flags.migStrategy"),
    ],
)
def test_wrong_values_are_refused_with_their_place(read, source: str, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(source)
    assert [one.path for one in caught.value.diagnostics] == [path]


def test_the_object_of_the_gpu_operator_is_refused_with_the_place_of_the_configuration() -> None:
    """A ClusterPolicy only names a ConfigMap and which of its configurations is the default."""
    policy = {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "cluster-policy"},
        "spec": {"devicePlugin": {"config": {"name": "slices", "default": "any"}}},
    }
    with pytest.raises(ConfigError) as caught:
        convert(json.dumps(policy).encode(), "policy.json")
    assert "kubectl get configmap slices" in str(caught.value)
    assert "devhost import nvidia-device-plugin --key any -" in str(caught.value)
    held = json.loads(config_map(any=SLICED % "", other=README))
    held["metadata"] = {"name": "slices"}
    both = json.dumps(policy) + "\n---\n" + json.dumps(held)
    assert "replicas: 10" in command_line("-", text=both).stdout
    assert "replicas" not in command_line("--key", "other", "-", text=both).stdout


def daemon_set(*args: str, **variables: str) -> str:
    container = {
        "name": "nvidia-device-plugin-ctr",
        "image": "nvcr.io/nvidia/k8s-device-plugin:v0.17.1",
        "args": list(args),
        "env": [{"name": name, "value": value} for name, value in variables.items()],
    }
    helper = {"name": "sidecar", "image": container["image"], "command": ["config-manager"]}
    spec = {"template": {"spec": {"containers": [helper, container]}}}
    return json.dumps({"apiVersion": "apps/v1", "kind": "DaemonSet", "spec": spec})


def test_flags_and_variables_of_the_daemon_set_are_read(read) -> None:
    """A flag wins over a variable there, and both over the file."""
    text = daemon_set(
        "--mig-strategy=mixed",
        "--pass-device-specs",
        MIG_STRATEGY="single",
        FAIL_ON_INIT_ERROR="false",
        DP_DISABLE_HEALTHCHECKS="xids",
    )
    settings, _ = read(text)
    assert replicas(settings) == {"nvidia.com/gpu": 1, "nvidia.com/mig-{profile}": 1}
    assert options(settings).strategies == {"envvar", "device-specs"}
    assert options(settings).health_checks == "none"
    assert replicas(read(daemon_set())[0]) == {"nvidia.com/gpu": 1}


def test_a_flag_with_a_list_that_is_given_several_times_adds_up(read) -> None:
    flags = ("--device-list-strategy=envvar", "--device-list-strategy", "cdi-cri")
    assert options(read(daemon_set(*flags))[0]).strategies == {"envvar", "cdi"}


def test_the_daemon_set_with_a_file_needs_its_config_map(read) -> None:
    text = daemon_set(CONFIG_FILE="/config/config.yaml", MIG_STRATEGY="mixed")
    with pytest.raises(ConfigError, match="add the ConfigMap"):
        read(text)
    both = f"{text}\n---\n{config_map(default=SLICED % '')}"
    assert replicas(read(both)[0]) == {"nvidia.com/gpu": 10, "nvidia.com/mig-{profile}": 1}


def test_a_rendered_chart_is_read_with_the_default_of_its_helper(read) -> None:
    """`helm template`: an argument of the plugin's sidecar names the default configuration."""
    rendered = json.loads(daemon_set(CONFIG_FILE="/config/config.yaml"))
    helper = rendered["spec"]["template"]["spec"]["containers"][0]
    helper["env"] = [{"name": "DEFAULT_CONFIG", "value": "sliced"}]
    others = (
        "kind: ServiceAccount\n---\nkind: ConfigMap\nmetadata: {name: kube-root-ca.crt}\ndata: {ca.crt: x}"
    )
    both = config_map(first=README, sliced=SLICED % "")
    settings, result = read(f"{others}\n---\n{json.dumps(rendered)}\n---\n{both}")
    assert replicas(settings) == {"nvidia.com/gpu": 10}
    assert "This is the configuration sliced" in said(result)


def test_a_requested_configuration_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="--key, which may be any"):
        convert(config_map(any=README).encode(), "cm.yaml", "other")


@pytest.mark.parametrize(
    "source",
    [
        "foo: 1",
        "{image: {tag: x}, resources: {limits: {cpu: 1}}, nodeSelector: {}}",
        "config: {logLevel: debug}",
        "resourceList: []",
        "driver: x",
        "kind: Secret",
        "kind: Deployment",
        "{kind: ConfigMap, data: {a: 'foo: 1'}}",
        "config: {map: {a: 'foo: 1'}}",
        "# nothing",
        "",
        "[]",
        "- migStrategy: mixed",
        "text",
        "null",
    ],
)
def test_a_document_without_keys_of_the_plugin_is_refused_in_one_line(source: str) -> None:
    """It would be an exclusive nvidia.com/gpu, whatever the file was about."""
    done = command_line("-", text=source)
    assert getattr(done.exception, "exit_code", None) == 2
    assert done.stdout == ""
    assert len(str(done.exception).splitlines()) == 1


@pytest.mark.parametrize("source", ["foo: 1", "kind: Deployment", "{kind: ConfigMap, data: {a: 'foo: 1'}}"])
def test_the_error_for_another_document_links_to_the_guide(source: str) -> None:
    assert "docs/migration.md" in str(command_line("-", text=source).exception)


def test_several_configurations_without_a_default_are_listed() -> None:
    with pytest.raises(ConfigError, match="--key, which may be a, b"):
        convert(config_map(a=README, b=README).encode(), "cm.yaml")


def test_the_command_reads_a_file_and_applies_its_options(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(WRITTEN)
    assert "nvidia.com/part" not in command_line(str(file)).stdout
    assert "nvidia.com/part" in command_line("--as-written", str(file)).stdout


def test_values_of_the_dra_driver_are_refused_with_the_page_about_dra() -> None:
    values = b"nvidiaDriverRoot: /run/nvidia/driver\nkubeletPlugin: {priorityClassName: x}\n"
    with pytest.raises(
        ConfigError, match=r"values of the NVIDIA DRA driver, not of the plugin \(see docs/dra.md\)"
    ):
        convert(values, "values.yaml")
