"""The keys of a job cluster below ``@jobs``, and how ids and work items become part of a key.

Keys:   alive/<worker>                              session-bound; which nodes are alive
        leader/<ticket>                             session-bound; who manages, and who is next
        workers/<worker>/available/<job>            the jobs this worker can run
        workers/<worker>/assigned/<job>[/<chunk>]   its share of the work items
        work-pool/<job>[/<chunk>]                   all work items of a job
        runs/<worker>                               session-bound; which runs go on there; see runs.py
        outcomes/<worker>                           how its runs went; see runs.py
        owners/<uuid>, locks/<job>/<item>           one run of an item at a time, cluster-wide
        fired/<job>/<cell>[/items]                  which cron fire times have started; see jobs/cron.py
        requests/<id>, manual/<id>/...               requested runs, and how they ended; see requests.py
        settings/cluster, settings/jobs/<job>       what changes while the cluster runs; see jobs/settings.py
        audit/<number>                              what people changed; see audit.py
        nodes/<node>[/reserved/<job>[/<chunk>]]     drained, or being restarted; see nodes.py
        versions/{work-pool,worker,assignment}      guards, bumped by what changes their subtree
"""

from __future__ import annotations

import re

from latchwork.store import Store, refuse_old_layout, system_namespace

ALIVE = "alive"
LEADER = "leader"
WORKERS = "workers"
WORK_POOL = "work-pool"
OWNERS = "owners"
LOCKS = "locks"
RUNS = "runs"
OUTCOMES = "outcomes"
GUARD_POOL = "versions/work-pool"
GUARD_WORKER = "versions/worker"
GUARD_ASSIGNMENT = "versions/assignment"
MAX_ITEM_BYTES = 512
_MAX_SEGMENT = 120
_ID = re.compile(r"[A-Za-z0-9._-]{1,120}")
_UNSAFE = re.compile(rb"[^A-Za-z0-9._=,:-]")
_ESCAPE = re.compile(r"~([0-9A-F]{2})")
_EMPTY_ITEM = "~"
_MORE = "+"


def check_id(kind: str, value: object) -> str:
    """The id itself, if it may name a job or a node.

    Args:
        kind: what it names, for the message: ``job`` or ``node``.
        value: the id.
    Raises:
        ValueError: it is no text of 1 to 120 characters of ``A-Za-z0-9._-``, or it is ``.`` or ``..``.
    """
    if isinstance(value, str) and _ID.fullmatch(value) and value not in {".", ".."}:
        return value
    msg = f"{kind} id {value!r} cannot be used; give 1 to 120 characters of A-Z a-z 0-9 . _ - (and not . or ..)"
    raise ValueError(msg)


def check_item(value: object) -> str:
    """The work item itself, if it is valid text of at most 512 UTF-8 bytes.

    Raises:
        ValueError: it is no text, cannot be encoded as UTF-8, or is too long.
    """
    if not isinstance(value, str):
        msg = f"work item {value!r} is of type {type(value).__name__}; a work item is a str, so convert it"
        raise ValueError(msg)  # noqa: TRY004 - one family of errors for bad items
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError as error:
        msg = f"work item {value!r} is no valid text: it holds a lone surrogate; decode it properly first"
        raise ValueError(msg) from error
    if size > MAX_ITEM_BYTES:
        msg = f"work item {value[:40]!r}... has {size} bytes; give at most {MAX_ITEM_BYTES} bytes of UTF-8 (an id, say)"
        raise ValueError(msg)
    return value


def encode_item(item: str) -> str:
    """The item as one or more key segments, joined by ``/``; ``decode_item`` is its inverse.

    Letters, digits and ``._-=,:`` stay as they are, every other byte of its UTF-8 becomes ``~XX``. Longer than a
    segment, it is cut: every piece but the last ends in ``+``, so no item's key lies above another's.
    """
    text = _UNSAFE.sub(lambda m: b"~%02X" % m.group()[0], item.encode("utf-8")).decode("ascii") or _EMPTY_ITEM
    step = _MAX_SEGMENT - 1
    pieces = []
    while len(text) > _MAX_SEGMENT:
        pieces.append(text[:step] + _MORE)
        text = text[step:]
    if text in {".", ".."}:
        text = "~2E" + text[1:]
    return "/".join([*pieces, text])


def decode_item(path: str) -> str:
    """The item that ``encode_item`` made this path from.

    Raises:
        ValueError: no item has this path.
    """
    *pieces, last = path.split("/")
    if any(not piece.endswith(_MORE) for piece in pieces) or last.endswith(_MORE):
        msg = f"{path!r} is no encoded work item; something else wrote below this key"
        raise ValueError(msg)
    text = "".join(piece[:-1] for piece in pieces) + last
    if text == _EMPTY_ITEM:
        return ""
    raw = _ESCAPE.sub(lambda m: chr(int(m.group(1), 16)), text).encode("latin-1")
    return raw.decode("utf-8")


def alive(worker: str) -> str:
    """The key that lives as long as the worker."""
    return f"{ALIVE}/{worker}"


def available(worker: str, job: str = "") -> str:
    """The key of a job this worker can run; without a job the prefix of them."""
    return f"{WORKERS}/{worker}/available/{job}".rstrip("/")


def assigned(worker: str, job: str = "") -> str:
    """The head of a worker's share of a job; without a job the prefix of them."""
    return f"{WORKERS}/{worker}/assigned/{job}".rstrip("/")


def runs(worker: str) -> str:
    """The key that says which runs are going on at a worker."""
    return f"{RUNS}/{worker}"


def outcomes(worker: str) -> str:
    """The key that says how the runs at a worker went."""
    return f"{OUTCOMES}/{worker}"


def pool(job: str) -> str:
    """The head of a job's work pool."""
    return f"{WORK_POOL}/{job}"


def lock_name(job: str, item: str) -> str:
    """The name of an item's lock, relative to ``locks``."""
    return f"{job}/{encode_item(item)}"


def split_lock_name(name: str) -> tuple[str, str]:
    """The job and the item of a lock's name.

    Raises:
        ValueError: no item's lock has this name.
    """
    job, _, path = name.partition("/")
    return job, decode_item(path)


def cluster_store(store: Store, namespace: str | None = None) -> Store:
    """The store in which a cluster has its keys: below ``@jobs`` at the root, or in a namespace.

    Args:
        store: the store; that of a cluster is returned as it is.
        namespace: the cluster's namespace below it, as given to its job managers.
    """
    return system_namespace(store.namespace(namespace) if namespace else store, "jobs")


def refuse_old_cluster(store: Store, namespace: str | None = None) -> None:
    """Refuse a root, or a namespace, with a job cluster of a version that had no reserved segments.

    Raises:
        LatchworkError: there is one.
    """
    where = store.namespace(namespace) if namespace else store
    # Every node bumped both, when it registered itself and its pools.
    refuse_old_layout(where, "a job cluster", dict.fromkeys((GUARD_WORKER, GUARD_POOL), b"{}".__eq__))
