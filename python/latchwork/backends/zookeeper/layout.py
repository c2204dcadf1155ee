"""Keys as znodes: where they are, what their data look like, what was seen of them.

    /<root>/<key>            data: "=" value, or "@" session "=" value for a session-bound key; empty: a parent.
                             "@" session ":" created "=" value once it is overwritten or bound again: binding a key
                             creates its znode again, and `created` stays
    /<root>/<key>/#born      the key came to life on a znode that was there already: `created` is this one's czxid. It
                             stays when the key is deleted and others are below it
    /<root>/<parent>/#keep   this parent had sequential keys and is never removed: its counter must not restart; data:
                             once the server's counter has come to its end, the next number
    /<root>/@gen/<00..3f>    one guard for each bucket of keys: its version grows with every deletion in the bucket
    /<root>/@s/<session>     ephemeral: the session lives; data: the number of its last write
    /<root>/@w/<uuid>        ephemeral: data: the number of the last write of a store's own connection

Keys have no "#", so that the names with one are ours on every level. An implied parent is a container, created and set
once in the same multi. **A znode of version 0 is a key, and a childless container of version 1 is none**: the server
may delete a childless container at any time. docs/design/zookeeper.md has the protocol built on this.

Nothing here touches the network.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from latchwork.backends.key_syntax import InvalidKeys, is_key
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.wire import Data
from latchwork.types import Entry

BUCKETS = 64
BORN, KEEP = "#born", "#keep"
UNKNOWN = -(2**40)  # no version that the server could tell
ANY = -1  # what the server takes for "whichever": a version that is really this cannot be checked
_PLAIN, _BOUND, _CREATED = b"=", b"@", b":"
#: Folders of our own below the root; other first segments that begin with "@" are latchwork's systems.
_FOLDERS = ("@gen", "@s", "@w")
#: What the data of a session-bound key begin with: its owner, and `created` if the znode is younger than the key.
_BOUND_TO = re.compile(rb"@([0-9a-f]{32})(?::([0-9]{1,18}))?=")


@dataclass(frozen=True, slots=True)
class Version:
    """The version of an entry, which is opaque for users and compared by ``mzxid``. The other fields are hints for
    checks.

    Attributes:
        mzxid: The number of the transaction that last wrote the key: the token of the entry.
        data: The dataVersion of the znode. UNKNOWN if the reply to the write was lost.
        gen: The version of the guard of the key's bucket, read before the key. UNKNOWN if it was not read.
        created: The number of the transaction that created the key.
        owner: ID of the session to which the key is bound.
        born: Whether the key has a ``#born`` node.
    """

    mzxid: int
    data: int = field(compare=False)
    gen: int = field(compare=False)
    created: int = field(compare=False)
    owner: str | None = field(compare=False)
    born: bool = field(compare=False)

    def __repr__(self) -> str:
        return f"<version {self.mzxid}>"


@dataclass(frozen=True, slots=True)
class Znode:
    """The last known state of the znode of a key.

    Attributes:
        exists: Whether the znode exists.
        version: The version of the key. None if there is no key: the znode is then only the parent of other keys.
        data: The dataVersion.
        children: The number of children without ``#born``.
        gen: The version of the guard of the key's bucket, read before the znode.
        ephemeral: Whether it is ephemeral, so that it cannot have children.
        is_marked: Whether it has a ``#born`` node.
    """

    exists: bool
    version: Version | None = None
    data: int = UNKNOWN
    children: int = 0
    gen: int = UNKNOWN
    ephemeral: bool = False
    is_marked: bool = False


def znode_of_version(version: Version) -> Znode:
    """Return the state of a key's znode, built from a version that was read earlier. It has no known children."""
    return Znode(True, version, version.data, 0, version.gen, version.owner is not None, version.born)


def encode_data(value: bytes, owner: str | None, created: int | None = None) -> bytes:
    """Encode the data of a key's znode.

    Args:
        value: The value of the key.
        owner: ID of the session to which the key is bound, or None.
        created: The number of the transaction that created a session-bound key, if its znode was created again later.
    """
    if owner is None:
        return _PLAIN + value
    older = b"" if created is None else _CREATED + str(created).encode()
    return _BOUND + owner.encode() + older + _PLAIN + value


def decode_data(data: bytes, *, ephemeral: bool) -> tuple[bytes, str | None, int | None]:
    """Decode the data of a znode.

    Data of other programs are returned unchanged as the value. Text that looks like an owner is a part of the value if
    the znode is not ephemeral or the ID is not valid.

    Returns:
        The value, the ID of the owner session or None, and the transaction that created the key if the data contain it.
    """
    if data[:1] == _PLAIN:
        return data[1:], None, None
    found = _BOUND_TO.match(data) if ephemeral else None
    if found is None:
        return data, None, None
    older = found[2]
    return data[found.end() :], found[1].decode("ascii"), None if older is None else int(older)


def decode_entry(
    key: str, znode_data: Data, guard_version: int = UNKNOWN, born_zxid: int | None = None
) -> Entry | None:
    """Return the entry for the data of a znode, or None if it is only a parent of other keys.

    Args:
        key: The key.
        znode_data: The data and metadata of the znode.
        guard_version: The version of the guard of the key's bucket, read before the znode.
        born_zxid: The number of the transaction that created the key's ``#born`` node.
    """
    data, stat = znode_data
    if not data:
        return None
    value, owner, older = decode_data(data, ephemeral=bool(stat.ephemeral_owner))
    created = next(each for each in (older, born_zxid, stat.czxid) if each is not None)
    version = Version(stat.mzxid, stat.version, guard_version, created, owner, born_zxid is not None)
    return Entry(key, value, version, stat.mzxid, created, owner)


def get_bucket(key: str) -> int:
    """Return the number of the bucket to which a key belongs. All keys of a bucket share one guard znode."""
    return zlib.crc32(key.encode()) % BUCKETS


def get_parent(key: str) -> str:
    """Return the parent of a key. "" is the root."""
    return key.rpartition("/")[0]


def list_ancestors(key: str) -> list[str]:
    """Return the parent of a key, its parent, and so on, without the root."""
    found = []
    while key := get_parent(key):
        found.append(key)
    return found


def is_internal_name(name: str) -> bool:
    """Return whether a name below a key is that of an internal znode: ``#born`` or ``#keep``."""
    return name[:1] == "#"


def build_child_keys(key: str, names: Iterable[str]) -> list[str]:
    """Return the full keys for names directly below a key."""
    return [f"{key}/{name}" for name in names] if key else list(names)


class ZnodeLayout:
    """The paths of the znodes of one root.

    Args:
        root: The root in the URL.
        acl: The encoded ACL of created znodes.

    Attributes:
        invalid_keys: Invalid keys of other programs below the root.
    """

    def __init__(self, root: str, acl: bytes = b"") -> None:
        self.root = "/" + root
        self.invalid_keys = InvalidKeys(self.root)
        self._acl = acl
        self.guards = [f"{self.root}/@gen/{number:02x}" for number in range(BUCKETS)]
        self.folders = [f"{self.root}/{name}" for name in _FOLDERS]

    def path(self, key: str) -> str:
        """Return the path of a key's znode. "" is the root."""
        return f"{self.root}/{key}" if key else self.root

    def guard_path(self, key: str) -> str:
        """Return the path of the znode that guards a key's bucket. The version of this znode grows with every deletion
        in the bucket.
        """
        return self.guards[get_bucket(key)]

    def born_path(self, key: str) -> str:
        """Return the path of the ``#born`` node, which records when a key was created on an existing znode."""
        return f"{self.path(key)}/{BORN}"

    def keep_path(self, key: str) -> str:
        """Return the path of the ``#keep`` node, which prevents the removal of a parent of sequential keys."""
        return f"{self.path(key)}/{KEEP}"

    def session_path(self, session_id: str) -> str:
        """Return the path of the ephemeral znode of a session."""
        return f"{self.root}/@s/{session_id}"

    def writer_path(self, unique: str) -> str:
        """Return the path of the ephemeral znode in which the store's main connection numbers its writes."""
        return f"{self.root}/@w/{unique}"

    def encode_create(self, path: str, data: bytes = b"", flags: int = wire.PERSISTENT) -> bytes:
        """Encode the creation of a znode as an operation of a transaction.

        Args:
            path: The path of the znode.
            data: Its data.
            flags: ZooKeeper's create mode.
        """
        return wire.encode_create(path, data, self._acl, flags)

    def encode_create_parent(self, key: str, *, is_key: bool = False) -> list[bytes]:
        """Encode the creation of a parent without a value, as operations of a transaction.

        The parent is a container, which the server deletes some time after its last child. With ``is_key`` it is not a
        container, because the same transaction makes it a key. The parent is also written once, because a znode of
        version 0 counts as a key.
        """
        path = self.path(key)
        return [
            self.encode_create(path) if is_key else wire.encode_create_container(path, self._acl),
            wire.encode_set_data(path, b"", 0),
        ]

    def root_paths(self) -> list[str]:
        """Return the paths of the znodes from the top down to the root of the store."""
        segments = self.root[1:].split("/")
        return ["/" + "/".join(segments[: count + 1]) for count in range(len(segments))]

    def key_of(self, path: str) -> str | None:
        """Return the key of the znode at a path. None for internal znodes and invalid keys."""
        if not path.startswith(self.root + "/"):
            return None
        key = path[len(self.root) + 1 :]
        if key.partition("/")[0] in _FOLDERS:
            return None
        head, _, name = key.rpartition("/")
        if is_internal_name(name):
            key = head if name == BORN else ""
        elif not is_key(key):
            self.invalid_keys.record([key])
        return key if is_key(key) else None

    def filter_valid_names(self, names: Iterable[str], key: str) -> list[str]:
        """Return the names below a key that are neither internal nor part of an invalid key. Invalid keys are added to
        ``invalid_keys``.
        """
        found = [name for name in names if not is_internal_name(name) and (key or name[:1] != "@")]
        if len(found) == len(keys := [name for name in found if is_key(name)]):
            return found
        self.invalid_keys.record(build_child_keys(key, (name for name in found if name not in keys)))
        return keys
