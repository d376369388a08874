"""``frozen`` and ``mutable`` give what ``dataclass`` gives, with fewer methods for each class."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, astuple, dataclass, field, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, get_type_hints

import pytest

from devhost.backend.frozen import frozen, mutable


def _classes(decorated: Any, keywords: Any) -> SimpleNamespace:
    @decorated
    class Point:
        most: ClassVar[int] = 9
        x: int
        y: int = 2
        tags: dict[str, int] = field(default_factory=dict, hash=False)
        seen: int = field(default=0, compare=False)
        secret: str = field(default="", repr=False)
        made: int = field(init=False, default=7)
        total: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.x + self.y)

    @decorated
    class Nothing:
        pass

    @decorated
    class Named:
        name: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named) and self.name.lower() == other.name.lower()

        def __hash__(self) -> int:
            return hash(self.name.lower())

        def __repr__(self) -> str:
            return self.name

    @decorated
    class Same:
        name: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Same)

    @keywords
    class Options:
        path: str = "/"
        name: str

    @decorated
    class Deep(Point):
        z: int = 3

    return SimpleNamespace(Point=Point, Nothing=Nothing, Named=Named, Same=Same, Options=Options, Deep=Deep)


def _mutable_classes(decorated: Any, by_identity: Any) -> SimpleNamespace:
    @decorated
    class Count:
        name: str
        number: int = 0
        seen: dict[str, int] = field(default_factory=dict, compare=False)
        total: int = field(default=0, init=False)

    @decorated
    class More(Count):
        reason: str = ""

    @by_identity
    class Call:
        name: str
        more: list[str] = field(default_factory=list)

    return SimpleNamespace(Count=Count, More=More, Call=Call)


def _frozen_pair(slots: bool) -> tuple[SimpleNamespace, SimpleNamespace]:
    ours, ordinary = partial(frozen, slots=slots), partial(dataclass, frozen=True, slots=slots)
    return _classes(ours(), ours(kw_only=True)), _classes(ordinary(), ordinary(kw_only=True))


def _mutable_pair(slots: bool) -> tuple[SimpleNamespace, SimpleNamespace]:
    ours, ordinary = partial(mutable, slots=slots), partial(dataclass, slots=slots)
    return _mutable_classes(ours(), ours(eq=False)), _mutable_classes(ordinary(), ordinary(eq=False))


FROZEN = {slots: _frozen_pair(slots) for slots in (False, True)}
MUTABLE = {slots: _mutable_pair(slots) for slots in (False, True)}
OURS = FROZEN[False][0]
Point = OURS.Point


def _outcome(act: Callable[[], object]) -> object:
    """The result as text; for an error its type and its first words."""
    try:
        return repr(act())
    except (TypeError, FrozenInstanceError) as error:
        return type(error), str(error).split("'")[0]


USES: dict[str, Callable[[SimpleNamespace], object]] = {
    "positions": lambda of: of.Point(1, 3, {"a": 1}, 4, "b"),
    "keywords": lambda of: of.Point(y=1, x=2),
    "too few": lambda of: of.Point(),
    "too many": lambda of: of.Point(1, 2, {}, 4, "", 6),
    "not of init": lambda of: of.Point(1, made=3),
    "made by a function each time": lambda of: of.Point(1).tags is of.Point(1).tags,
    "after init": lambda of: of.Point(4).total,
    "without fields": lambda of: (
        of.Nothing(),
        of.Nothing() == of.Nothing(),
        len({of.Nothing(), of.Nothing()}),
    ),
    "equal": lambda of: [of.Point(1) == other for other in (of.Point(1), of.Point(2), of.Point(1, seen=9))],
    "not equal to others": lambda of: (of.Point(1) == (1, 2), of.Point(1) != 3),
    "not equal to a subclass": lambda of: (of.Point(1) == of.Deep(1), of.Deep(1) == of.Point(1)),
    "hashed": lambda of: len({of.Point(1), of.Point(1, 2, {"a": 1}), of.Point(1, seen=3), of.Point(2)}),
    "own methods": lambda of: (
        of.Named("A") == of.Named("a"),
        len({of.Named("A"), of.Named("a")}),
        of.Named("A"),
    ),
    "own equality": lambda of: (of.Same("a") == of.Same("b"), len({of.Same("a"), of.Same("a")})),
    "only keywords": lambda of: of.Options("/", "a"),
    "keywords in any order": lambda of: of.Options(name="a"),
    "inherited": lambda of: (of.Deep(1, z=5), of.Deep.__match_args__),
    "replaced": lambda of: replace(of.Point(1), x=5),
    "as others": lambda of: (asdict(of.Point(1)), astuple(of.Point(1)), of.Point.__match_args__),
    "fields": lambda of: [(one.name, one.type) for one in fields(of.Deep)],
    "copied": lambda of: (copy.copy(of.Point(1)), copy.deepcopy(of.Point(1, 2, {"a": 1}))),
    "assigned": lambda of: setattr(of.Point(1), "x", 3),
    "deleted": lambda of: delattr(of.Point(1), "x"),
    "without a dictionary": lambda of: hasattr(of.Point(1), "__dict__"),
    "parameters": lambda of: [
        (one.name, one.kind, repr(one.default)) for one in inspect.signature(of.Point).parameters.values()
    ],
}


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("use", USES)
def test_a_class_behaves_like_an_ordinary_frozen_dataclass(use: str, slots: bool) -> None:
    ours, theirs = (_outcome(lambda: USES[use](classes)) for classes in FROZEN[slots])  # noqa: B023 - called at once
    assert ours == theirs


def _changed(value: Any) -> object:
    value.number += 1
    value.total = 7
    return value


MUTABLE_USES: dict[str, Callable[[SimpleNamespace], object]] = {
    "made": lambda of: (of.Count("a"), of.Count("a", 2, {"b": 1}), of.More("a", reason="b")),
    "changed": lambda of: _changed(of.Count("a")),
    "made by a function each time": lambda of: of.Count("a").seen is of.Count("a").seen,
    "equal": lambda of: [of.Count("a") == x for x in (of.Count("a", seen={"b": 1}), _changed(of.Count("a")))],
    "not equal to a subclass": lambda of: of.Count("a") == of.More("a"),
    "not hashed": lambda of: hash(of.Count("a")),
    "without a dictionary": lambda of: hasattr(of.Count("a"), "__dict__"),
    "by identity": lambda of: (of.Call("a") == of.Call("a"), len({of.Call("a"), of.Call("a")}), of.Call("a")),
    "replaced": lambda of: replace(of.More("a"), reason="b"),
    "copied": lambda of: (copy.copy(of.Count("a")), copy.deepcopy(of.Count("a", 1, {"b": 1}))),
}


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("use", MUTABLE_USES)
def test_a_mutable_class_behaves_like_an_ordinary_dataclass(use: str, slots: bool) -> None:
    ours, theirs = (_outcome(lambda: MUTABLE_USES[use](classes)) for classes in MUTABLE[slots])  # noqa: B023 - called at once
    assert ours == theirs


def test_a_frozen_class_does_not_inherit_from_one_that_is_not() -> None:
    with pytest.raises(TypeError, match="cannot inherit frozen dataclass from a non-frozen one"):
        frozen(type("Deep", (MUTABLE[False][0].Count,), {}))
    assert mutable(type("More", (MUTABLE[False][0].Count,), {}))("a").number == 0  # it is what it was


@pytest.mark.parametrize("decorated", [frozen, mutable])
def test_a_field_without_a_default_does_not_come_after_one_with_a_default(decorated: Any) -> None:
    annotations = {"first": "int", "second": "int"}
    with pytest.raises(TypeError, match=r"Wrong has a field without a default"):
        decorated(type("Wrong", (), {"__annotations__": annotations, "first": 1}))


def test_the_types_of_fields_can_be_read() -> None:
    assert get_type_hints(Sent) == {"text": str, "rest": tuple[str, ...]}
    assert [one.type for one in fields(Sent)] == ["str", "tuple[str, ...]"]


def test_an_attribute_that_is_no_field_cannot_be_assigned() -> None:
    with pytest.raises(FrozenInstanceError, match="other"):
        Point(1).other = 3


def test_an_ordinary_frozen_dataclass_may_inherit() -> None:
    @dataclass(frozen=True)
    class Colored(Point):  # type: ignore[misc]
        color: str = "red"

    assert Colored(1).color == "red"
    assert Colored(1).total == 3


@frozen
class Sent:
    """At the top of a module, where pickle finds it."""

    text: str
    rest: tuple[str, ...] = ()


def test_a_value_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Sent("a", ("b",)))) == Sent("a", ("b",))


def test_a_docstring_stays_and_its_absence_makes_no_signature() -> None:
    assert Sent.__doc__ == "At the top of a module, where pickle finds it."
    assert Point.__doc__ == "Point"


def test_only_init_is_made_for_each_class() -> None:
    for point, sent in ((vars(Point), vars(Sent)), (vars(OURS.Deep), vars(Sent))):
        common = {name for name in point if name in sent and inspect.isfunction(point[name])}
        assert {name for name in common if point[name] is not sent[name]} == {"__init__"}
    assert {"__eq__", "__hash__", "__repr__", "__setattr__"} < common
