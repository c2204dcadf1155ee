"""What happens while a watch loads its first state is told behind it."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from latchwork.backends.base import Snapshot
from latchwork.types import Put


def test_what_changes_between_the_look_and_the_first_state_is_told(backend, other, wait_until, monkeypatch):
    looked, go_on, whole = threading.Event(), Future(), backend._lister.read_subtree_with_root

    def slowly(*arguments):
        entries = yield from whole(*arguments)
        looked.set()
        yield go_on
        return entries

    monkeypatch.setattr(backend._lister, "read_subtree_with_root", slowly)
    told = []
    watch = backend.watch("w", told.append)
    assert looked.wait(10)
    other.commit([], [Put("w/k", b"1")]).result(10)
    wait_until(lambda: watch.dirty)
    go_on.set_result(None)
    wait_until(lambda: len(told) > 1)
    assert isinstance(told[0], Snapshot)
    assert told[0].entries == ()
    assert [(change.key, change.entry.value) for change in told[1].changes] == [("w/k", b"1")]
