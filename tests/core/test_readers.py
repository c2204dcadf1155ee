"""Readers of an assignment and a board: without a copy, without a deadlock, and cheap beside busy threads."""

from __future__ import annotations

import pytest

from latchwork._core import Assignment, ItemSet, RendezvousHasher
from native import run

READERS = {
    "indices": "a.indices",
    "buffer": "memoryview(a)",
    "workers": "a.workers",
    "weights": "a.weights",
    "items": "a.items",
    "to_dict": "a.to_dict()",
    "by_worker": "a.by_worker()",
    "repr": "repr(a)",
    "leave and join": "a.leave('b'); a.join('b')",
    "items removed and added": "a.remove_items(['1']); a.add_items(['1'])",
}


@pytest.mark.parametrize("reader", READERS)
def test_a_finalizer_that_reads_the_assignment_being_read_does_not_wait_for_itself(reader):
    done = run(
        f"""
import faulthandler, gc
faulthandler.dump_traceback_later(30, exit=True)
a = c.RendezvousHasher(['a', 'b', 'c']).assign(c.ItemSet([str(i) for i in range(50)]))
class Loop:
    def __init__(self): self.me = self
    def __del__(self): len(a)
gc.set_threshold(1)
for _ in range(500):
    Loop()
    {READERS[reader]}
"""
    )
    assert done.returncode == 0, done


def test_a_str_that_reads_the_assignment_when_it_dies_does_not_wait_for_itself():
    done = run(
        """
import faulthandler
faulthandler.dump_traceback_later(30, exit=True)
seen = []
class Name(str):
    def __del__(self): seen.append(len(a))
a = c.RendezvousHasher(['a', 'b']).assign(c.ItemSet(map(str, range(50))))
a.join(Name('c'))
a.leave('c')
a.add_items([Name('x')])
a.remove_items(['x'])
assert seen, seen
"""
    )
    assert done.returncode == 0, done


def small() -> Assignment:
    return RendezvousHasher(["a", "b", "c"]).assign(ItemSet(map(str, range(50))))


def test_indices_are_the_numbers_themselves_and_stay_as_they_were():
    numpy = pytest.importorskip("numpy")
    assignment = small()
    before = assignment.indices
    first, second = (numpy.frombuffer(view, numpy.uint32) for view in (assignment.indices, memoryview(assignment)))
    assert first.__array_interface__["data"] == second.__array_interface__["data"]
    copy = first.copy()
    assignment.leave("a")
    assignment.add_items(["new"])
    assert (first == copy).all()
    assert list(before) == list(copy)
    owners = assignment.to_dict()
    workers = assignment.workers
    assert [workers[at] for at in assignment.indices] == list(owners.values())


def test_nobody_can_write_into_an_assignment():
    for view in (small().indices, memoryview(small())):
        assert view.readonly
        with pytest.raises(TypeError, match="read-only"):
            view[0] = 1


def test_a_getter_of_a_board_keeps_the_interpreter_lock():
    done = run(
        """
import threading, time
b = c.Board(); b.join('w'); b.add_job('j', [str(i) for i in range(100)]); b.place()
stop = False
def spin():
    while not stop: pass
thread = threading.Thread(target=spin)
thread.start()
started = time.perf_counter()
for _ in range(300): b.owner('j', '5')
took = time.perf_counter() - started
stop = True
thread.join()
assert took < 0.3, took  # 1.5 s when each call hands the lock to the other thread
"""
    )
    assert done.returncode == 0, done


def test_a_board_that_another_thread_places_is_waited_for_until_a_signal_comes():
    done = run(
        """
import os, signal, threading, time
b = c.Board()
for i in range(600): b.join(f'w{i:04}')
for k in range(3000): b.add_job(f'j{k}', [str(i) for i in range(50)])
def forever():
    while True:
        b.place()
        b.leave('w0007')
        b.place()
        b.join('w0007')
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.3)
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    while True: b.owner('j1', '0')
except KeyboardInterrupt:
    print('interrupted')
"""
    )
    assert "interrupted" in done.stdout, done
