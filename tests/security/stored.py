"""Every kind of stored record: an example as the product writes it, and what reads it; and values that nobody wrote.

`test_records.py` and `fuzz.py` replace the examples; a module that reads records and has no row here fails a test.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from latchwork._base.decoding import encode as encode_it
from latchwork.cli.screens.tree import format_value
from latchwork.demo import records as demo
from latchwork.demo.corpus import Counts
from latchwork.jobs.cron_progress import ProgressRecord, decode_progress_record
from latchwork.jobs.manager.strategies import decode_strategies, encode_strategies
from latchwork.jobs.settings import ClusterSettings, JobSettings, SettingsReader, encode_settings
from latchwork.jobs.stored import chunked_set
from latchwork.jobs.stored.nodes import MaintenanceRecord, NodeRecord, decode_maintenance_record
from latchwork.jobs.stored.requests import (
    AuditRecord,
    RunRequest,
    RunResult,
    decode_audit_record,
    decode_request,
    decode_result,
)
from latchwork.jobs.stored.runs import (
    JobOutcome,
    LiveRun,
    RunError,
    decode_active_runs,
    decode_outcomes,
    encode_active_runs,
    encode_outcomes,
)
from latchwork.primitives import once
from latchwork.primitives.barrier import phases
from latchwork.primitives.fair import semaphore
from latchwork.primitives.fair.latch import Leader
from latchwork.primitives.fair.tickets import Ticket
from latchwork.primitives.group import view_log as views
from latchwork.primitives.group.views import EvictionRecord, GroupMember, StoredMember
from latchwork.primitives.leased.protocol import LockRecord, OwnerRecord
from latchwork.primitives.numbers.rate_limiter import Permits
from latchwork.primitives.numbers.shared_number import Reading
from latchwork.primitives.queue.items import QueueItem
from latchwork.primitives.queue.items import read_for_display as shown_item
from latchwork.primitives.queue.ordered_puts import Capacity
from latchwork.schedules import Cron, FireProgress, FixedDelay
from latchwork.types import Entry
from security.stored_systems import ROWS


@dataclass(frozen=True)
class Kind:
    """A kind of record.

    Attributes:
        module: what reads it, below `latchwork`.
        good: a value as the product writes it.
        read: reads a value.
    """

    module: str
    good: bytes
    read: Callable[[bytes], object]


def at(value, key="t-" + "0" * 32):
    """An entry with that value."""
    return Entry(key, value, 1, 1, 1)


def dumped(**body):
    return json.dumps(body).encode()


#: The key of an item of a queue.
QUEUED = "work/partitions/all/items/5-000000000/5-000000000001"
OPENING = phases.Opening(1, 2, ("a", "b"), 60.0, 1.0, 2)
BOARD = phases.BarrierRecord.with_fixed_parties(["a", "b"]).after_pass(["a", "b"])
BOARD = BOARD.after_break("it was late", ["a"], OPENING, cycle=2)
CELL = ProgressRecord(
    "c",
    7,
    "o1",
    ("a", "b", "c"),
    (FireProgress(1.0, None, "r"), FireProgress(1.0, None, "r"), FireProgress(2.0, 2.0, "r")),
)
CHUNKED = chunked_set.ChunkedSet(chunks=(chunked_set.Chunk("w-1", ("a",)), chunked_set.Chunk("w-2", ("b",))))
MEMBER = NodeRecord("n1", "ready", "h", 1, "i1", 1e9, 10.0, labels={"zone": "a"}, unmet_labels={"j": {"gpu": "yes"}})
MARK = MaintenanceRecord("n1", "restarting", "i1", "s1", 300.0, 2.0, ("j",), "me", "now", {"zone": "a"})
JOB = JobSettings(enabled=False, schedule=Cron("0 3 * * *", tz="Europe/Berlin"), threads=4)
FAILED = RunError("why", "a", 1, "n1", 5.0, 2)
ABOUT = {"label": "me", "host": "h", "pid": 5, "nonce": "n"}
IN_GROUP = GroupMember("a", 2.0, {"zone": "x", "key": b"\x00"}, "here", "h", 5, "i1", 1e9, 1e9, 7)
STORED = views.LoggedMember(9, 7, StoredMember.from_member(IN_GROUP))
STEP = views.ViewChangeStep(3, {"a": STORED}, ("b",))
HEAD = views.LogHead("l1", 3, 1, 2, 1, 2, STEP)

KINDS = {
    "ticket": Kind("primitives.fair.tickets", dumped(**ABOUT), lambda value: Ticket.from_entry(at(value))),
    "campaign": Kind(
        "primitives.fair.latch",
        dumped(**ABOUT, value="AA==", encoding="base64"),
        lambda value: Leader.from_ticket(Ticket.from_entry(at(value))),
    ),
    "semaphore": Kind("primitives.fair.semaphore", dumped(leases=3), lambda value: semaphore._read_size(at(value))),
    "starts": Kind("primitives.once", dumped(starts=1, nonce="n"), lambda value: once._STARTS.decode_entry(at(value))),
    "outcome": Kind(
        "primitives.once",
        dumped(ok=False, kind="K", why="w", **ABOUT),
        lambda value: once._decode_result(at(value), "once 'x'"),
    ),
    "owner": Kind("primitives.leased.protocol", OwnerRecord(5.0, "me", "h", 5).to_bytes(), OwnerRecord.decode),
    "lock": Kind("primitives.leased.protocol", LockRecord("o1", "n", 5.0).to_bytes(), LockRecord.decode),
    "item": Kind(
        "primitives.queue.items",
        QueueItem("5-000000000001", 2, "why", 5, "5" * 32).to_bytes(),
        lambda value: (shown_item(at(value, QUEUED)), QueueItem.from_entry(at(value, QUEUED)).priority),
    ),
    "capacity": Kind(
        "primitives.queue.ordered_puts", Capacity(5, 2).to_bytes(), lambda value: Capacity.from_entry(at(value))
    ),
    "barrier": Kind(
        "primitives.barrier.phases",
        BOARD.to_bytes(),
        lambda value: phases.BarrierRecord.from_entry(at(value)).after_pass(["a"]),
    ),
    "opening": Kind(
        "primitives.barrier.phases",
        OPENING.to_bytes(),
        lambda value: phases.BarrierRecord(0, phase=1).find_opening(at(value)),
    ),
    "arrival": Kind(
        "primitives.barrier.phases", phases.encode_arrival(3, ABOUT), lambda value: phases.parse_arrival(at(value))
    ),
    "member of a group": Kind(
        "primitives.group.views", IN_GROUP.to_bytes(), lambda value: GroupMember.from_entry(at(value, "a")).to_bytes()
    ),
    "evicted member": Kind("primitives.group.views", EvictionRecord("i1", "why", 5.0).to_bytes(), EvictionRecord.find),
    "views": Kind(
        "primitives.group.view_log", HEAD.to_bytes(), lambda value: views.LogHead.from_entry(at(value)).to_bytes()
    ),
    "view": Kind(
        "primitives.group.view_log",
        views.encode_step(STEP),
        lambda value: views.ViewState().apply_step(views.decode_step(at(value))),
    ),
    "base of views": Kind(
        "primitives.group.view_log",
        views.ViewState(2, {"a": STORED}).encode_chunks()[0],
        lambda value: views.ViewState.from_base(HEAD, [at(value)]).to_view(),
    ),
    "number": Kind(
        "primitives.numbers.shared_number",
        dumped(value=5, writes=2, recent=["a", "b"]),
        lambda value: Reading.from_entry("k", at(value)).encode_change(6, "n"),
    ),
    "permits": Kind(
        "primitives.numbers.rate_limiter",
        Permits(3, 1.0, 0.5, 9).to_bytes(),
        lambda value: Permits.from_entry(at(value)).after_issuing(1),
    ),
    "member": Kind("jobs.stored.nodes", MEMBER.to_bytes(), lambda value: NodeRecord.decode("n1", value).to_bytes()),
    "mark": Kind("jobs.stored.nodes", MARK.to_bytes(), lambda value: decode_maintenance_record("n1", value)),
    "activity": Kind(
        "jobs.stored.runs",
        encode_active_runs([LiveRun("j", ("a",), 5.0)]),
        lambda value: decode_active_runs("n1", value),
    ),
    "outcomes": Kind(
        "jobs.stored.runs",
        encode_outcomes([JobOutcome("n1", "j", 5.0, 6.0, FAILED, 1, 2, (FAILED,), 9.0)]),
        lambda value: encode_outcomes(decode_outcomes("n1", value)),
    ),
    "request of a run": Kind(
        "jobs.stored.requests",
        RunRequest("r1", "j", ("a",), 5.0, 6.0, "me").to_bytes(),
        lambda value: decode_request("manual/r1", value),
    ),
    "end of a run": Kind("jobs.stored.requests", RunResult("n1", 1, ("a",), "why").to_bytes(), decode_result),
    "audit": Kind(
        "jobs.stored.requests", AuditRecord("j", "a", 5, "n1", "me", "now", "hung").to_bytes(), decode_audit_record
    ),
    "inline set": Kind(
        "jobs.stored.chunked_set",
        chunked_set.ChunkedSet(inline=("a", "b")).encode_manifest(),
        lambda value: chunked_set.decode_set(value, lambda _: None),
    ),
    "set": Kind(
        "jobs.stored.chunked_set",
        CHUNKED.encode_manifest(),
        lambda value: (
            chunked_set.decode_chunk_names(value),
            chunked_set.decode_set(value, {"w-1": b'["a"]', "w-2": b'["b"]'}.get),
        ),
    ),
    "chunk": Kind(
        "jobs.stored.chunked_set",
        b'["a","b"]',
        lambda value: chunked_set.decode_set(b'{"chunks":["w-1"]}', lambda _: value),
    ),
    "cell": Kind(
        "jobs.cron_progress",
        CELL.encode_state("n"),
        lambda value: decode_progress_record("c", value, CELL.encode_items()),
    ),
    "items of a cell": Kind(
        "jobs.cron_progress",
        CELL.encode_items(),
        lambda value: decode_progress_record("c", CELL.encode_state("n"), value),
    ),
    "settings of a job": Kind(
        "jobs.settings",
        json.dumps(encode_settings(JOB)).encode(),
        lambda value: SettingsReader().read([at(value, "settings/jobs/j")]),
    ),
    "settings": Kind(
        "jobs.settings",
        json.dumps(encode_settings(ClusterSettings(debounce_s=2.0, all_disabled=True))).encode(),
        lambda value: SettingsReader().read([at(value, "settings/cluster")]),
    ),
    "schedule": Kind(
        "jobs.settings",
        json.dumps(encode_settings(JobSettings(schedule=FixedDelay(5.0)))).encode(),
        lambda value: SettingsReader().read([at(value, "settings/jobs/j")]),
    ),
    "strategies": Kind(
        "jobs.manager.strategies",
        json.dumps(encode_strategies({"*": "balanced"})).encode(),
        lambda value: decode_strategies(at(value)),
    ),
    "demo running": Kind("demo.records", encode_it(demo.Running("a", 5)), lambda value: demo.decode_running(at(value))),
    "demo starts": Kind(
        "demo.records", encode_it([demo.Start("n1", 5, 1.0)]), lambda value: demo.decode_starts(at(value))
    ),
    "demo result": Kind(
        "demo.records", encode_it(demo.Result("n1", 5, Counts(1, 2))), lambda value: demo.decode_result(at(value))
    ),
    "demo assignment": Kind(
        "demo.records",
        encode_it(demo.AssignmentRecord("n1", 1.0, ("a",))),
        lambda value: demo.decode_assignment(at(value)),
    ),
    "any value shown": Kind("cli.screens.tree", b'{"password":"x","a":[1]}', lambda value: format_value(at(value))),
}

KINDS |= {name: Kind(*row) for name, row in ROWS.items()}

HUGE = 10**400
#: Takes the place of one part of a record.
PARTS = (
    HUGE, -HUGE, 10**18, -1, 0, 1e308, -1e308, 1e300, None, True, "", "\ud800", "\x1b[31m[bold]x\u202e", "a/b c", "..",
    "x" * 5000, [], {}, [[]], [[0, 10**9]], [None], ["b", "a"], ["a"] * 3, {"a": {"b": []}}, [{}], float("nan"),
    float("inf"),
)  # fmt: skip
#: Takes the place of a whole value.
VALUES = (
    b"", b"x", b"null", b"[]", b"{}", b"5", b'"x"', b"\xff\xfe", b'"\\ud800"', b"[" * 100_000, b'{"a":' * 100_000,
    b"[" * 400 + b"]" * 400, b"1" * 400, b"1" * 100_000, b"1e999", b"NaN", b'{"pid":1' + b"0" * 400 + b"}",
    b" " * 900_000,
    b'{"chunks":[' + b",".join([b'"w-1"'] * 100_000) + b"]}", b"\xef\xbb\xbf{}", "{}".encode("utf-16"),
)  # fmt: skip


def places(body, path=()):
    """The paths of all parts of a JSON value, itself included."""
    yield path
    inner = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for name, part in inner:
        yield from places(part, (*path, name))


def put(body, path, part):
    """The same JSON value with another part."""
    if not path:
        return part
    name, rest = path[0], path[1:]
    if isinstance(body, dict):
        return {**body, name: put(body[name], rest, part)}
    return [put(each, rest, part) if index == name else each for index, each in enumerate(body)]


def spoilt(good, part):
    """Each value that has this part in the place of one of its own; a line below the JSON stays."""
    head, newline, rest = good.partition(b"\n")
    body = json.loads(head)
    for path in places(body):
        yield json.dumps(put(body, path, part)).encode() + newline + rest
