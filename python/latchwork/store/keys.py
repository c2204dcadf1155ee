"""The syntax of keys, and the conversion between keys of a namespace and absolute keys.

The components of latchwork keep their keys below reserved segments, such as ``@jobs``, at the root or in a namespace.
Callers may read keys with such segments, but not write them. Only ``system_namespace`` allows that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec import Struct

from latchwork.backends.key_syntax import (
    MAX_KEY_CHARS,
    MAX_KEY_SEGMENTS,
    MAX_NAME_CHARS,
    MAX_NAME_SEGMENTS,
    MAX_PREFIX_CHARS,
    MAX_PREFIX_SEGMENTS,
    SEGMENT,
    describe_size,
    is_too_long,
)
from latchwork.errors import InvalidKey
from latchwork.types import (
    Absent,
    At,
    Change,
    Check,
    Committed,
    Create,
    Delete,
    Entry,
    Exists,
    Fence,
    Op,
    Put,
    SimpleCheck,
)

#: Latchwork's components; the keys of each are below ``@`` and its name.
SYSTEMS = ("executor", "jobs", "locks", "plans", "workers", "workflows")
_OPEN = rf"(?!@){SEGMENT}"
_OPEN_OR_SYSTEM = rf"(?:{_OPEN}|@(?:{'|'.join(SYSTEMS)})(?=/|\Z))"
_SHORT, _MORE = rf"(?=.{{1,{MAX_KEY_CHARS}}}\Z)", rf"{{0,{MAX_KEY_SEGMENTS - 1}}}\Z"
_KEY = re.compile(rf"{_SHORT}{_OPEN}(?:/{_OPEN}){_MORE}")
_READABLE = re.compile(rf"{_SHORT}{_OPEN_OR_SYSTEM}(?:/{_OPEN_OR_SYSTEM}){_MORE}")
_SEGMENT = re.compile(rf"{_OPEN}\Z")
_ONE_SEGMENT = re.compile(rf"{SEGMENT}\Z")
#: Number of characters that a message shows of a key that is too long.
_SHOWN = 60
_RULE = "a key is segments joined by single slashes, each 1-120 characters of A-Z a-z 0-9 . _ - ~ % @ : + = ,"


def validate_key(key: str) -> str:
    """Return the key unchanged if a caller may write it: it is well formed, not too long, and has no reserved segments.

    Raises:
        InvalidKey: The key is invalid. The message names the invalid segment and the rule.
    """
    given: object = key  # callers without a type checker pass anything
    if not isinstance(given, str) or not _KEY.match(given):
        raise InvalidKey(_fault(key))
    return key


def validate_key_for_read(key: str) -> str:
    """Return the key unchanged if a caller may read it. Unlike a written key, it may contain reserved segments.

    Raises:
        InvalidKey: The key is invalid.
    """
    given: object = key
    if not isinstance(given, str) or not _READABLE.match(given):
        raise InvalidKey(_fault(key))
    return key


def is_segment(text: object) -> bool:
    """Return whether a text is a valid segment of a key and not reserved."""
    return isinstance(text, str) and _SEGMENT.match(text) is not None


def validate_prefix(prefix: str) -> str:
    """Return the prefix unchanged if it is a valid key, or "" for the root.

    Raises:
        InvalidKey: The prefix is invalid.
    """
    return prefix if prefix == "" else validate_key(prefix)


def validate_prefix_for_read(prefix: str) -> str:
    """Return the prefix unchanged if a caller may read below it. "" is the root. It may contain reserved segments.

    Raises:
        InvalidKey: The prefix is invalid.
    """
    return prefix if prefix == "" else validate_key_for_read(prefix)


def validate_name(key: str) -> str:
    """Return the key unchanged if it is valid and short enough to be the name of a lock or another primitive.

    Raises:
        InvalidKey: The key is invalid, or too long to have subkeys.
    """
    return _with_room(validate_key(key), MAX_NAME_CHARS, MAX_NAME_SEGMENTS)


def _with_room(key: str, chars: int, segments: int) -> str:
    if is_too_long(key, chars, segments):
        raise InvalidKey(f"{_shown(key)} {describe_size(key, chars, segments)}")
    return key


def _shown(key: str) -> str:
    return repr(key if len(key) <= _SHOWN else f"{key[:_SHOWN]}...")


def _fault(key: object) -> str:
    if not isinstance(key, str):
        return f"a key must be str, not {type(key).__name__}: {key!r}"
    if is_too_long(key):
        return f"key {_shown(key)} {describe_size(key)}"
    if key == "":
        return "the empty key names the root, which has no value; give a key below it"
    for segment in key.split("/"):
        if segment.startswith("@") and _ONE_SEGMENT.match(segment):
            return (
                f"key {key[:200]!r} is reserved: segments that start with '@' are latchwork's own; choose another name"
            )
        if segment == "":
            return f"key {key!r} has an empty segment; {_RULE}"
        if not _ONE_SEGMENT.match(segment):
            shown = segment if len(segment) <= 130 else f"{segment[:60]}... ({len(segment)} characters)"
            return f"segment {shown!r} of key {key[:200]!r} is not allowed; {_RULE}, never . or .."
    return f"key {key!r} is malformed; {_RULE}"


def _too_long(absolute: str) -> str:
    return f"key {_shown(absolute)} with its namespace {describe_size(absolute)}"


class Resolved(Struct, frozen=True):
    """An operation that already has an absolute key, for a transaction in any namespace of its store.

    Attributes:
        sent: The operation with its absolute key.
        given: The operation as written by the caller, for errors.
    """

    sent: Op
    given: Op


@dataclass(frozen=True, slots=True)
class Scope:
    """Converts between the keys of a namespace and absolute keys, which are relative to the root in the URL."""

    prefix: str = ""

    def join(self, key: str) -> str:
        """Return the absolute form of a key of this namespace, without validating it.

        "" becomes the namespace itself.
        """
        if not self.prefix:
            return key
        return f"{self.prefix}/{key}" if key else self.prefix

    def nested_scope(self, prefix: str) -> Scope:
        """Return the scope of a namespace below this one.

        Raises:
            InvalidKey: The prefix is invalid, or too long to have subkeys.
        """
        return self._with_prefix(self.absolute_key(prefix))

    @property
    def is_reserved(self) -> bool:
        """Whether the namespace is below a reserved segment, and so belongs to a component of latchwork."""
        return self.prefix.startswith("@") or "/@" in self.prefix

    def component_scope(self, name: str) -> Scope:
        """Return the scope in which a component of latchwork keeps its keys.

        This is the reserved segment ``@name`` below this scope. If this scope already belongs to a component, it is
        this scope.
        """
        return self if self.is_reserved else self._with_prefix(self.join(f"@{name}"))

    @staticmethod
    def _with_prefix(prefix: str) -> Scope:
        return Scope(_with_room(prefix, MAX_PREFIX_CHARS, MAX_PREFIX_SEGMENTS))

    def absolute_key(self, key: str) -> str:
        """Validate a key for writing and return its absolute form.

        Raises:
            InvalidKey: The key is invalid, or too long with the namespace.
        """
        return self._valid(key, _KEY)

    def absolute_key_for_read(self, key: str) -> str:
        """Validate a key for reading and return its absolute form."""
        return self._valid(key, _READABLE)

    def _valid(self, key: str, pattern: re.Pattern[str]) -> str:
        given: object = key  # callers without a type checker pass anything
        if not isinstance(given, str) or not pattern.match(given):
            raise InvalidKey(_fault(key))
        if not self.prefix:
            return key
        absolute = f"{self.prefix}/{key}"
        if len(absolute) > MAX_KEY_CHARS or absolute.count("/") >= MAX_KEY_SEGMENTS:
            raise InvalidKey(_too_long(absolute))
        return absolute

    def absolute_prefix_for_read(self, prefix: str) -> str:
        """Validate a prefix for reading and return its absolute form. "" becomes the namespace itself."""
        return self._join_checked(validate_prefix_for_read(prefix))

    def absolute_prefix(self, prefix: str) -> str:
        """Validate a prefix for writing and return its absolute form. "" becomes the namespace itself."""
        return self._join_checked(validate_prefix(prefix))

    def _join_checked(self, key: str) -> str:
        """Return the absolute form of a valid key. Raise ``InvalidKey`` if it is too long."""
        if not self.prefix:
            return key
        absolute = f"{self.prefix}/{key}" if key else self.prefix
        if is_too_long(absolute):
            raise InvalidKey(_too_long(absolute))
        return absolute

    def relative_key(self, key: str) -> str:
        """Convert an absolute key to a key of this namespace. The key of the namespace itself becomes ""."""
        return key[len(self.prefix) + 1 :] if self.prefix else key

    def relative_entry(self, entry: Entry) -> Entry:
        """Return a copy of the entry with a key of this namespace instead of an absolute one."""
        if not self.prefix:
            return entry
        key = entry.key[len(self.prefix) + 1 :]
        return Entry(key, entry.value, entry.version, entry.token, entry.created, entry.owner)

    def relative_entry_or_none(self, entry: Entry | None) -> Entry | None:
        """Return a copy of the entry with a key of this namespace, or None if the entry is None."""
        if entry is None or not self.prefix:
            return entry
        key = entry.key[len(self.prefix) + 1 :]  # not `replace`, which takes seven times as long
        return Entry(key, entry.value, entry.version, entry.token, entry.created, entry.owner)

    def relative_changes(self, changes: list[Change]) -> list[Change]:
        """Return copies of the changes with keys of this namespace instead of absolute ones."""
        if not self.prefix:
            return changes
        start = len(self.prefix) + 1
        found: list[Change] = []
        for each in changes:
            e = each.entry
            if e is not None:
                e = Entry(e.key[start:], e.value, e.version, e.token, e.created, e.owner)
            found.append(Change(each.key[start:], e))
        return found

    def relative_result(self, committed: Committed) -> Committed:
        """Return a copy of a transaction's result with keys of this namespace instead of absolute ones."""
        if not self.prefix:
            return committed
        start = len(self.prefix) + 1
        entries = [Entry(e.key[start:], e.value, e.version, e.token, e.created, e.owner) for e in committed.entries]
        deleted = [key[start:] for key in committed.deleted] if committed.deleted else ()
        return Committed(committed.token, tuple(entries), tuple(deleted))

    def absolute_checks(self, checks: Sequence[Check]) -> dict[SimpleCheck, Check]:
        """Validate a transaction's checks, replace fences by their checks, and remove duplicates.

        Returns:
            A dict from each check with its absolute key to the check or fence that the caller passed.
        """
        out: dict[SimpleCheck, Check] = {}
        for check in checks:
            if isinstance(check, Fence):
                for part in check.checks:
                    out.setdefault(part, check)
            elif isinstance(check, (At, Absent, Exists)):
                key = self._valid(check.key, _READABLE)
                if key == check.key:
                    out.setdefault(check, check)
                else:
                    out.setdefault(At.of(key, check.version) if isinstance(check, At) else type(check)(key), check)
            else:
                out.setdefault(check, check)
        return out

    def absolute_ops(self, ops: Iterable[Op | Resolved]) -> list[Op]:
        """Validate a transaction's operations, and return copies of them with absolute keys."""
        found: list[Op] = []
        for op in ops:
            if isinstance(op, Resolved):
                found.append(op.sent)
                continue
            key = self._valid(op.key, _KEY)
            if key == op.key:
                found.append(op)
            elif isinstance(op, Delete):
                found.append(Delete(key))
            else:
                found.append((Put if isinstance(op, Put) else Create)(key, op.value, op.session))
        return found
