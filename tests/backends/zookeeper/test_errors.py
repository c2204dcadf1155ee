"""What a caller is told whose request got no reply."""

from __future__ import annotations

import pytest

from latchwork.backends.zookeeper.errors import NoReply, no_reply_error
from latchwork.errors import Closed, OutcomeUnknown, SessionLost, Unavailable


@pytest.mark.parametrize("over", [True, False])
@pytest.mark.parametrize("session_id", [None, "s1"])
def test_a_write_that_was_sent_is_unknown_whatever_ended_its_connection(over, session_id):
    no_reply = NoReply(sent=True, has_ended=over)
    told = no_reply_error(no_reply, description="put 'k'", is_write=True, session_id=session_id, closed=True)
    assert type(told) is OutcomeUnknown


@pytest.mark.parametrize(
    ("sent", "over", "write", "session_id", "closed", "expected"),
    [
        (False, True, True, "s1", False, SessionLost),
        (True, True, False, "s1", False, SessionLost),
        (False, True, True, None, True, Closed),
        (False, False, True, "s1", False, Unavailable),
        (True, False, False, None, False, Unavailable),
    ],
)
def test_what_was_not_sent_or_only_read_was_not_applied(sent, over, write, session_id, closed, expected):
    no_reply = NoReply(sent=sent, has_ended=over)
    assert (
        type(no_reply_error(no_reply, description="call", is_write=write, session_id=session_id, closed=closed))
        is expected
    )
