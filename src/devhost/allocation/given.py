"""What containers were given, beside what their devices have now. Pure.

The kubelet repeats an answer for the life of a pod, and a running container keeps the numbers of its nodes.
Both name things that change: a device may get another path or number, and another device the old one. So:

* Allocate and Prepare leave a *gift*: the nodes that the container got, each with the device that
  claimed it. After a restart of devhost, gifts come from the record (:mod:`.given_record`), the kubelet's
  checkpoint (:mod:`devhost.kubelet.given`), which knows the paths only, and the files of claims.
* A gift counts as long as the ledger has its token or claim as held. Each plan compares it with
  what exists.
* A node that is no longer the device's is *strayed*. Its path, and what has its number now, are further
  claims of the held device, so that no other container gets them.
* The same comparison gives the differences, as reasons for every output.

What a device has now are its claims of the kind ``node``. A node of an answer that the device did not claim,
such as ``/dev/vfio/vfio``, may be in any number of containers. It is in no gift, except where it is not known
what was claimed: the checkpoint has all nodes of an answer, and some backends claim none. Then a node has
strayed only if another device of the same backend claims it now, or if it does not exist; and a backend that
claims none is asked what the device has now (:attr:`Given.asked`).

This module knows numbers only as :attr:`Given.numbers`, which the host reads on a thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from devhost.backend.frozen import frozen, mutable
from devhost.backend.model import AnyHolder, ClaimHolder, Device, Holder
from devhost.backend.sysfs import natural
from devhost.planning.claims import Held, Key, Reason
from devhost.planning.plan import Found
from devhost.planning.tokens import DeviceIds

_NODE = "node:"
_DIGITS = re.compile("[0-9]+")

Token = tuple[str, str]
"""A resource and one of its tokens."""


class Node(NamedTuple):
    """A node that a container was given: its path on the host, and its number (``c188:0``) if known.

    ``key`` is the device that claimed it; ``None`` if that is not known.
    """

    path: str
    number: str = ""
    key: Key | None = None


@frozen(slots=True)
class Gift:
    """What a container was given by some tokens, or by a claim.

    ``names`` are the CDI names in the answer: the runtime looks up what they mean at each start, so a restart
    gives the container what its devices have then. ``container`` is the container's name if only the
    kubelet's checkpoint has the gift. ``unclaimed`` are nodes, as claims, that the devices do not claim, see
    :class:`UnclaimedNodes`.
    """

    nodes: tuple[Node, ...]
    names: frozenset[str] = frozenset()
    container: str = ""
    unclaimed: frozenset[str] = frozenset()

    @property
    def follows(self) -> bool:
        """Whether a restart of the container gives it what its devices have then."""
        return bool(self.names)

    def devices(self, key: Key | None = None) -> Mapping[Key, Device]:
        """The devices of the nodes, with these nodes as their only claims.

        ``key`` is the device of a node that has none; ``None`` if that is not known.
        """
        claims: dict[Key, set[str]] = {}
        for node in self.nodes:
            if owner := node.key or key:
                claims.setdefault(owner, set()).add(_NODE + node.path)
        return {owner: Device(owner[1], claims=frozenset(some)) for owner, some in claims.items()}


class Difference(NamedTuple):
    """Why what a container was given is not what its device has now, with the containers and their tokens.

    ``restarts`` is whether a restart of the container gives it the right thing.
    """

    reason: str
    held_by: tuple[AnyHolder, ...] = ()
    tokens: frozenset[str] = frozenset()
    restarts: bool = False


class Stray(NamedTuple):
    """A node that a container was given and that is not its device's now.

    ``moved`` is whether its path is not; else only its number is not.
    """

    resource: str
    token: str
    key: Key
    node: Node
    moved: bool


def node_paths(device: Device) -> frozenset[str]:
    return frozenset(claim.removeprefix(_NODE) for claim in device.claims if claim.startswith(_NODE))


def may_be_node(mounted: str) -> bool:
    """Whether the source of a mount may be a device node, by its path."""
    return "/dev/" in mounted


def owned(numbers: Mapping[str, str], backend: str, devices: Sequence[Device]) -> tuple[Node, ...]:
    """The nodes, by path with their numbers, that one of the devices claims; if none claims any, all."""
    mine = {device.id: node_paths(device) for device in devices}
    if any(mine.values()):
        owner = {path: (backend, name) for name, some in mine.items() for path in some}
        return tuple(Node(path, number, owner[path]) for path, number in numbers.items() if path in owner)
    return tuple(Node(path, number) for path, number in numbers.items())


@mutable(slots=True)
class Given:
    """The gifts of all containers and claims, and how they differ from what is there.

    ``changed`` is called when there is a new gift.
    """

    changed: Callable[[], None] = lambda: None
    numbers: Mapping[str, str | None] = field(default_factory=dict)
    """The number of each node that was looked at; empty for a plain file, ``None`` if nothing is there."""
    asked: dict[Key, frozenset[str]] = field(default_factory=dict)
    """The paths of devices without claims on nodes, as their backends answer now."""
    differences: Mapping[tuple[str, Key], Difference] = field(default_factory=dict)
    """By resource and device."""
    strays: Sequence[Stray] = ()
    tokens: dict[Token, Gift] = field(default_factory=dict)
    claims: dict[str, Gift] = field(default_factory=dict)
    """By the claim's uid."""
    checkpointed: Mapping[Token, Sequence[Gift]] = field(default_factory=dict)
    """What the kubelet's checkpoint has of each token; several containers of one pod may have had it."""

    def recall(self, tokens: Mapping[Token, Gift], claims: Mapping[str, Gift]) -> None:
        """Takes the gifts of a record, after :attr:`checkpointed`; not those with which it disagrees."""
        for token, gift in tokens.items():
            answers = self.checkpointed.get(token)
            if answers is None or any(_agree(gift, answer) for answer in answers):
                self.tokens.setdefault(token, gift)
        self.claims = {**claims, **self.claims}

    def gave(
        self,
        resource: str,
        tokens: Iterable[str],
        nodes: Iterable[Node],
        names: Iterable[str] = (),
        unclaimed: frozenset[str] = frozenset(),
    ) -> None:
        """A container was given these nodes by its tokens of a resource; for the others see :class:`Gift`."""
        gift = Gift(tuple(nodes), frozenset(names), unclaimed=unclaimed)
        self.tokens.update(((resource, token), gift) for token in tokens)
        self.changed()

    def gave_claim(self, uid: str, nodes: Iterable[Node]) -> None:
        self.claims[uid] = Gift(tuple(nodes), frozenset({uid}))
        self.changed()

    def keep(self, tokens: Callable[[Token], bool], claims: Collection[str]) -> None:
        """Forgets the gifts of what no container holds.

        A kubelet that has just started knows its pods one after another, so its checkpoint counts too.
        """
        known = self.checkpointed
        self.tokens = {token: gift for token, gift in self.tokens.items() if token in known or tokens(token)}
        self.claims = {uid: gift for uid, gift in self.claims.items() if uid in claims}

    def fill(self) -> bool:
        """Takes the numbers of nodes that have none yet; true if there were any.

        The numbers of a strayed node are those of another device.
        """
        strayed = {(stray.key, stray.node.path) for stray in self.strays}

        def full(gift: Gift) -> Gift:
            nodes = tuple(
                node._replace(number=number)
                if not node.number
                and node.key is not None
                and (node.key, node.path) not in strayed
                and (number := self.numbers.get(node.path))
                else node
                for node in gift.nodes
            )
            return gift if nodes == gift.nodes else replace(gift, nodes=nodes)

        return self._each(full)

    def _each(self, changed: Callable[[Gift], Gift]) -> bool:
        """Replaces each gift, once for all that have it; true if one is another one now."""
        made: dict[int, Gift] = {}

        def now(gift: Gift) -> Gift:
            if id(gift) not in made:
                made[id(gift)] = changed(gift)
            return made[id(gift)]

        before = (*self.tokens.values(), *self.claims.values())
        self.tokens = {token: now(gift) for token, gift in self.tokens.items()}
        self.claims = {uid: now(gift) for uid, gift in self.claims.items()}
        return any(made[id(gift)] is not gift for gift in before)

    def of_token(self, token: Token, holder: Holder | None) -> Gift | None:
        """The gift of a token that a container holds; ``None`` if it is not known."""
        gift = self.tokens.get(token)
        if gift is None or (gift.container and holder and gift.container != holder.container):
            answers = self.checkpointed.get(token, ())
            some = [one for one in answers if holder is None or one.container == holder.container]
            if not some:
                return None
            gift = self.tokens[token] = some[-1]
        return gift

    def of_tokens(
        self, resource: str, tokens: Iterable[str], holder: Holder | None
    ) -> Sequence[tuple[Gift | None, tuple[str, ...]]]:
        """The gifts of tokens that one container holds, each with its tokens; ``None`` if it is not known."""
        found: dict[int, tuple[Gift | None, list[str]]] = {}
        for token in tokens:
            gift = self.of_token((resource, token), holder)
            found.setdefault(id(gift), (gift, []))[1].append(token)
        return [(gift, tuple(same)) for gift, same in found.values()]

    def possible(
        self, token: Token, gift: Gift | None, devices: Mapping[Key, Device]
    ) -> Mapping[Key, Device]:
        """Those of some devices that a container may have got by a token, whose gift is this.

        It did not get a device whose nodes are not in its answer. The record has the device of each node; the
        kubelet's checkpoint alone does not, and a device may have another id or node now.
        """
        if gift is None or gift.container or not gift.nodes or any(node.key is None for node in gift.nodes):
            return devices
        known = gift.devices()
        answered = {node.path for answer in self.checkpointed.get(token, ()) for node in answer.nodes}

        def may_have(key: Key, device: Device) -> bool:
            nodes, ids = node_paths(device), DeviceIds({device.id: device})
            return (
                not nodes
                or not nodes.isdisjoint(answered)
                or any(backend == key[0] and ids.named(name) for backend, name in known)
            )

        return {key: device for key, device in devices.items() if may_have(key, device)}

    def must_ask(self, held: Held, device: Device) -> bool:
        """Whether only its backend knows the nodes of a device for which a container was given some."""
        return not node_paths(device) and any(gift.nodes for gift, _ in self._known((held,)))

    def started(self, resource: str, tokens: Sequence[str], found: Found) -> bool:
        """A container that has these tokens starts: it gets what is there now. True if that is another thing.

        With CDI names that is what its devices have; else the paths stay, with their present numbers.
        """
        before = self.tokens.get((resource, tokens[0]))
        if before is None:
            return False
        there = _There(self, found)
        nodes: list[Node] = []
        for node in before.nodes:
            has = there.has(node.key) if node.key else None
            if before.follows and has is not None and node.path not in has:
                known = {one.path for one in nodes} | {one.path for one in before.nodes}
                node = node._replace(path=_alike(node.path, has - known) or node.path)
            nodes.append(node._replace(number=self.numbers.get(node.path) or ""))
        gift = replace(before, nodes=tuple(nodes))
        if gift == before:
            return False
        self.tokens.update(((resource, token), gift) for token in tokens)
        self.changed()
        return True

    def paths(self, found: Found) -> set[str]:
        """The paths whose numbers are of interest: those of gifts, and all if a number has strayed."""
        wanted = {node.path for gift in (*self.tokens.values(), *self.claims.values()) for node in gift.nodes}
        if wanted and any(stray.node.number for stray in self.strays):
            for devices in found.values():
                for device in devices.values():
                    wanted |= node_paths(device)
        return wanted

    def compare(self, held: Iterable[Held], found: Found) -> Mapping[Key, frozenset[str]]:
        """Compares the gifts with the devices that exist now.

        Returns further claims of held devices: what they were given and others have now.
        """
        if not (self.tokens or self.claims or self.checkpointed):
            self.differences, self.strays = {}, ()
            return {}
        held = tuple(held)
        there = _There(self, found)
        for gift, one in self._known(held):
            there.meet(gift, one.key)
        self._adopt(there)
        done: dict[tuple[int, str, Key], tuple[Difference | None, Sequence[Stray]]] = {}
        differences: dict[tuple[str, Key], Difference] = {}
        strays: dict[Stray, None] = {}
        for gift, one in self._known(held):
            place = id(gift), one.resource, one.key
            if place not in done:
                done[place] = there.judge(gift, one)
            difference, strayed = done[place]
            strays |= dict.fromkeys(strayed)
            if difference is not None:
                known = differences.get((one.resource, one.key), difference)
                differences[one.resource, one.key] = known._replace(
                    held_by=tuple(dict.fromkeys((*known.held_by, *((one.holder,) if one.holder else ())))),
                    tokens=known.tokens.union(one.tokens),
                )
        self.differences, self.strays = differences, tuple(strays)
        return there.claims(self.strays)

    def unclaimed(self, held: Sequence[Held]) -> Iterator[tuple[Key, frozenset[str]]]:
        """The nodes that containers got with devices that do not claim them."""
        for gift, one in self._known(held):
            if gift.unclaimed:
                yield one.key, gift.unclaimed

    def fixed(self, held: Sequence[Held]) -> Mapping[Key, frozenset[str]]:
        """The nodes, as claims, that the containers of devices have, if they cannot have got others.

        That is not so if something that one of them was given is not known or not in the answer (a runtime
        adds it), or if a restart, which devhost may not see, gives it what its device has then.
        """
        found: dict[Key, set[str]] = {}
        unsure: set[Key] = set()
        for gift, one in self._gifts(held):
            if gift is None or gift.follows or not gift.nodes:
                unsure.add(one.key)
            elif one.key not in unsure:
                found.setdefault(one.key, set()).update(_NODE + node.path for node in gift.nodes)
        return {key: frozenset(claims) for key, claims in found.items() if key not in unsure}

    def _known(self, held: Sequence[Held]) -> Iterator[tuple[Gift, Held]]:
        return ((gift, one) for gift, one in self._gifts(held) if gift is not None)

    def _gifts(self, held: Sequence[Held]) -> Iterator[tuple[Gift | None, Held]]:
        """Each gift, with what is held of it; ``None`` for what is not known.

        The tokens of one holder may have several; those that have the same devices are looked at once.
        """
        seen: dict[tuple[str, AnyHolder | None, int], Sequence[tuple[Gift | None, tuple[str, ...]]]] = {}
        for one in held:
            if isinstance(one.holder, ClaimHolder):
                yield self.claims.get(one.holder.uid), one
                continue
            place = one.resource, one.holder, id(one.tokens)
            if place not in seen:
                seen[place] = self.of_tokens(one.resource, one.tokens, one.holder)
            for gift, tokens in seen[place]:
                yield gift, one._replace(tokens=tokens)

    def _adopt(self, there: _There) -> None:
        """Finds the devices of nodes that gifts have without one, as far as they still have these nodes."""

        def known(gift: Gift) -> Gift:
            nodes = tuple(node._replace(key=there.owner_in(gift, node)) for node in gift.nodes)
            return gift if nodes == gift.nodes else there.replaced(gift, nodes)

        self._each(known)

    def reason(self, resource: str, key: Key) -> Reason | None:
        """Why a container of a resource has something else than its device; ``None`` if it has not."""
        difference = self.differences.get((resource, key))
        return difference and Reason(difference.reason, difference.held_by)

    def withheld(self, resource: str) -> Iterator[tuple[str, Reason]]:
        """The tokens of a resource whose containers have something else than their device."""
        for (name, _), difference in self.differences.items():
            if name == resource:
                for token in sorted(difference.tokens):
                    yield token, Reason(difference.reason, difference.held_by)

    def in_use(self, tokens: Collection[Token], nodes: Iterable[tuple[str, str]]) -> str:
        """Which of some nodes another container was given for another device; empty if none.

        ``tokens`` are those that are allocated again, ``nodes`` paths and numbers.
        """
        others = [stray for stray in self.strays if (stray.resource, stray.token) not in tokens]
        paths = {stray.node.path for stray in others if stray.moved}
        numbers = {stray.node.number for stray in others} - {""}
        return next((path for path, number in nodes if path in paths or number in numbers), "")


class UnclaimedNodes:
    """Remembers which nodes containers got with devices that do not claim them, as long as the devices exist.

    A backend may forget a claim, or misspell what it claims. What a container can open decides who else may
    open it, so a node counts although its device does not name it:

    * the device is then part of the node. Devices of the same backend may be given the node, too, because the
      backend decided that; a device that claims the node is not given to another pod meanwhile;
    * if a second backend hands out the same node, its devices claim the node.

    What counts as a node is in :mod:`.resource_backend`.
    """

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        """The backend that handed out a node first, by its claim."""
        self._of: dict[str, dict[str, frozenset[str]]] = {}
        self._made: dict[Key, tuple[Device, Device]] = {}
        self._completed: dict[str, tuple[Mapping[str, Device], Mapping[str, Device]]] = {}

    def add(self, key: Key, nodes: Collection[str]) -> None:
        """A container gets these nodes with a device."""
        backend, device = key
        known = self._of.setdefault(backend, {}).get(device, frozenset())
        new = frozenset(nodes) - known
        if new:
            self._of[backend][device] = known | new
            for text in new:
                self._first.setdefault(text, backend)
            self._completed.pop(backend, None)
            self._made.pop(key, None)

    def device(self, key: Key, device: Device) -> Device:
        """The device with the nodes that it was given; unchanged ones stay the same object."""
        nodes = self._of.get(key[0], {}).get(key[1], frozenset()) - device.claims - device.part_of
        if not nodes:
            return device
        made = self._made.get(key)
        if made is None or made[0] is not device:
            parts = {text for text in nodes if self._first[text] == key[0]}
            whole = replace(device, claims=device.claims | (nodes - parts), part_of=device.part_of | parts)
            made = self._made[key] = device, whole
        return made[1]

    def completed(self, found: Found) -> Found:
        """All devices, each with the nodes that it was given. Forgets the nodes of those that are gone."""
        self._forget(found)
        if not self._of:
            return found
        return {backend: self._of_backend(backend, devices) for backend, devices in found.items()}

    def _of_backend(self, backend: str, devices: Mapping[str, Device]) -> Mapping[str, Device]:
        given = self._of.get(backend)
        if not given:
            return devices
        before = self._completed.get(backend)
        if before is None or before[0] is not devices:
            made = {name: self.device((backend, name), devices[name]) for name in given}
            before = self._completed[backend] = devices, {**devices, **made}
        return before[1]

    def _forget(self, found: Found) -> None:
        gone = [
            (backend, device)
            for backend, given in self._of.items()
            for device in given
            if device not in found.get(backend, ())
        ]
        for backend, device in gone:
            del self._of[backend][device]
            self._made.pop((backend, device), None)
        if gone:
            self._of = {backend: given for backend, given in self._of.items() if given}
            kept = {
                (text, backend)
                for backend, given in self._of.items()
                for text in set[str]().union(*given.values())
            }
            self._first = {text: one for text, one in self._first.items() if (text, one) in kept}
            for text, backend in sorted(kept):
                self._first.setdefault(text, backend)
            self._completed.clear()
            self._made.clear()


class _There:
    """What exists now."""

    def __init__(self, given: Given, found: Found) -> None:
        self._given = given
        self._found = found
        self._owners: dict[str, list[Key]] | None = None
        self._devices: dict[int, set[Key]] = {}
        """The devices that each gift is for."""

    def meet(self, gift: Gift, key: Key) -> None:
        self._devices.setdefault(id(gift), set()).add(key)

    def replaced(self, gift: Gift, nodes: tuple[Node, ...]) -> Gift:
        other = replace(gift, nodes=nodes)
        self._devices[id(other)] = self._devices.get(id(gift), set())
        return other

    def owner_in(self, gift: Gift, node: Node) -> Key | None:
        """The device of a node: one of the gift's devices that has it now, if it is not known."""
        if node.key is not None:
            return node.key
        some = [key for key in self._devices.get(id(gift), ()) if self._claims(key, node.path)]
        return some[0] if len(some) == 1 else None

    def _claims(self, key: Key, path: str) -> bool:
        device = self._found.get(key[0], {}).get(key[1])
        return device is not None and _NODE + path in device.claims

    def has(self, key: Key) -> frozenset[str] | None:
        """The paths of a device; ``None`` if it is gone, or they are not known."""
        device = self._found.get(key[0], {}).get(key[1])
        if device is None:
            return None
        return node_paths(device) or self._given.asked.get(key)

    def exists(self, key: Key) -> bool:
        return key[1] in self._found.get(key[0], {})

    def owner(self, path: str, key: Key, *, same_backend: bool = False) -> Key | None:
        """Another device that has a path now."""
        owners = self._all().get(path, ())
        some = [one for one in owners if one != key and (one[0] == key[0] or not same_backend)]
        return min(some, default=None)

    def judge(self, gift: Gift, held: Held) -> tuple[Difference | None, Sequence[Stray]]:
        """How what was given for one device differs from what it has, and which nodes have strayed."""
        key, texts = held.key, []
        strays = []
        has = self.has(key)
        for node in sorted(gift.nodes, key=lambda one: natural(one.path)):
            text = self._text(node, key, has, gift)
            if text is not None:
                moved = has is None or node.path not in has
                strays.append(Stray(held.resource, held.tokens[0], key, node._replace(key=key), moved))
                texts.append(text)
        texts = [text for text in texts if text]
        if not texts:
            return None, strays
        restarts = self.exists(key) and (gift.follows or not any(stray.moved for stray in strays))
        advice = "restart the container or delete the pod" if restarts else "delete the pod"
        what, _, more = texts[0].partition("\n")
        return Difference(f"{what}: {advice}{more}", restarts=restarts), strays

    def claims(self, strays: Iterable[Stray]) -> Mapping[Key, frozenset[str]]:
        """What strayed nodes are now, as claims of the devices for which they were given."""
        found: dict[Key, set[str]] = {}
        named: dict[str, list[str]] | None = None
        for stray in strays:
            claims = found.setdefault(stray.key, set())
            if stray.moved:
                claims.add(_NODE + stray.node.path)
            if not stray.node.number:
                continue
            if named is None:
                named = {}
                for path, number in self._given.numbers.items():
                    named.setdefault(number or "", []).append(path)
            claims |= {
                _NODE + path
                for path in named.get(stray.node.number, ())
                if self.owner(path, stray.key) is not None
            }
        return {key: frozenset(claims) for key, claims in found.items() if claims}

    def _all(self) -> Mapping[str, Sequence[Key]]:
        if self._owners is None:
            self._owners = {}
            for backend, devices in self._found.items():
                for device in devices.values():
                    for path in node_paths(device):
                        self._owners.setdefault(path, []).append((backend, device.id))
        return self._owners

    def _text(self, node: Node, key: Key, has: frozenset[str] | None, gift: Gift) -> str | None:
        """What is wrong with a node of a device, and after a line feed what follows the advice.

        ``None`` if it is right or belongs to another device, empty if it must not be given to others
        but is no difference.
        """
        if node.key not in (None, key):
            return None
        beginning = f"a container was given {node.path}"
        if has is not None and node.path in has:
            number = self._given.numbers.get(node.path)
            if node.number and number and node.number != number:
                return f"{beginning} as {node.number} for {key[1]}, which is {number} now"
            return None
        if has is None and self.exists(key):
            return None  # its nodes are not known yet
        other = self.owner(node.path, key, same_backend=node.key is None)
        missing = self._given.numbers.get(node.path, "") is None
        if node.key is None and not self._means(key, has, gift, other, missing=missing):
            return None
        if not self.exists(key):
            gone = f"{beginning} for {key[1]}, which is gone, and {node.path} is "
            return f"{gone}{other[1]} now" if other else ""
        rest = f"\n ({node.path} is {other[1]} now)" if other else ""
        rest = rest or ("\n (nothing is there now)" if missing else "")
        assert has is not None
        now = _alike(node.path, has.difference(one.path for one in gift.nodes))
        what = f"which is {now} now" if now else "which has no such node now"
        return f"{beginning} for {key[1]}, {what}{rest}"

    def _means(
        self, key: Key, has: frozenset[str] | None, gift: Gift, other: Key | None, *, missing: bool
    ) -> bool:
        """Whether a node that was given for an unknown device was given for this one, which lacks it now."""
        devices = self._devices.get(id(gift), set())
        if other in devices:
            return False
        if has is not None and not node_paths(self._found[key[0]][key[1]]):
            return len(devices) == 1  # the backend was asked, and has no such node for it
        if not (other or (missing and has)):
            return False
        return has is None or has.isdisjoint(one.path for one in gift.nodes)


def _agree(gift: Gift, answer: Gift) -> bool:
    """Whether a gift may be of this answer, which has all nodes and names, but no devices."""
    if gift.follows or answer.follows:
        return gift.names == answer.names
    return {node.path for node in gift.nodes} <= {node.path for node in answer.nodes}


def _alike(path: str, paths: Iterable[str]) -> str:
    """The path that differs from another only in its numbers, else the first one; empty if there is none."""
    stem = _DIGITS.sub("", path)
    some = sorted(paths, key=natural)
    return next((one for one in some if _DIGITS.sub("", one) == stem), some[0] if some else "")
