"""What is the loop's own: wake-ups, turns, warnings, listeners, work that is cancelled, connecting and closing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import Future
from pathlib import Path

import pytest

import latchwork
from latchwork import aio
from latchwork._base import execution_context
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import Closed, KeyExists, LatchworkError, WaitTimeout
from latchwork.store.driving.background_loop import run_in_task
from latchwork.store.driving.loop import MAX_IN_FLIGHT, LoopMailbox
from latchwork.store.steps import Pause, Signal
from patience import eventually

ROOT = Path(__file__).resolve().parents[2]


def test_the_stub_is_as_the_table_makes_it():
    made = subprocess.run([sys.executable, ROOT / "scripts/make_aio_stub", "--check"], capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr


def test_importing_latchwork_imports_no_event_loop():
    code = "import latchwork, latchwork.primitives, sys; sys.exit('asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_many_wake_ups_from_other_threads_are_one_wake_up_of_the_loop():
    wakes, made = [], []

    async def wait():
        loop = asyncio.get_running_loop()
        soon = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *args: wakes.append(1) or soon(*args)
        arrivals = LoopMailbox.for_running_loop()

        def post():
            for number in range(1000):
                arrivals.post(made.append, number)

        thread = threading.Thread(target=post)
        thread.start()
        thread.join()
        while len(made) < 1000:
            await asyncio.sleep(0)

    asyncio.run(wait())
    assert made == list(range(1000))
    assert len(wakes) == 1


def test_a_thousand_waits_need_no_thread_each(backend_url):
    async def wait():
        async with aio.connect(backend_url) as store, aio.connect(backend_url) as other:
            locks = [aio.Lock(other, f"locks/{number}") for number in range(200)]
            await asyncio.gather(*(lock.acquire() for lock in locks))
            waiting = [asyncio.create_task(aio.Lock(store, lock.name).acquire()) for lock in locks]
            while len(await store.list("locks", recursive=True)) < 400:
                await asyncio.sleep(0.01)
            threads = threading.active_count()
            await asyncio.gather(*(lock.release() for lock in locks))
            return threads, len(await asyncio.gather(*waiting))

    before = threading.active_count()
    threads, had = asyncio.run(wait())
    assert had == 200
    assert threads - before <= 45  # two stores


def test_a_sync_call_in_a_loop_warns_once_and_names_the_twin(store, monkeypatch):
    monkeypatch.setattr(execution_context, "_warned", set())

    async def calls():
        lock = latchwork.primitives.Lock(store, "orders")
        for _ in range(3):
            store.get("a")
            lock.holder()
            with lock:
                pass

    with pytest.warns(RuntimeWarning) as warned:
        asyncio.run(calls())
    texts = [str(each.message) for each in warned if "LATCHWORK_ASYNC_WARN" in str(each.message)]
    for twin in (
        "await latchwork.aio.Store.get ",
        "await latchwork.aio.Lock.holder ",
        "async with latchwork.aio.Lock ",
    ):
        assert sum(twin in text for text in texts) >= 1, texts
    assert len(texts) == len(set(texts))
    assert {each.filename for each in warned if "Lock.holder" in str(each.message)} == {__file__}


def test_the_warning_can_be_turned_off(store, monkeypatch):
    monkeypatch.setattr(execution_context, "_warned", set())
    monkeypatch.setenv("LATCHWORK_ASYNC_WARN", "0")

    async def call():
        store.get("a")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(call())


def test_a_cancelled_write_says_that_it_may_have_been_applied(backend_url):
    async def cancelled():
        async with aio.connect(backend_url) as store:
            task = asyncio.create_task(store.put("a", b"1"))
            await asyncio.sleep(0)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError as error:
                return getattr(error, "__notes__", [])
            return None

    notes = asyncio.run(cancelled())
    if notes is not None:
        assert notes == [
            (
                "put 'a' was in progress when it was canceled: it may have been applied, or may "
                "still be applied; read again to find out"
            )
        ]


def test_work_of_a_leader_is_cancelled_before_its_leadership_can_end(backend_url):
    async def lead():
        async with aio.connect(backend_url, session_ttl_s=10.0) as store:
            session = await store.open_session(10.0)
            latch = aio.LeaderLatch(store, "leads", node_id="n1", session=session)
            seen = []

            async def work(token):
                try:
                    await session.close()  # the leadership ends
                    await asyncio.sleep(30.0)
                except asyncio.CancelledError:
                    seen.append(token.is_stopped)
                    raise

            async with latch:
                with pytest.raises((LatchworkError,)):
                    await latch.run(work, timeout_s=5.0)
            return seen

    began = time.monotonic()
    assert asyncio.run(lead()) == [True]
    assert time.monotonic() - began < 20.0


def test_work_that_is_cancelled_from_outside_has_ended_before_its_lock_is_released(backend_url):
    async def lead():
        async with aio.connect(backend_url) as store:
            seen, begun = [], asyncio.Event()

            async def work(term, token):
                begun.set()
                try:
                    await asyncio.sleep(30.0)
                finally:
                    await asyncio.sleep(0.05)
                    seen.append(term.is_leader)

            task = asyncio.create_task(aio.Election(store, "e", node_id="n1").run(work))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return seen, await aio.Election(store, "e", node_id="n2").leader()

    assert asyncio.run(lead()) == ([True], None)


def test_listeners_are_called_in_the_loop_and_async_ones_are_awaited_in_order(backend_url):
    async def listen():
        async with aio.connect(backend_url) as store:
            told, here = [], threading.current_thread()
            latch = aio.LeaderLatch(store, "l", node_id="n1")
            latch.on_elected(lambda: told.append(("elected", threading.current_thread() is here)))

            async def revoked():
                await asyncio.sleep(0.02)
                told.append(("revoked", threading.current_thread() is here))

            latch.on_revoked(revoked)
            async with latch:
                await latch.wait(20.0)
            return told

    assert asyncio.run(listen()) == [("elected", True), ("revoked", True)]


def test_tasks_of_one_thread_are_callers_of_their_own(backend_url):
    async def both():
        async with aio.connect(backend_url) as store:
            lock = aio.Lock(store, "x", reentrant=True)
            async with lock:
                async with lock:  # the same task
                    pass
                with pytest.raises(WaitTimeout):
                    await asyncio.create_task(lock.acquire(0.05))
            plain = aio.Lock(store, "y")
            async with plain:
                with pytest.raises(LatchworkError, match="already"):
                    await plain.acquire()

    asyncio.run(both())


def test_a_pipeline_keeps_so_many_in_flight_and_errors_in_their_futures(backend_url):
    async def put():
        async with aio.connect(backend_url) as store:
            async with store.pipeline(max_in_flight=7) as pipe:
                created = [pipe.create(f"k/{number % 50}", b"") for number in range(100)]
            ended = await asyncio.gather(*created, return_exceptions=True)
            assert sum(isinstance(each, KeyExists) for each in ended) == 50
            return len(await store.list("k"))

    assert asyncio.run(put()) == 50


def test_calls_that_are_gathered_wait_for_room_before_they_are_sent(backend_url, monkeypatch):
    async def gather():
        async with aio.connect(backend_url) as store:
            below, sent = store.namespace("below"), []

            def start_call(*_args, **_options):
                sent.append(Future())
                return sent[-1]

            with monkeypatch.context() as patch:
                for each in (store, below):
                    patch.setattr(each._of, "start_call", start_call)
                tasks = [asyncio.create_task((store, below)[n % 2].get("a")) for n in range(MAX_IN_FLIGHT + 20)]
                await asyncio.sleep(0.05)
                assert len(sent) == MAX_IN_FLIGHT
                tasks[-1].cancel()  # not sent: nothing is unknown
                sent[0].set_result(None)
                await tasks[0]
                while len(sent) == MAX_IN_FLIGHT:
                    await asyncio.sleep(0.01)
                assert len(sent) == MAX_IN_FLIGHT + 1
                while not all(task.done() for task in tasks):
                    for future in sent:
                        if not future.done():
                            future.set_result(None)
                    await asyncio.sleep(0.01)
                assert tasks[-1].cancelled()
                assert len(sent) == len(tasks) - 1

    asyncio.run(gather())


def test_calls_of_primitives_wait_for_room_too_and_leave_it_when_they_are_cancelled(backend_url, monkeypatch):
    async def ask():
        async with aio.connect(backend_url) as store:
            sent = []

            def start_call(*_args, **_options):
                sent.append(Future())
                return sent[-1]

            with monkeypatch.context() as patch:
                patch.setattr(store._of, "start_call", start_call)
                tasks = [asyncio.create_task(aio.Counter(store, f"c/{n}").value()) for n in range(MAX_IN_FLIGHT + 20)]
                await asyncio.sleep(0.2)
                assert len(sent) == MAX_IN_FLIGHT
                for task in (tasks[-1], tasks[0]):  # one that was not sent, and one that was
                    task.cancel()
                await asyncio.wait([tasks[-1], tasks[0]])
                while len(sent) == MAX_IN_FLIGHT:
                    await asyncio.sleep(0.01)
                assert len(sent) == MAX_IN_FLIGHT + 1, "the place of the one that was sent"
                while not all(task.done() for task in tasks):
                    for future in sent:
                        if not future.done():
                            future.set_result(None)
                    await asyncio.sleep(0.01)
                assert [task.cancelled() for task in tasks].count(True) == 2
                assert {task.result() for task in tasks[1:-1]} == {0}
                assert len(sent) == len(tasks) - 1
            assert await store.get("free") is None

    asyncio.run(ask())


def test_watches_and_mirrors_are_followed_and_end_with_their_store(backend_url):
    async def follow():
        store = await aio.connect(backend_url)
        batches = []

        async def read():
            async for batch in store.watch("w"):
                batches.append([change.key for change in batch])  # noqa: PERF401 - looked at meanwhile

        task = asyncio.create_task(read())
        while not batches:
            await asyncio.sleep(0.005)
        await store.put("w/a", b"1")
        async with await store.mirror("w") as mirror:
            await mirror.wait_until(lambda now: "w/b" in now or len(now) == 1, 20.0)
            assert mirror["w/a"].value == b"1"
            assert list(mirror) == ["w/a"]
            assert not hasattr(mirror, "__aiter__"), "its keys are there: nothing is awaited for them"
        while len(batches) < 2:
            await asyncio.sleep(0.005)
        await store.close()
        await asyncio.wait_for(task, 20.0)
        with pytest.raises(Closed):
            await store.get("w")
        return batches

    assert asyncio.run(follow()) == [[], ["w/a"]]


def test_a_transaction_awaits_its_function_and_is_tried_again(backend_url):
    async def add():
        async with aio.connect(backend_url) as store:

            async def more(tx):
                entry = await tx.get("n")
                await asyncio.sleep(0)
                await tx.put("n", str(int(entry.value) + 1 if entry else 1).encode())

            await asyncio.gather(*(store.transact(more, attempts=200) for _ in range(8)))
            return (await store.get("n")).value

    assert asyncio.run(add()) == b"8"


def test_a_loop_that_ends_with_what_is_open_leaves_its_sessions_to_the_store(backend_url, store):
    opened = []

    async def forget():
        mine = await aio.connect(backend_url)
        opened.append(mine)
        await aio.Lock(mine, "x").acquire()
        asyncio.create_task(aio.Lock(mine, "x").acquire())  # noqa: RUF006 - cancelled as the loop ends
        await asyncio.sleep(0.1)

    asyncio.run(forget())
    asyncio.run(opened[0].close())
    assert latchwork.primitives.Lock(store, "x").holder() is None


def test_operations_and_locks_take_a_session_of_the_same_store(backend_url):
    async def bind():
        async with aio.connect(backend_url) as store:
            session = await store.open_session(10.0)
            await store.commit([], [latchwork.Put("a", b"", session)])
            async with store.pipeline() as pipe:
                pipe.commit([], [latchwork.Create("b", b"", session)])
            await store.put("c", b"", session=session)
            owners = {entry.owner for entry in await store.list("")}
            await session.close()
            return owners == {session.id}, await store.list("")

    assert asyncio.run(bind()) == (True, [])


def test_what_ends_something_goes_on_to_its_end_when_it_is_cancelled():
    done = []

    async def end():
        await Pause(SYSTEM_CLOCK, Signal(), 0.05)
        done.append(True)

    async def cancelled(*, is_shielded):
        task = asyncio.create_task(run_in_task(end, is_shielded=is_shielded))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled(is_shielded=False))
    assert not done
    asyncio.run(cancelled(is_shielded=True))
    assert done == [True]


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
def test_what_was_opened_is_closed_if_its_task_was_cancelled_meanwhile(backend_url, monkeypatch, late):
    """Early: while its thread is at it; late: when it has come, and the task does not know yet."""

    async def open_and_cancel():
        async with aio.connect(backend_url) as store:
            core = store._of._core
            task = asyncio.create_task(store.open_session(20.0))
            await asyncio.sleep(0)
            if late:
                waits_for = task._fut_waiter
                waits_for.add_done_callback(lambda _: task.cancel())
                move_first(waits_for)
            else:
                task.cancel()
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(eventually, lambda: opened and not core._sessions, 20.0, "no session is left")

    def opens(*args):
        assert go.wait(20.0)
        opened.append(made(*args))
        return opened[-1]

    opened, go = [], threading.Event()
    made = latchwork.Store.open_session
    monkeypatch.setattr(latchwork.Store, "open_session", opens)
    asyncio.run(open_and_cancel())


def move_first(future):
    """Have the callback that was added last called first."""
    callbacks = [call for call, _ in future._callbacks]
    for call in callbacks[:-1]:
        future.remove_done_callback(call)
        future.add_done_callback(call)
