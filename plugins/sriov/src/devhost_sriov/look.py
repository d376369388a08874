"""All functions at one moment, and how they belong together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .function import REPRESENTOR, Function, Interface, Kind


@dataclass(frozen=True, slots=True)
class Look:
    """All functions at one moment, by id, in the order of addresses.

    ``representors`` are the interfaces that stand for virtual and scalable functions in an embedded switch,
    by the id of the function; ``everything`` is whether each function was read anew. The physical function
    of every virtual and scalable one is among ``functions``, unless it is just going.
    """

    functions: Mapping[str, Function] = field(default_factory=dict)
    representors: Mapping[str, Interface] = field(default_factory=dict)
    everything: bool = False

    def whole_of(self, function: Function) -> Function | None:
        """The physical function that a virtual or scalable one is a part of; ``None`` if it is a whole."""
        return self.functions.get(function.parent) if function.parent else None


_Port = tuple[str, int]
"""A word of :class:`~.function.Kind` and a number: what the name of a port says."""


def representors(functions: Mapping[str, Function], strays: Iterable[Interface]) -> dict[str, Interface]:
    """Which interface stands for which function, by the id of the function.

    Told by ``phys_port_name`` among the interfaces of the physical function, else among those that hang on
    nothing and have the switch of its uplink.

    Args:
        functions: all of them, by id.
        strays: representors that hang on no function (bnxt, ice).
    """
    by_switch: dict[str, list[Interface]] = {}
    for stray in strays:
        by_switch.setdefault(stray.switch, []).append(stray)
    ports: dict[str, dict[_Port, Interface]] = {}
    found: dict[str, Interface] = {}
    for function in functions.values():
        whole = functions.get(function.parent)
        number = function.vf_index if function.kind is Kind.VIRTUAL else function.sf_number
        if whole is None or number is None:
            continue
        if whole.id not in ports:
            near = {one.switch for one in whole.last_interfaces if one.switch}
            others = [stray for switch in sorted(near) for stray in by_switch.get(switch, ())]
            ports[whole.id] = _ports(others, whole) | _ports(whole.representors, whole)
        interface = ports[whole.id].get((function.kind.value, number))
        if interface is not None:
            found[function.id] = interface
    return found


def _ports(interfaces: Iterable[Interface], whole: Function) -> dict[_Port, Interface]:
    """The interfaces by what they stand for, as far as that can be a part of ``whole``.

    One switch may have the parts of several physical functions: the number in ``pf<N>`` is mostly that in the
    function's PCI address, and where no port has it, which adapters with their own numbers do, it says
    nothing. ``c<N>`` is a function of another controller, which is another machine's.
    """
    own: dict[_Port, Interface] = {}
    foreign: dict[_Port, list[Interface]] = {}
    for interface in interfaces:
        port = REPRESENTOR.fullmatch(interface.port_name)
        if port is None or port["controller"]:
            continue
        if port["old"]:
            own[Kind.VIRTUAL.value, int(port["old"])] = interface
        elif port["kind"]:
            key = (port["kind"], int(port["number"]))
            if port["pf"] == whole.address[-1]:
                own[key] = interface
            else:
                foreign.setdefault(key, []).append(interface)
    if own:
        return own
    return {key: several[0] for key, several in foreign.items() if len(several) == 1}
