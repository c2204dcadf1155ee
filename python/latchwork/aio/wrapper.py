"""The base class of all asyncio forms of classes, and the registry of these forms by class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from latchwork.types import Create, Put

if TYPE_CHECKING:
    from typing import Self

#: The asyncio form of each class that has one.
async_classes: dict[type, type[AsyncWrapper]] = {}
#: A cache: the asyncio form of a class or of its nearest base class, or None.
_found: dict[type, Any] = {}


class AsyncWrapper:
    """The asyncio form of an object. It has the same members as the object, and members that wait must be awaited."""

    _of: Any

    def __repr__(self) -> str:
        return f"<aio {self._of!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncWrapper) and self._of is other._of

    def __hash__(self) -> int:
        return hash(id(self._of))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return wrap_async(getattr(self._of, name))

    @classmethod
    def wrap(cls, of: object) -> Self:
        """Create the asyncio form of an existing object. The object itself can still be used.

        Args:
            of: The object.
        """
        made = cls.__new__(cls)
        made._of = of  # noqa: SLF001 - a new one of this class
        return made


def wrap_async(value: Any) -> Any:
    """Return the asyncio form of a value, or the value itself if it has none.

    Values in lists and dictionaries are converted.
    """
    if isinstance(value, dict):
        return {key: wrap_async(each) for key, each in value.items()}
    kind = type(value)
    if kind is list and value and wrap_async(value[0]) is not value[0]:
        return [wrap_async(each) for each in value]
    async_class = _found.get(kind, async_classes)
    if async_class is async_classes:
        async_class = _found[kind] = next((async_classes[each] for each in kind.__mro__ if each in async_classes), None)
    return value if async_class is None else async_class.wrap(value)


def unwrap(value: Any) -> Any:
    """Return the synchronous object inside an asyncio wrapper: a ``latchwork.Store`` for a ``latchwork.aio.Store``.

    Items of lists, and the sessions of operations, are unwrapped. Other values are returned unchanged.
    """
    if isinstance(value, AsyncWrapper):
        return value._of  # noqa: SLF001 - its own
    if isinstance(value, (list, tuple)):
        return [unwrap(each) for each in value]
    if isinstance(value, (Put, Create)) and isinstance(value.session, AsyncWrapper):
        return replace(value, session=unwrap(value.session))
    return value
