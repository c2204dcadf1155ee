"""The base class of all asyncio forms ("twins"), and the registry from classes to their asyncio forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from latchwork.types import Create, Put

if TYPE_CHECKING:
    from typing import Self

#: The twin of each class that has one.
twins: dict[type, type[Twin]] = {}
#: A cache: the twin of a class or of its nearest base class, or None.
_found: dict[type, Any] = {}


class Twin:
    """The asyncio form of an object. It has the same members, and those that wait must be awaited."""

    _of: Any

    def __repr__(self) -> str:
        return f"<aio {self._of!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Twin) and self._of is other._of

    def __hash__(self) -> int:
        return hash(id(self._of))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return twin_of(getattr(self._of, name))

    @classmethod
    def wrap(cls, of: object) -> Self:
        """Create the asyncio form of an existing object. Both can be used."""
        made = cls.__new__(cls)
        made._of = of  # noqa: SLF001 - a new one of this class
        return made


def twin_of(value: Any) -> Any:
    """Return the asyncio form of a value, or the value itself if it has none. Values in lists and dictionaries are
    converted.
    """
    if isinstance(value, dict):
        return {key: twin_of(each) for key, each in value.items()}
    kind = type(value)
    if kind is list and value and twin_of(value[0]) is not value[0]:
        return [twin_of(each) for each in value]
    twin = _found.get(kind, twins)
    if twin is twins:
        twin = _found[kind] = next((twins[each] for each in kind.__mro__ if each in twins), None)
    return value if twin is None else twin.wrap(value)


def unwrap(value: Any) -> Any:
    """Return the original object of an asyncio form. Other values are returned unchanged.

    Values in lists, and the sessions in operations, are converted.
    """
    if isinstance(value, Twin):
        return value._of  # noqa: SLF001 - its own
    if isinstance(value, (list, tuple)):
        return [unwrap(each) for each in value]
    if isinstance(value, (Put, Create)) and isinstance(value.session, Twin):
        return replace(value, session=unwrap(value.session))
    return value
