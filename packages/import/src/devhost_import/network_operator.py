"""Finds the configuration of a plugin for adapters, also in what configures the NVIDIA network operator.

The operator has it in its NicClusterPolicy and NicNodePolicy as text, and had it in values of its chart until
release 24.10, whose template made the text.
"""

from __future__ import annotations

from typing import NoReturn

from devhost.config.document import Entry, Fields, Items, Node, Scalar, parse

from .source import CHOOSE, GUIDE, Source, Value, text_at
from .workload import Container, Options, file_of, the_container

_POLICIES = ("NicClusterPolicy", "NicNodePolicy")
_SECTIONS = {  # of the plugins: the importer, and the name of the chart's default resource
    "rdmaSharedDevicePlugin": ("rdma-shared-dev-plugin", "rdma_shared_device_a"),
    "sriovDevicePlugin": ("sriov-network-device-plugin", "hostdev"),
}
_OF_CHART = {*_SECTIONS, "deployCR", "keepNCP", "maintenanceOperator", "sriovNetworkOperator"}
NAMED = {"use-cdi": "set inject: cdi, see docs/cdi.md."}  # a flag of both plugins without a counterpart

_FORMER = {  # what replaced the modes of k8s-rdma-sriov-dev-plugin
    "sriov": "write a resourceList, with these in pfNames, for `devhost import sriov-network-device-plugin`",
    "hca": "write a configList for `devhost import rdma-shared-dev-plugin`",
}


def configuration(source: Source, section: str, top: str, program: str) -> tuple[Value, Options | None]:
    """The plugin's document, and the flags that start the plugin if the input has them. ``section`` is the
    plugin's in objects and values of the operator, ``top`` the key of the list in its file, ``program`` a
    word in its image or command."""
    plugin = the_container(source, lambda one: one.starts(program) or one.starts("-resource-prefix"), program)
    policies = [one for one in source.objects if one.kind in _POLICIES and one.at("spec", section, "config")]
    values = source.values("network-operator", recognized=lambda one: not _OF_CHART.isdisjoint(one.keys))
    bare = [one for one in source.bare if one is not values]
    every = [*policies, *bare]
    source.one_of(every, made=[(one.at("spec", section) if one.kind else one).settings() for one in every])
    options = plugin.options(("use-cdi",)) if plugin and not policies else None
    if policies:
        spec = policies[0].at("spec")
        found, options = spec.at(section, "config").document(), Options(spec.at(section))
        _finish(spec, section)
    elif bare:
        found = bare[0]
    elif values is not None and any(map(values.has, _SECTIONS)):
        values.for_pods()
        found = _of_values(values, section, top)
        _finish(values, section)
    else:
        path = options.get("config-file").text() if options else ""
        held = file_of(source, plugin, path, "config.json", marks=[top])
        found = held or _refuse(source, section, plugin, path)
    mode = text_at(found.node, "mode") or ("sriov" if found.has("pfNetdevices") else "")
    if mode in _FORMER and not found.has(top):
        found.fail(f"it is for k8s-rdma-sriov-dev-plugin in mode {mode}", _FORMER[mode])
    if found.has(top) and not found.at(top):
        message = f"{found.place.key(top).path} is null: this node has no resources"
        found.at(top).fail(message, f"{CHOOSE}, or give the file of another node")
    return found, options


def _finish(holder: Value, section: str) -> None:
    part = holder.at(section)
    if part.is_true("useCdi"):
        holder.source.note(f"{part.place.path}.useCdi: {NAMED['use-cdi']}")
    part.for_pods()
    holder.leave("parts of the network operator, which keep their settings.", section)


def _refuse(source: Source, section: str, plugin: Container | None, path: str) -> NoReturn:
    for one in source.objects:
        if one.kind in _POLICIES:
            if other := next((name for name in _SECTIONS if one.at("spec", name, "config")), ""):
                message = f"this {one} has spec.{other}.config, but no spec.{section}.config"
                one.fail(message, f"devhost import {_SECTIONS[other][0]}")
            one.fail(f"it has no spec.{section}.config", f"is it the right object? For others see {GUIDE}")
        if one.kind.startswith("SriovNetwork"):
            command = "kubectl get daemonsets,configmaps -n sriov-network-operator -o yaml"
            message = f"the operator makes the ConfigMap device-plugin-config of each {one.kind}"
            one.fail(message, f"{command} | devhost import sriov-network-device-plugin --key NODE -")
        if not one.kind:
            message = f"these values have no {section}: the chart has none since release 24.10"
            one.fail(message, "give the object: kubectl get nicclusterpolicies -o yaml")
    if plugin is not None:
        plugin.lacks(path, "config.json")
    every = "one ConfigMap, one NicClusterPolicy, one NicNodePolicy, or the configuration itself"
    source.refuse(f"give {every}; for other plugins see {GUIDE}")


def _of_values(values: Value, section: str, top: str) -> Value:
    """What the chart makes of its values: each item has a name, and selectors beside it."""
    source, plugin = values.source, values.at(section)
    resources = plugin.at("resources")
    if not resources and plugin.is_true("deploy"):
        node = parse(b"[{name: %s, vendors: [15b3]}]" % _SECTIONS[section][1].encode(), source.diagnostics)
        resources = source.document(node, plugin.place.key("resources"))
        source.note(f"{section}.resources are those of the chart's default.")
    if not resources:
        others = [name for key, (name, _) in _SECTIONS.items() if values.has(key, "resources")]
        hint = f"devhost import {' and '.join(others)}" if others else "is it the right file?"
        values.fail(f"these values have no {section}.resources", hint)
    values.is_off("operator", section, "deploy")
    mark = plugin.node.mark
    made = tuple(_item(one, section) for one in resources.each())
    resources.take()
    return source.document(Fields(mark, {top: Entry(mark, Items(mark, made))}), plugin.place)


def _item(one: Value, section: str) -> Node:
    mark, entries = one.node.mark, dict(one.node.entries) if isinstance(one.node, Fields) else {}
    outer = {"resourceName": entries.pop("name")} if "name" in entries else {}
    if section == "sriovDevicePlugin":
        outer["resourcePrefix"] = Entry(mark, Scalar(mark, "nvidia.com", "str"))
        entries["isRdma"] = Entry(mark, Scalar(mark, "true", "bool"))
    else:
        if "rdmaHcaMax" not in entries:
            one.source.note("rdmaHcaMax is 63, the chart's default since 23.7; older releases have 1000.")
        outer["rdmaHcaMax"] = entries.pop("rdmaHcaMax", Entry(mark, Scalar(mark, "63", "int")))
    given = {key: entry for key, entry in entries.items() if entry.value != Items(entry.value.mark, ())}
    return Fields(mark, {**outer, "selectors": Entry(mark, Fields(mark, given))})
