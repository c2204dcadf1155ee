"""Keys of a job cluster below ``@jobs``, and the encoding of IDs and work items as key segments.

Keys:   alive/<worker>                              a running node; session-bound
        leader/<ticket>                             election of the manager; session-bound
        workers/<worker>/available/<job>            a job that the worker can run
        workers/<worker>/assigned/<job>[/<chunk>]   the worker's assignment: the items of the job that it should run
        work-pool/<job>[/<chunk>]                   all work items of a job
        runs/<worker>                               active runs of the worker; session-bound; see runs.py
        outcomes/<worker>                           results of its runs; see runs.py
        owners/<uuid>, locks/<job>/<item>           locks that allow one run of an item in the cluster
        fired/<job>/<record>[/items]                  cron fire times that have started; see jobs/cron_progress.py
        requests/<id>, manual/<id>/...              requests for manual runs, and their results; see requests.py
        settings/cluster, settings/jobs/<job>       settings that may change at any time; see jobs/settings.py
        audit/<number>                              log of locks released by operators; see requests.py
        nodes/<node>[/reserved/<job>[/<chunk>]]     nodes that are drained or restarting; see nodes.py
        nodes/<node>/damaged/<job>                  the node cannot read its assignment; session-bound; see nodes.py
        versions/{work-pool,worker,assignment}      guards, rewritten with each change of their subtree
"""

from __future__ import annotations

import re

from latchwork.store import Store, system_namespace

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
    """Return the ID if it is a valid name for a job or a node.

    Args:
        kind: ``job`` or ``node``, for the error message.
        value: The ID to check.
    Raises:
        ValueError: The ID is not a text of 1 to 120 characters of ``A-Za-z0-9._-``, or it is ``.`` or ``..``.
    """
    if isinstance(value, str) and _ID.fullmatch(value) and value not in {".", ".."}:
        return value
    msg = f"{kind} id {value!r} cannot be used; give 1 to 120 characters of A-Z a-z 0-9 . _ - (and not . or ..)"
    raise ValueError(msg)


def check_item(value: object) -> str:
    """Return the work item if it is a valid text of at most 512 UTF-8 bytes.

    Raises:
        ValueError: The item is not a text, cannot be encoded as UTF-8, or is too long.
    """
    if not isinstance(value, str):
        msg = f"work item {value!r} is of type {type(value).__name__}; a work item is a str, so convert it"
        raise ValueError(msg)  # noqa: TRY004 - one family of errors for bad items
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError as error:
        msg = f"work item {value!r} is not valid text: it contains a lone surrogate; decode it properly first"
        raise ValueError(msg) from error
    if size > MAX_ITEM_BYTES:
        msg = f"work item {value[:40]!r}... has {size} bytes; give at most {MAX_ITEM_BYTES} bytes of UTF-8 (an id, say)"
        raise ValueError(msg)
    return value


def encode_item(item: str) -> str:
    """Encode a work item as one or more key segments, joined by ``/``. ``decode_item`` is the inverse.

    Letters, digits and ``._-=,:`` are kept, and every other byte of its UTF-8 form becomes ``~XX``. A text longer than
    a segment is split. Every piece except the last ends in ``+``, so that no item's key is a prefix of another's.
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
    """Decode a work item from key segments that ``encode_item`` has made.

    Raises:
        ValueError: The segments are not an encoded item.
    """
    *pieces, last = path.split("/")
    if any(not piece.endswith(_MORE) for piece in pieces) or last.endswith(_MORE):
        msg = f"{path!r} is not an encoded work item; another program wrote below this key"
        raise ValueError(msg)
    text = "".join(piece[:-1] for piece in pieces) + last
    if text == _EMPTY_ITEM:
        return ""
    raw = _ESCAPE.sub(lambda m: chr(int(m.group(1), 16)), text).encode("latin-1")
    return raw.decode("utf-8")


def alive_key(worker: str) -> str:
    """Return the key that exists while a worker's session lasts."""
    return f"{ALIVE}/{worker}"


def available_job_key(worker: str, job: str = "") -> str:
    """Return the key whose existence shows that a worker can run a job. Without a job, return the prefix of these
    keys.
    """
    return f"{WORKERS}/{worker}/available/{job}".rstrip("/")


def assignment_key(worker: str, job: str = "") -> str:
    """Return the key that stores the items of a job that a worker should run. Without a job, return the prefix of these
    keys.
    """
    return f"{WORKERS}/{worker}/assigned/{job}".rstrip("/")


def active_runs_key(worker: str) -> str:
    """Return the key that stores a worker's active runs."""
    return f"{RUNS}/{worker}"


def outcomes_key(worker: str) -> str:
    """Return the key that stores the results of a worker's runs."""
    return f"{OUTCOMES}/{worker}"


def work_pool_key(job: str) -> str:
    """Return the key that stores a job's work pool."""
    return f"{WORK_POOL}/{job}"


def lock_name(job: str, item: str) -> str:
    """Return the name of the lock of a job's work item, relative to ``locks``."""
    return f"{job}/{encode_item(item)}"


def split_lock_name(name: str) -> tuple[str, str]:
    """Return the job and the item to which a lock belongs, from the lock's name.

    Raises:
        ValueError: It is not the name of an item's lock.
    """
    job, _, path = name.partition("/")
    return job, decode_item(path)


def cluster_store(store: Store, namespace: str | None = None) -> Store:
    """Return the part of a store that contains the keys of a job cluster: its namespace ``@jobs``.

    Args:
        store: The store. A store that is in this namespace already is returned unchanged.
        namespace: Namespace of the cluster, as given to its job managers.
    """
    return system_namespace(store.namespace(namespace) if namespace else store, "jobs")
