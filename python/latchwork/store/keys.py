"""Key syntax, and the scope of a namespace. Performs no I/O.

Latchwork's components keep their keys below reserved segments, such as ``@jobs``, at the root or in a namespace.
Callers may read keys with such segments, but not write them. Only ``system_namespace`` opens them for writing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from latchwork.backends.grammar import (
    MAX_KEY_CHARS,
    MAX_KEY_SEGMENTS,
    MAX_NAME_CHARS,
    MAX_NAME_SEGMENTS,
    MAX_PREFIX_CHARS,
    MAX_PREFIX_SEGMENTS,
    SEGMENT,
    is_too_long,
    sizes,
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
    """Return the key if it is well formed, not too long and not reserved.

    Raises:
        InvalidKey: The key is invalid. The message names the faulty segment and the rule.
    """
    given: object = key  # callers without a type checker pass anything
    if not isinstance(given, str) or not _KEY.match(given):
        raise InvalidKey(_fault(key))
    return key


def validate_readable(key: str) -> str:
    """Return the key if a read may use it. It may be below a reserved segment.

    Raises:
        InvalidKey: The key is invalid.
    """
    given: object = key
    if not isinstance(given, str) or not _READABLE.match(given):
        raise InvalidKey(_fault(key))
    return key


def is_segment(text: object) -> bool:
    """Return whether the text can be one segment of a key, and is not reserved."""
    return isinstance(text, str) and _SEGMENT.match(text) is not None


def validate_prefix(prefix: str) -> str:
    """Return the prefix if it is a valid key, or "" for the root."""
    return prefix if prefix == "" else validate_key(prefix)


def validate_readable_prefix(prefix: str) -> str:
    """Return the prefix if a read may use it, or "" for the root."""
    return prefix if prefix == "" else validate_readable(prefix)


def validate_name(key: str) -> str:
    """Return the key if it can name a primitive, which needs space for its subkeys.

    Raises:
        InvalidKey: The key is invalid, or too long to have subkeys.
    """
    return _with_room(validate_key(key), MAX_NAME_CHARS, MAX_NAME_SEGMENTS)


def _with_room(key: str, chars: int, segments: int) -> str:
    if is_too_long(key, chars, segments):
        raise InvalidKey(f"{_shown(key)} {sizes(key, chars, segments)}")
    return key


def _shown(key: str) -> str:
    return repr(key if len(key) <= _SHOWN else f"{key[:_SHOWN]}...")


def _fault(key: object) -> str:
    if not isinstance(key, str):
        return f"a key must be str, not {type(key).__name__}: {key!r}"
    if is_too_long(key):
        return f"key {_shown(key)} {sizes(key)}"
    if key == "":
        return "the empty key names the root, which holds no value; give a key below it"
    for segment in key.split("/"):
        if segment.startswith("@") and _ONE_SEGMENT.match(segment):
            return (
                f"key {key[:200]!r} is reserved: segments that start with '@' are latchwork's own; choose another name"
            )
        if segment == "":
            return f"key {key!r} has a slash too many (an empty segment); {_RULE}"
        if not _ONE_SEGMENT.match(segment):
            shown = segment if len(segment) <= 130 else f"{segment[:60]}... ({len(segment)} characters)"
            return f"segment {shown!r} of key {key[:200]!r} is not allowed; {_RULE}, never . or .."
    return f"key {key!r} is malformed; {_RULE}"


def _too_long(absolute: str) -> str:
    return f"key {_shown(absolute)} with its namespace {sizes(absolute)}"


@dataclass(frozen=True, slots=True)
class Resolved:
    """An operation with an absolute key, for a transaction in any namespace of its store.

    Attributes:
        sent: The operation with its absolute key.
        given: The operation as written by the caller, for errors.
    """

    sent: Op
    given: Op


@dataclass(frozen=True, slots=True)
class Scope:
    """Translates between the keys of a namespace and absolute keys, which are relative to the URL's root."""

    prefix: str = ""

    def absolute(self, key: str) -> str:
        """Return the absolute key; "" becomes the namespace itself."""
        if not self.prefix:
            return key
        return f"{self.prefix}/{key}" if key else self.prefix

    def namespace(self, prefix: str) -> Scope:
        """Return the scope of a nested namespace.

        Raises:
            InvalidKey: The prefix is invalid, or too long to have subkeys.
        """
        return self._with_prefix(self.key(prefix))

    @property
    def is_inside_system(self) -> bool:
        """Whether keys of this scope are below a reserved segment."""
        return self.prefix.startswith("@") or "/@" in self.prefix

    def system(self, name: str) -> Scope:
        """Return the scope of one of latchwork's components; this scope itself if it is already inside one."""
        return self if self.is_inside_system else self._with_prefix(self.absolute(f"@{name}"))

    @staticmethod
    def _with_prefix(prefix: str) -> Scope:
        return Scope(_with_room(prefix, MAX_PREFIX_CHARS, MAX_PREFIX_SEGMENTS))

    def key(self, key: str) -> str:
        """Validate a key and return its absolute form.

        Raises:
            InvalidKey: The key is invalid, or too long with the namespace.
        """
        return self._valid(key, _KEY)

    def readable(self, key: str) -> str:
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

    def below(self, prefix: str) -> str:
        """Validate a prefix for reading and return its absolute form; "" becomes the namespace itself."""
        return self._within(validate_readable_prefix(prefix))

    def writable_below(self, prefix: str) -> str:
        """Validate a prefix and return its absolute form; "" becomes the namespace itself."""
        return self._within(validate_prefix(prefix))

    def _within(self, key: str) -> str:
        """Return a valid key's absolute form, if not too long."""
        if not self.prefix:
            return key
        absolute = f"{self.prefix}/{key}" if key else self.prefix
        if is_too_long(absolute):
            raise InvalidKey(_too_long(absolute))
        return absolute

    def relative(self, key: str) -> str:
        """Return the key relative to the namespace; the namespace's own key becomes ""."""
        return key[len(self.prefix) + 1 :] if self.prefix else key

    def entry(self, entry: Entry) -> Entry:
        """Return the entry with its relative key."""
        if not self.prefix:
            return entry
        key = entry.key[len(self.prefix) + 1 :]
        return Entry(key, entry.value, entry.version, entry.token, entry.created, entry.owner)

    def relative_entry(self, entry: Entry | None) -> Entry | None:
        """Return the entry with its relative key, or None."""
        if entry is None or not self.prefix:
            return entry
        key = entry.key[len(self.prefix) + 1 :]  # not `replace`, which takes seven times as long
        return Entry(key, entry.value, entry.version, entry.token, entry.created, entry.owner)

    def changes(self, changes: list[Change]) -> list[Change]:
        """Return the changes with relative keys."""
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

    def committed(self, done: Committed) -> Committed:
        """Return a transaction's result with relative keys."""
        if not self.prefix:
            return done
        start = len(self.prefix) + 1
        entries = [Entry(e.key[start:], e.value, e.version, e.token, e.created, e.owner) for e in done.entries]
        deleted = [key[start:] for key in done.deleted] if done.deleted else ()
        return Committed(done.token, tuple(entries), tuple(deleted))

    def checks(self, checks: Sequence[Check]) -> dict[SimpleCheck, Check]:
        """Validate checks, expand fences and remove duplicates; map each absolute check to the given one."""
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

    def ops(self, ops: Iterable[Op | Resolved]) -> list[Op]:
        """Validate operations and return them with absolute keys."""
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
