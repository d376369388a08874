"""Dataclasses that cost a fifth of the time of the ordinary ones, because all of them share their methods.

``dataclass(frozen=True, slots=True)`` generates and compiles seven methods for each class, and then makes the
class a second time: 18 KB, and half of the time that devhost needs to start. Here each class has its own
``__init__``, and classes whose fields differ only in their names and defaults share its compiled code.
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


_ASSIGN = "self.f{0} = {1}"
_PUT = "put(self, 'f{0}', {1})"
_SET = "set{0}(self, {1})"
"""Statements of ``__init__`` that set a field. A frozen one refuses assignments; slots are set faster."""


def _init(made: type, every: tuple[Field[Any], ...], statement: str) -> Callable[..., None]:
    """``__init__``, with the names of this class in code that other classes have, too."""
    positional = {one.name: f"p{number}" for number, one in enumerate(every) if one.init and not one.kw_only}
    keywords = {one.name: f"p{number}" for number, one in enumerate(every) if one.init and one.kw_only}
    defaults = {
        one.name: _FACTORY if one.default is MISSING else one.default
        for one in every
        if one.default is not MISSING or one.default_factory is not MISSING
    }
    without = [name not in defaults for name in positional]
    if without != sorted(without, reverse=True):
        raise TypeError(f"{made.__qualname__} has a field without a default after one with a default")
    slots: list[Any] = [getattr(made, one.name, None) for one in every]
    if statement == _PUT and all(isinstance(slot, MemberDescriptorType) for slot in slots):
        statement = _SET
    known: dict[str, Any] = {"__name__": made.__module__, "absent": _FACTORY, "put": object.__setattr__}
    body = []
    for number, one in enumerate(every):
        value = f"p{number}"
        if one.default_factory is not MISSING:
            known[f"make{number}"] = one.default_factory
            value = f"make{number}() if {value} is absent else {value}" if one.init else f"make{number}()"
        elif not one.init:
            if one.default is MISSING:
                continue
            value = f"value{number}"
            known[value] = one.default
        if statement == _SET:
            known[f"set{number}"] = slots[number].__set__
        body.append(statement.format(number, value))
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(["self", *positional.values(), *(["*", *keywords.values()] if keywords else [])])
    shape = _compiled(f"def __init__({parameters}):\n    {'; '.join(body) or 'pass'}")
    names = {f"f{number}": one.name for number, one in enumerate(every)}
    code = shape.replace(
        co_varnames=("self", *positional, *keywords),
        co_names=tuple(names.get(name, name) for name in shape.co_names),
        co_consts=tuple(names.get(value, value) for value in shape.co_consts),
        co_qualname=f"{made.__qualname__}.__init__",
    )
    given = tuple(defaults[name] for name in positional if name in defaults)
    init = FunctionType(code, known, "__init__", given)
    init.__kwdefaults__ = {name: defaults[name] for name in keywords if name in defaults} or None
    return init


@cache
def _compiled(function: str) -> CodeType:
    found: dict[str, FunctionType] = {}
    exec(function, found)
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
