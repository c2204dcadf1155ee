"""Places for calls of one loop: each is had by one, in the order of asking, and none is lost by a cancellation."""

from __future__ import annotations

import asyncio
import gc

from latchwork.store.driving.loop import InFlightLimit


def in_loop(play):
    async def go():
        await play(asyncio.get_running_loop())

    asyncio.run(go())


async def enter(room, had, name):
    if not room.try_acquire():
        await room.acquire()
    had.append(name)


async def turns():
    for _ in range(5):
        await asyncio.sleep(0)


def test_who_finds_a_place_has_it_without_a_switch_of_tasks():
    async def play(loop):
        room, switched = InFlightLimit(loop, 2), []
        loop.call_soon(switched.append, True)
        await enter(room, [], "a")
        await enter(room, [], "b")
        assert not switched
        assert not room.try_acquire()

    in_loop(play)


def test_places_go_to_those_who_wait_in_their_order_and_nobody_overtakes():
    async def play(loop):
        room, had = InFlightLimit(loop, 1), []
        assert room.try_acquire()
        tasks = [asyncio.create_task(enter(room, had, name)) for name in "abc"]
        await turns()
        room.release()
        assert not room.try_acquire(), "the place is a's, which has not gone on yet"
        await turns()
        assert had == ["a"]
        room.release()
        room.release()
        await asyncio.gather(*tasks)
        assert had == ["a", "b", "c"]
        room.release()
        assert room.try_acquire()
        assert not room.try_acquire()

    in_loop(play)


def test_who_is_cancelled_while_waiting_leaves_nothing_behind():
    async def play(loop):
        room, had = InFlightLimit(loop, 1), []
        assert room.try_acquire()
        first, second = (asyncio.create_task(enter(room, had, name)) for name in "ab")
        await turns()
        first.cancel()
        await turns()
        room.release()
        await second
        assert had == ["b"]
        room.release()
        assert not room._waiting
        assert room.try_acquire()
        assert not room.try_acquire()

    in_loop(play)


def test_a_place_that_came_just_before_a_cancellation_goes_to_the_next():
    async def play(loop):
        room, had = InFlightLimit(loop, 1), []
        assert room.try_acquire()
        first, second = (asyncio.create_task(enter(room, had, name)) for name in "ab")
        await turns()
        room.release()  # the place is the first one's
        first.cancel()
        await second
        assert first.cancelled()
        assert had == ["b"]

    in_loop(play)


def test_a_wait_that_is_thrown_away_gets_no_place():
    async def play(loop):
        room = InFlightLimit(loop, 1)
        assert room.try_acquire()
        wait = room.acquire()
        wait.send(None)
        wait.close()
        room.release()
        assert room.try_acquire()

    in_loop(play)


def test_a_loop_that_was_closed_with_calls_that_wait_ends_in_silence(recwarn, caplog):
    loop = asyncio.new_event_loop()
    room = InFlightLimit(loop, 1)
    tasks = [loop.create_task(enter(room, [], name)) for name in "abc"]
    loop.run_until_complete(turns())
    loop.close()
    room.release()
    assert room.try_acquire()
    for task in tasks:
        task._log_destroy_pending = False
    del tasks, task
    gc.collect()
    assert not [each.message for each in recwarn if "never retrieved" in str(each.message)]
    assert not caplog.records
