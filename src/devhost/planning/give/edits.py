"""What an entry gives a container, as part of the backend's answer: the same for every way of injection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from devhost.backend import templates
from devhost.backend.errors import AllocationError, printable
from devhost.backend.model import AttributeValue, Device, DeviceNode, Edits, Mount, too_large
from devhost.backend.where import show
from devhost.planning.naming import variable

from . import CDI_NAME, COUNT, ID, Give, GiveMount, GiveNode

Values = Mapping[str, AttributeValue]
Thing = TypeVar("Thing", GiveNode, GiveMount)


def completed(
    edits: Edits, give: Give, devices: Sequence[Device], resource: str, whole: int, of: str
) -> Edits:
    """A backend's answer with what the entry gives; the other arguments are those of :func:`given`.

    Raises ``AllocationError`` if both set a variable or an annotation, or as :func:`given`.
    """
    more = given(give, devices, resource, whole, of)
    for key, ours, theirs in (
        ("env", more.env, edits.env),
        ("annotations", more.annotations, edits.annotations),
    ):
        for name in sorted(ours.keys() & theirs.keys()):
            reason = f"the backend sets {name}, and so does give.{key} of the entry (remove it there)"
            raise AllocationError(f"{resource}: {reason}")
    return Edits.merge([edits, more])


def refusal(give: Give, device: Device, resource: str) -> str:
    """Why no container can get a device of a resource, by what it reports; empty if one can."""
    try:
        given(give, [device], resource, 0)
    except AllocationError as error:
        return error.message.removeprefix(f"{device.id}: ").removeprefix(f"{resource}: ")
    return ""


def given(give: Give, devices: Sequence[Device], resource: str, whole: int, of: str = "") -> Edits:
    """What an entry gives a container with these devices of a resource.

    ``whole`` is the number of devices that the resource has; 0 if that is not known. ``of`` is the
    attribute whose values make units, which count as one device each; empty if there are none. Raises
    ``AllocationError`` if a path or a name cannot be made of what the hardware reports.
    """
    nodes: list[DeviceNode] = []
    mounts: list[Mount] = []
    env: list[Mapping[str, str]] = []
    annotations: list[Mapping[str, str]] = []
    names: list[str] = []
    variables = give.variables(partial=not whole or len(devices) < whole)
    made: dict[str, str] = {}
    units: dict[str, list[Device]] = {}
    for device in templates.ranked(devices):
        units.setdefault(show(device.attributes.get(of, device.id)), []).append(device)
    for index, (name, members) in enumerate(units.items()):
        for device in members:
            values = {**device.attributes, ID: name, COUNT: len(units)}
            nodes += (
                DeviceNode(node.path, path, node.permissions, required=not node.optional, shared=True)
                for node, path in _places(give.nodes, values, index)
            )
            mounts += (
                Mount(mount.path, path or mount.path, mount.read_only, required=not mount.optional)
                for mount, path in _places(give.mounts, values, index)
            )
            env.append(_variables(variables, values, index, resource, made))
            annotations.append(templates.variables(give.annotations, values, index))
            names += (_cdi_name(name, values, index) for name in give.cdi_devices)
    found = templates.joined(env)
    if wrong := too_large(found):
        raise AllocationError(f"{resource}: {wrong}")
    texts = found, templates.joined(annotations)
    return Edits(tuple(nodes), tuple(mounts), *texts, tuple(names), lasting=True)


def _variables(
    variables: Mapping[str, str], values: Values, index: int, resource: str, made: dict[str, str]
) -> Mapping[str, str]:
    """The variables of one device; ``made`` has the template of each name, also of the other devices."""
    found: dict[str, str] = {}
    for template, text in variables.items():
        for filled, value in templates.variables({template: text}, values, index).items():
            name = variable(filled, resource)
            if (other := made.setdefault(name, template)) != template:
                raise AllocationError(
                    f"{resource}: the variables {other} and {template} are both {name} (rename one)"
                )
            found[name] = value
    return found


def _places(things: Iterable[Thing], values: Values, index: int) -> Iterator[tuple[Thing, str]]:
    """Those that a container gets with a device, each with its path in the container."""
    for one in things:
        path, flaw, wanted = "", "", one.container_path
        if lacking := templates.lacking(wanted, values):
            flaw = f"it has no {' and no '.join(lacking)}, which containerPath {wanted} of give needs"
        elif wanted:
            path = templates.fill(wanted, values, index)
            flaw = templates.unfit(wanted, values, path)
            flaw = flaw and f"{one.path} would be at {printable(path)} in the container, {flaw}"
        if not flaw:
            yield one, path
        elif not one.optional:
            raise AllocationError(f"{values[ID]}: {flaw}")


def _cdi_name(wanted: str, values: Values, index: int) -> str:
    if lacking := templates.lacking(wanted, values):
        needs = f"it has no {' and no '.join(lacking)}, which {wanted} in give.cdiDevices needs"
        raise AllocationError(f"{values[ID]}: {needs}")
    name = templates.fill(wanted, values, index)
    if not CDI_NAME.fullmatch(name):
        raise AllocationError(
            f"{values[ID]}: {printable(name)} in give.cdiDevices is not the name of a CDI device"
        )
    return name
