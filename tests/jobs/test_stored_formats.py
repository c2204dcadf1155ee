"""Records as releases wrote them, byte for byte: each version reads them all. A record here is never changed."""

from __future__ import annotations

import pytest

from latchwork.jobs import Cron, FixedRate, Threads
from latchwork.jobs import settings as stored
from latchwork.jobs.cron import decode_cell
from latchwork.jobs.settings import JobSettings
from latchwork.jobs.stored.nodes import Member, decode_mark
from latchwork.jobs.stored.requests import RunEnd, RunRequest, decode_end, decode_record, decode_request
from latchwork.jobs.stored.runs import RunError, decode_activity, decode_outcomes
from latchwork.primitives.leased.protocol import LockRecord, OwnerRecord
from latchwork.schedules import Fired

MEMBER = (
    b'{"worker":"n1","state":"ready","host":"h1","pid":7,"incarnation":"a1b2c3d4e5f6","since":1700000000.5,"ttl_s":10.0,"weight":2.0,'
    b'"version":"0.1.0","labels":{"gpu":"yes"},"start":"f6e5d4c3b2a1","lacks":{"train":{"gpu":"big"}}}'
)
ACTIVITY = b'{"jobs":{"report":{"runs":2,"items":3,"since":1700000001.25,"named":{"north":1700000001.25}}}}'
CELL = (
    b'{"token":41,"owner":"5c5f","nonce":"n","fired":[[1700000000.0,null],[1700000000.0,1700000000.0]],"rules":["r",""],'
    b'"of":[[0,1],[1,2]]}'
)
CELL_ITEMS = b'["a","b","\xc3\xa9"]'
AUDIT = (
    b'{"job": "report", "item": "north", "token": 41, "holder": "\'n1\' (pid 7 on h1)", "by": "kim@desk", '
    b'"at": "2026-01-02T03:04:05+00:00", "reason": "hangs", "what": "force-release"}'
)
SETTINGS = (
    b'{"enabled": false, "schedule": {"cron": "0 3 * * *", "tz": "UTC", "misfire": "once", "on_time_s": 60.0, '
    b'"max_lateness_s": 86400.0, "rerun_interrupted": true}, "threads": 4, "changed": {"by": "kim@desk", "at": "2026"}}'
)
OUTCOMES = (
    b'{"jobs":{"report":{"start":1700000002.5,"success":1700000001.0,"error":[0,"north",3,1700000002.6,4],"items":3,"row":4,'
    b'"failing":[[0,"north",3,1700000002.6,4]],"next":1700000060.0}},"errors":["ValueError: no"]}'
)
REQUEST = b'{"id":"1","job":"report","items":["north"],"at_s":1700000000.0,"until_s":1700003600.0,"by":"kim@desk"}'
END = b'{"node":"n1","items":3,"named":["a","b","c"],"error":"OSError: full"}'


OWNER = b'{"ttl_s": 10.0, "label": "n1", "host": "h1", "pid": 7}'
LOCK = b'{"owner": "5c5f", "nonce": "n", "since_s": 1700000000.5}'
#: Since signs: the release before reads it, and leaves the session alone.
OWNER_WITH_A_SESSION = b'{"ttl_s": 10.0, "label": "n1", "host": "h1", "pid": 7, "session": "5e55"}'


def test_an_owner_of_locks_and_a_lock_of_0_1():
    assert OwnerRecord.decode(OWNER) == OwnerRecord(10.0, "n1", "h1", 7)
    assert LockRecord.decode(LOCK) == LockRecord("5c5f", "n", 1700000000.5)


def test_an_owner_that_names_a_session():
    assert OwnerRecord.decode(OWNER_WITH_A_SESSION) == OwnerRecord(10.0, "n1", "h1", 7, "5e55")


def test_a_member_of_0_1():
    member = Member.decode("n1", MEMBER)
    assert (member.state, member.host, member.pid, member.incarnation) == ("ready", "h1", 7, "a1b2c3d4e5f6")
    assert (member.since, member.ttl_s, member.weight, member.version) == (1700000000.5, 10.0, 2.0, "0.1.0")
    assert (member.labels, member.start) == ({"gpu": "yes"}, "f6e5d4c3b2a1")
    assert member.lacks == {"train": {"gpu": "big"}}


def test_runs_that_go_on_of_0_1():
    (found,) = decode_activity("n1", ACTIVITY)
    assert (found.job, found.runs, found.items, found.since_s) == ("report", 2, 3, 1700000001.25)
    assert found.named == {"north": 1700000001.25}


def test_progress_of_0_1():
    cell = decode_cell("c", CELL, CELL_ITEMS)
    assert (cell.token, cell.owner, cell.items) == (41, "5c5f", ("a", "b", "é"))
    assert cell.fired == (
        Fired(1700000000.0, None, "r"),
        Fired(1700000000.0, 1700000000.0, ""),
        Fired(1700000000.0, 1700000000.0, ""),
    )


def test_an_audit_record_of_0_1():
    found = decode_record(AUDIT)
    assert (found.job, found.item, found.token, found.by, found.reason) == ("report", "north", 41, "kim@desk", "hangs")


def test_settings_of_0_1():
    found, bad = stored.decode(JobSettings(), stored.parse_document(SETTINGS))
    assert (found.enabled, found.schedule, found.threads, bad) == (False, Cron("0 3 * * *"), 4, [])
    rate, _ = stored.decode(JobSettings(), {"schedule": {"fixed_rate_s": 5.0}, "threads": 0})
    assert (rate.schedule, Threads(rate.threads)) == (FixedRate(5.0), Threads.per_item())


@pytest.mark.parametrize("state", ["drained", "restarting"])
def test_a_mark_of_0_1(state):
    value = (
        b'{"node": "n1", "state": "%s", "by": "kim@desk", "at": "2026-01-02T03:04:05.000+00:00", "timeout_s": 300.0}'
        % state.encode()
    )
    assert decode_mark("n1", value).state == state


def test_how_runs_went():
    (found,) = decode_outcomes("n1", OUTCOMES)
    error = RunError("ValueError: no", "north", 3, "n1", 1700000002.6, 4)
    assert (found.last_start_s, found.last_success_s, found.next_start_s) == (1700000002.5, 1700000001.0, 1700000060.0)
    assert (found.last_error, found.failing, found.failing_items, found.in_a_row) == (error, (error,), 3, 4)


def test_a_request_and_the_end_of_its_run():
    asked = RunRequest("1", "report", ("north",), 1700000000.0, 1700003600.0, "kim@desk")
    assert decode_request("requests/1", REQUEST) == asked
    assert decode_end(END) == RunEnd("n1", 3, ("a", "b", "c"), "OSError: full")
