"""Dataclasses that cost a fifth of the time of the ordinary ones, because all of them share their methods.

``dataclass(frozen=True, slots=True)`` generates and compiles seven methods for each class, and then makes the
class a second time: 18 KB, and half of the time that devhost needs to start. Here each class has its own
``__init__``, and classes with as many parameters share its compiled code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import cache
from operator import attrgetter
from threading import Lock
from types import CodeType, FunctionType, MemberDescriptorType
from typing import Any, Final, TypeVar, dataclass_transform, overload

T = TypeVar("T")

_SUBCLASSING = Lock()
"""Two threads may not change the same base at once."""


class _Factory:
    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()
"""The default of a parameter whose value a function makes."""


@overload
def frozen(cls: type[T], /) -> type[T]: ...


@overload
def frozen(*, kw_only: bool = False, slots: bool = False) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T] | None = None, /, *, kw_only: bool = False, slots: bool = False) -> Any:
    """The same as ``dataclass(frozen=True)``, without support for ``InitVar`` and an own ``__init__``.

    Args:
        kw_only: whether all parameters of ``__init__`` are keywords.
        slots: whether instances have slots and no dictionary, for a class with instances for each device.
    """
    if cls is None:
        return lambda given: _frozen(given, kw_only, slots)
    return _frozen(cls, kw_only, slots)


@overload
def mutable(cls: type[T], /) -> type[T]: ...


@overload
def mutable(*, eq: bool = True, slots: bool = False) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(field_specifiers=(field,))
def mutable(cls: type[T] | None = None, /, *, eq: bool = True, slots: bool = False) -> Any:
    """The same as ``dataclass()``, without support for ``InitVar`` and an own ``__init__``.

    Args:
        eq: whether instances with equal values are equal, and so have no hash.
        slots: as for :func:`frozen`.
    """
    shared = _SHARED if eq else _REPR
    if cls is None:
        return lambda given: _made(given, shared, _ASSIGN, False, slots)
    return _made(cls, shared, _ASSIGN, False, slots)


def _frozen(given: type[T], kw_only: bool, slots: bool) -> type[T]:
    above = [vars(base).get("__dataclass_params__") for base in given.__mro__[1:]]
    bases = [parameters for parameters in above if parameters is not None]
    with _SUBCLASSING:
        if not all(parameters.frozen for parameters in bases):
            raise TypeError("cannot inherit frozen dataclass from a non-frozen one")
        for parameters in bases:
            parameters.frozen = False  # otherwise methods would be generated that only this class has
        try:
            made = _made(given, _FROZEN, _PUT, kw_only, slots)
        finally:
            for parameters in bases:
                parameters.frozen = True
    vars(made)["__dataclass_params__"].frozen = True  # for subclasses
    return made


def _made(given: type[T], shared: Mapping[str, Any], statement: str, kw_only: bool, slots: bool) -> type[T]:
    own = {name: method for name, method in shared.items() if vars(given).get(name) is None}
    given.__doc__ = given.__doc__ or given.__name__  # the default text is long, and takes long to make
    # empty from Python 3.14 on where a module does not have ``from __future__ import annotations``
    texts = vars(given).get("__annotations__", {})
    if texts:  # of a text, dataclass finds out with regular expressions whether it is one of these
        given.__annotations__ = {
            name: text if any(word in str(text) for word in ("ClassVar", "InitVar", "KW_ONLY")) else object
            for name, text in texts.items()
        }
    made = dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(given)
    if texts:
        made.__annotations__ = texts
    every = fields(made)  # type: ignore[arg-type]  # it is a dataclass now
    for one in every:
        one.type = texts.get(one.name, one.type)
    compared = [one for one in every if one.compare]
    hashed = [one for one in compared if one.hash is not False]
    own["__init__"] = _init(made, every, statement)
    own["__compared__"] = attrgetter("__class__", *(one.name for one in compared))
    own["__hashed__"] = attrgetter("__class__", *(one.name for one in hashed))
    for name, value in own.items():
        setattr(made, name, value)
    return made


_ASSIGN = "self.f{0} = p{0}"
_PUT = "put(self, 'f{0}', p{0})"
_SET = "set{0}(self, p{0})"
"""Statements of ``__init__`` that set a field. A frozen one refuses assignments; slots are set faster."""


def _init(made: type, every: tuple[Field[Any], ...], statement: str) -> Callable[..., None]:
    """``__init__``, with the names of this class in code that other classes have, too."""
    positional = [one for one in every if one.init and not one.kw_only]
    keywords = [one for one in every if one.init and one.kw_only]
    defaults = {
        one.name: _FACTORY if one.default is MISSING else one.default
        for one in every
        if one.default is not MISSING or one.default_factory is not MISSING
    }
    without = [one.name not in defaults for one in positional]
    if without != sorted(without, reverse=True):
        raise TypeError(f"{made.__qualname__} has a field without a default after one with a default")
    known: dict[str, Any] = {"__name__": made.__module__, "put": object.__setattr__}
    last = "self.__post_init__()" if hasattr(made, "__post_init__") else ""
    if complete := _completion(every):
        known["complete"] = complete
        last = f"complete(self); {last}"
    names = [one.name for one in (*positional, *keywords)]
    fields_of = {f"f{number}": name for number, name in enumerate(names)}
    if statement == _PUT and all(
        isinstance(getattr(made, name, None), MemberDescriptorType) for name in names
    ):
        statement = _SET
        known.update((f"set{number}", getattr(made, name).__set__) for number, name in enumerate(names))
    shape = _compiled(statement, len(positional), len(keywords), last)
    code = shape.replace(
        co_varnames=("self", *names),
        co_names=tuple(fields_of.get(name, name) for name in shape.co_names),
        co_consts=tuple(fields_of.get(value, value) for value in shape.co_consts),
        co_qualname=f"{made.__qualname__}.__init__",
    )
    given = tuple(defaults[one.name] for one in positional if one.name in defaults)
    init = FunctionType(code, known, "__init__", given)
    init.__kwdefaults__ = {one.name: defaults[one.name] for one in keywords if one.name in defaults} or None
    return init


def _completion(every: tuple[Field[Any], ...]) -> Callable[[Any], None] | None:
    """What sets the fields whose values are not given, if there are any."""
    makers = [(one.name, one.default_factory) for one in every if one.default_factory is not MISSING]
    values = [(one.name, one.default) for one in every if not one.init and one.default is not MISSING]
    put = object.__setattr__

    def complete(self: Any) -> None:
        for name, value in values:
            put(self, name, value)
        for name, make in makers:
            if getattr(self, name, _FACTORY) is _FACTORY:
                put(self, name, make())

    return complete if makers or values else None


@cache
def _compiled(statement: str, positional: int, keywords: int, last: str) -> CodeType:
    numbers = range(positional + keywords)
    parameters = ["self", *(f"p{number}" for number in numbers)]
    if keywords:
        parameters.insert(1 + positional, "*")
    body = [statement.format(number) for number in numbers]
    found: dict[str, FunctionType] = {}
    exec(f"def __init__({', '.join(parameters)}):\n    {'; '.join([*body, last or 'pass'])}", found)
    return found["__init__"].__code__


def _eq(self: Any, other: Any) -> Any:
    if self is other:
        return True
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self.__compared__(self) == self.__compared__(other)


def _hash(self: Any) -> int:
    return hash(self.__hashed__(self))


def _repr(self: Any) -> str:
    shown = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _set(_self: Any, name: str, _value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(_self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


_REPR: Final[Mapping[str, Any]] = {"__repr__": _repr}
_SHARED: Final[Mapping[str, Any]] = {**_REPR, "__eq__": _eq, "__hash__": None}
_FROZEN: Final[Mapping[str, Any]] = {
    **_SHARED,
    "__hash__": _hash,
    "__setattr__": _set,
    "__delattr__": _delete,
    "__getstate__": _state,
    "__setstate__": _set_state,
}
"""What all these classes share, unless one has its own."""
