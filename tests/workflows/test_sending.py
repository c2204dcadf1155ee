"""What a master does in the store, step by step: each under its fence, each done again without harm."""

import pytest

from latchwork.types import At
from latchwork_workflows.errors import NotOwner
from latchwork_workflows.keys import ItemName
from latchwork_workflows.master.dispatcher import Dispatcher, ItemPosition, TaskItem
from workflows.hands import Hand


@pytest.fixture
def owner(stage):
    store = stage.store
    lock = store.create("lock", b"")
    made = Dispatcher(store, stage.keys, 0, store.fence(lock.created, At(lock)))
    yield made
    made.close()


def parcel(task, n=1, value=b"{}", body=None):
    return TaskItem(ItemPosition("default", "s1", ItemName(task, n, 0)), value, body)


def free(stage):
    hand = Hand(stage.store, stage.keys)
    names = sorted(hand.take_all())
    hand.die()
    return [ItemName.parse(each.rpartition("/")[2]).attempt_key for each in names]


def test_items_that_are_there_keep_no_others_from_being_put(owner, stage):
    assert owner.put_items([parcel(1), parcel(2)]) == ["1.1", "2.1"]
    assert sorted(owner.put_items([parcel(2), parcel(3)])) == ["2.1", "3.1"]
    assert free(stage) == ["1.1", "2.1", "3.1"]


def test_an_item_whose_result_is_there_is_not_put(owner, stage):
    stage.store.put(stage.keys.result_key(0, "1.1"), b"{}")
    assert owner.put_items([parcel(1), parcel(2)]) == ["2.1"]
    assert free(stage) == ["2.1"]


def test_many_items_are_put_in_batches_that_a_store_takes(owner, stage):
    parcels = [parcel(each, body=b"x" * 200_000 if each % 50 == 0 else None) for each in range(1, 130)]
    assert len(owner.put_items(parcels)) == 129
    assert len(stage.items()) == 129
    assert len(stage.store.list(stage.keys.every_data)) == 2


def test_who_is_owner_no_more_changes_nothing(owner, stage):
    owner.put_items([parcel(1)])
    stage.store.put("lock", b"another's")
    before = stage.left()
    place = parcel(1).place
    for do in (
        lambda: owner.put_items([parcel(2)]),
        lambda: owner.withdraw_items({"1.1": place}),
        lambda: owner.request_cancels({"1.1": place}),
        lambda: owner.delete_results(["1.1"], [], 1),
        owner.check_owner,
    ):
        with pytest.raises(NotOwner):
            do()
    assert stage.left() == before


def test_an_item_that_somebody_has_is_not_taken_back(owner, stage):
    owner.put_items([parcel(1), parcel(2)])
    hand = stage.hand()
    (claim,) = hand.backlog.try_take(["default"], extra=hand._extra)
    places = {each: parcel(int(each[0])).place for each in ("1.1", "2.1", "9.1")}
    assert owner.withdraw_items(places) == ["2.1", "9.1"]
    assert owner.withdraw_items(places) == ["2.1", "9.1"]  # once more: nothing is there, nothing changes
    hand.end(claim, cache_key=None)
    assert owner.withdraw_items(places) == ["2.1", "9.1"]  # it has ended: it was seen by a worker


def test_what_is_cancelled_is_taken_by_nobody_and_what_has_ended_is_not_cancelled(owner, stage):
    owner.put_items([parcel(1)])
    place = parcel(1).place
    assert owner.request_cancels({"1.1": place, "2.1": parcel(2).place}) == ["1.1"]
    assert free(stage) == []
    assert owner.withdraw_items({"1.1": place}) == ["1.1"]
    assert stage.store.get(stage.keys.cancel_key("1.1")) is None


def test_a_worker_that_has_an_attempt_is_not_dead_one_that_is_gone_is_and_one_that_left_is_not(owner, stage):
    owner.put_items([parcel(1), parcel(2)])
    first, second = stage.hand("first"), stage.hand("second")
    (dies,) = first.backlog.try_take(["default"], extra=first._extra)
    (leaves,) = second.backlog.try_take(["default"], extra=second._extra)
    places = {
        ItemName.parse(each.item.id).attempt_key: parcel(ItemName.parse(each.item.id).task).place
        for each in (dies, leaves)
    }
    assert [owner.did_worker_die(each) for each in places.values()] == [None, None]
    stage.lose(first)
    second.release(leaves)
    assert [owner.did_worker_die(each) for each in places.values()] == [True, False]
    assert owner.did_worker_die(parcel(9).place) is True


def test_results_go_with_what_was_cancelled_of_them_and_leave_a_mark(owner, stage):
    for each in range(1, 121):
        stage.store.put(stage.keys.result_key(0, f"{each}.1"), b"{}")
    stage.store.put(stage.keys.cancel_key("1.1"), b"")
    owner.delete_results([f"{each}.1" for each in range(1, 121)], [], 17)
    assert stage.left() == ["lock"] or stage.left() == []
    assert stage.store.get(stage.keys.restore_mark_key(0)).value == b"17"
