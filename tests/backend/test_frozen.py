"""``frozen`` gives what ``dataclass(frozen=True, slots=True)`` gives, with fewer methods for each class."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, astuple, dataclass, field, fields, replace
from types import SimpleNamespace
from typing import Any

import pytest

from devhost.backend.frozen import frozen


def _classes(decorated: Any, keywords: Any) -> SimpleNamespace:
    @decorated
    class Point:
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


OURS = _classes(frozen, frozen(kw_only=True))
ORDINARY = _classes(dataclass(frozen=True, slots=True), dataclass(frozen=True, slots=True, kw_only=True))
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
    "fields": lambda of: [one.name for one in fields(of.Point)],
    "copied": lambda of: (copy.copy(of.Point(1)), copy.deepcopy(of.Point(1, 2, {"a": 1}))),
    "assigned": lambda of: setattr(of.Point(1), "x", 3),
    "deleted": lambda of: delattr(of.Point(1), "x"),
    "without a dictionary": lambda of: hasattr(of.Point(1), "__dict__"),
    "parameters": lambda of: [
        (one.name, one.kind, repr(one.default)) for one in inspect.signature(of.Point).parameters.values()
    ],
}


@pytest.mark.parametrize("use", USES)
def test_a_class_behaves_like_an_ordinary_frozen_dataclass(use: str) -> None:
    ours, theirs = (_outcome(lambda: USES[use](classes)) for classes in (OURS, ORDINARY))  # noqa: B023 - called at once
    assert ours == theirs


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
    point, sent = vars(Point), vars(Sent)
    common = {name for name in point if name in sent and inspect.isfunction(point[name])}
    assert {name for name in common if point[name] is not sent[name]} == {"__init__"}
    assert {"__eq__", "__hash__", "__repr__", "__setattr__"} < common
