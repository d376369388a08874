"""Finds the configuration of a plugin for adapters, which the NVIDIA network operator may contain.

The operator has them in its NicClusterPolicy and NicNodePolicy as text, and had them in values of its chart
until release 24.10, whose template made the text.
"""

from __future__ import annotations

from typing import NoReturn

from devhost.config.document import Entry, Fields, Items, Node, Scalar, parse

from .source import CHOOSE, GUIDE, Object, Source, Value, node_at, some, text_at
from .workload import Container, Options, the_container

_POLICIES = ("NicClusterPolicy", "NicNodePolicy")
_IMPORTERS = {
    "rdmaSharedDevicePlugin": "rdma-shared-dev-plugin",
    "sriovDevicePlugin": "sriov-network-device-plugin",
}

_DEFAULTS = {
    "rdmaSharedDevicePlugin": b"[{name: rdma_shared_device_a, vendors: [15b3]}]",
    "sriovDevicePlugin": b"[{name: hostdev, vendors: [15b3]}]",
}
"""The chart's own values of ``resources``."""

_OF_CHART = {*_IMPORTERS, "deployCR", "keepNCP", "maintenanceOperator", "sriovNetworkOperator"}
"""Keys of the chart's values."""

NAMED = {"use-cdi": "set inject: cdi, see docs/cdi.md."}
"""A flag of both plugins without a counterpart."""

_FORMER = {
    "sriov": "sriov-network-device-plugin replaced it: write its resourceList with these interfaces in "
    "pfNames, and give that to `devhost import sriov-network-device-plugin`",
    "hca": "k8s-rdma-shared-dev-plugin replaced it: write its configList, and give that to `devhost import "
    "rdma-shared-dev-plugin`",
}
"""What to do with a configuration of k8s-rdma-sriov-dev-plugin, by its mode."""


def configuration(
    source: Source, section: str, top: str, program: str, key: str
) -> tuple[Value, Options | None]:
    """The plugin's document, and the flags that start the plugin if the input has them.

    Args:
        source: the input.
        section: the plugin's section in objects and values of the operator.
        top: the key of the list in the plugin's file.
        program: a word that its image or command has.
        key: the entry of a ConfigMap that the user chose.

    Raises:
        ConfigError: it is in no object, or several objects have one.
    """
    plugin = the_container(source, lambda one: one.starts(program) or one.starts("-resource-prefix"), program)
    mine = [one for one in source.objects if one.kind in _POLICIES and one.at("spec", section, "config")]
    values = source.values("network-operator", recognized=lambda one: not _OF_CHART.isdisjoint(one.keys))
    bare = [one for one in source.objects if not one.kind and one is not values]
    if len(mine) + len(bare) > 1:
        named = " and ".join(str(one) for one in (*mine, *bare)[:3])
        message = f"several objects contain a configuration: {named}"
        (*mine, *bare)[1].fail(message, "give only one of them")
    options = plugin.options(("use-cdi",)) if plugin and not mine else None
    if mine:
        found, options = _of_policy(mine[0], section)
    elif bare:
        found = bare[0]
    elif values is not None and any(node_at(values.node, name) for name in _IMPORTERS):
        found = _of_values(values, section, top)
    else:
        names = plugin.config_maps if plugin else ()
        path = options.flag("config-file") if options else None
        name, entry = plugin.entry(path.text) if plugin and path else ("", "")
        held = source.config_map(
            "config.json",
            likely=lambda node: node_at(node, top) is not None,
            key=key or entry,
            names=[name] if name else names,
        )
        found = held if held is not None else _refuse(source, section, plugin)
        if source.left and not entry:
            source.note(f"This is the entry {source.chosen}; for the others ({some(source.left)}) use --key.")
    mode = text_at(found.node, "mode") or ("sriov" if node_at(found.node, "pfNetdevices") else "")
    if mode in _FORMER and node_at(found.node, top) is None:
        found.fail(f"it is for k8s-rdma-sriov-dev-plugin in mode {mode}", _FORMER[mode])
    if isinstance(listed := node_at(found.node, top), Scalar) and listed.kind == "null":
        message = f"{found.place.key(top).path} is null: this node has no resources"
        found.fail(message, CHOOSE if source.left else "give the file of another node", listed.mark)
    return found, options


def _refuse(source: Source, section: str, plugin: Container | None) -> NoReturn:
    """Refuses an input without the plugin's configuration.

    Raises:
        ConfigError: always.
    """
    for one in source.objects:
        other = next((name for name in _IMPORTERS if name != section and one.at("spec", name, "config")), "")
        if one.kind in _POLICIES and other:
            message = f"this {one} has spec.{other}.config, but no spec.{section}.config"
            one.fail(message, f"devhost import {_IMPORTERS[other]}")
        if one.kind in _POLICIES:
            hint = f"is it the right object? For other plugins see {GUIDE}"
            one.fail(f"it has no spec.{section}.config", hint)
        if one.kind.startswith("SriovNetwork"):
            command = "kubectl get daemonsets,configmaps -n sriov-network-operator -o yaml"
            message = f"the operator makes the ConfigMap device-plugin-config of each {one.kind}"
            one.fail(message, f"{command} | devhost import {_IMPORTERS['sriovDevicePlugin']} --key NODE -")
        if not one.kind:
            message = f"these values have no {section}: the chart has none since release 24.10"
            one.fail(message, "give the object: kubectl get nicclusterpolicies -o yaml")
    if plugin is not None:
        names = some(plugin.config_maps) or "that its pod mounts"
        plugin.fail(
            "its configuration is in a ConfigMap, which is not in this file", f"add the ConfigMap {names}"
        )
    source.refuse(
        "give one ConfigMap, one NicClusterPolicy, one NicNodePolicy, or the configuration itself; "
        f"for other plugins see {GUIDE}"
    )


def _of_policy(one: Object, section: str) -> tuple[Value, Options]:
    """The document, and the flags of the plugin: the operator adds only -use-cdi."""
    spec = one.at("spec") or one
    plugin, found = one.at("spec", section), one.at("spec", section, "config")
    assert plugin is not None and found is not None
    if plugin.is_true("useCdi"):
        one.source.note(f"{plugin.place.path}.useCdi: {NAMED['use-cdi']}")
    plugin.for_pods()
    spec.leave("parts of the network operator, which keep their settings.", section)
    return found.document(), Options(plugin)


def _of_values(values: Value, section: str, top: str) -> Value:
    """What the chart makes of its values: each item has a name, and selectors beside it."""
    source, plugin = values.source, values.at(section)
    values.for_pods()
    values.leave("other parts of the network operator, which keep their settings.", section)
    resources = plugin.at("resources") if plugin else None
    if plugin is not None and resources is None and plugin.is_true("deploy"):
        node = parse(_DEFAULTS[section], source.diagnostics)
        resources = source.document(node, plugin.place.key("resources"))
        source.note(f"{section}.resources are those of the chart's default.")
    if plugin is None or resources is None:
        other = " and ".join(
            _IMPORTERS[name] for name in _IMPORTERS if node_at(values.node, name, "resources")
        )
        hint = f"devhost import {other}" if other else "is it the right file?"
        values.fail(f"these values have no {section}.resources", hint)
    if not plugin.is_true("deploy", otherwise=True):
        source.note(f"{section}.deploy is false: the operator does not start the plugin.")
    if plugin.is_true("useCdi"):
        source.note(f"{section}.useCdi: {NAMED['use-cdi']}")
    plugin.for_pods()
    made = [_item(one, section) for one in resources.each()]
    node = Fields(plugin.node.mark, {top: Entry(plugin.node.mark, Items(plugin.node.mark, tuple(made)))})
    resources.take()
    return source.document(node, plugin.place)


def _item(one: Value, section: str) -> Node:
    entries = dict(one.node.entries) if isinstance(one.node, Fields) else {}
    mark = one.node.mark
    outer = {"resourceName": entries.pop("name")} if "name" in entries else {}
    if section == "sriovDevicePlugin":
        outer["resourcePrefix"] = Entry(mark, Scalar(mark, "nvidia.com", "str"))
        entries["isRdma"] = Entry(mark, Scalar(mark, "true", "bool"))
    else:
        if "rdmaHcaMax" not in entries:
            one.source.note(
                "rdmaHcaMax is 63, the default of the chart since 23.7; older releases have 1000."
            )
        outer["rdmaHcaMax"] = entries.pop("rdmaHcaMax", Entry(mark, Scalar(mark, "63", "int")))
    selectors = {
        key: entry
        for key, entry in entries.items()
        if not (isinstance(entry.value, Items) and not entry.value.items)
    }
    return Fields(mark, {**outer, "selectors": Entry(mark, Fields(mark, selectors))})
