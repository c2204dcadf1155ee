"""The worker loop: what it takes it runs, and each item comes to one end, whatever happens to nodes and stores."""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from contextlib import closing

import pytest

import latchwork
from latchwork.errors import Closed
from latchwork.primitives import WorkQueue
from latchwork.tasks import DEFAULT, Functions, Release, Retry, TaskContext, TaskTimeout, WorkerLoop, task
from latchwork.tasks.running.completion import ClaimedTask
from latchwork.testing.faults import Fault, FaultyStore
from latchwork.types import Op, Put

from . import examples
from .feeding import PAYLOADS, Node, System, end_process, node_process, put, result_of
from .test_children import eventually

PATIENCE_S = 45.0
#: For so long a claim goes on by itself to give an item back.
RELEASES_FOR_S = 30.0


def runs(node, *paths):
    """The node runs these: it has claimed them, and none waits for the thread of its slot."""
    eventually(lambda: node.worker_loop.running() == list(paths) and not node.slots._waiting and node.slots._runs)
    time.sleep(0.1)


def is_tidy(store):
    """An idle node looks once more, and takes empty shelves out of the index."""
    return [entry for entry in store.list("work/partitions", recursive=True) if entry.owner is None] == []


def is_empty(store):
    """Nothing is left, but perhaps an empty shelf in the index, which the next look would take out."""
    assert WorkQueue(store, "work").clean_index("any")
    return [entry.key for entry in store.list("work", recursive=True) if entry.owner is None] == []


def test_items_run_and_come_to_one_end_each(store):
    for n in range(30):
        put(store, examples.square, n, id=f"i{n}", shelf=f"s{n % 3}")
    with Node(store) as node:
        assert [result_of(store, f"i{n}").result(PAYLOADS) for n in range(30)] == [n * n for n in range(30)]
        eventually(lambda: node.worker_loop.running() == [])
        assert node.worker_loop.stats() == {"taken": 30, "done": 30}
        eventually(lambda: is_tidy(store))
    assert is_empty(store)


def test_an_item_that_comes_later_wakes_an_idle_node(store, connect):
    with Node(store, search_s=300.0):
        time.sleep(0.3)
        put(connect(), examples.square, 3, id="late")
        assert result_of(store, "late").result(PAYLOADS) == 9


def test_an_idle_node_writes_nothing(store, connect):
    with Node(store, search_s=0.05):
        eventually(lambda: store.list("work", recursive=True))
        time.sleep(0.3)
        before = [(entry.key, entry.version) for entry in connect().list("", recursive=True)]
        time.sleep(0.5)
        assert [(entry.key, entry.version) for entry in connect().list("", recursive=True)] == before


def test_a_full_node_leaves_items_to_others(store, connect):
    with Node(store, slots=1, stop_grace_s=0.1) as busy:
        put(store, examples.waits, id="long")
        runs(busy, "any/s1/long")
        put(store, examples.square, 2, id="next")
        time.sleep(0.3)
        assert store.get("results/next") is None
        assert (busy.worker_loop.running(), busy.worker_loop.stats()) == (["any/s1/long"], {"taken": 1})
        with Node(connect(), name="n2"):
            assert result_of(store, "next").result(PAYLOADS) == 4


def test_a_task_that_fails_is_tried_again_after_a_pause_without_a_slot(store):
    tries = []

    @task(name="flaky")
    def flaky() -> int:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise OSError("not yet")
        return len(tries)

    put(store, flaky, id="flaky")
    with Node(store, System(retry=Retry(attempts=5, initial_s=0.3, jitter=0.0)), slots=1):
        eventually(lambda: len(tries) == 1)
        put(store, examples.square, 2, id="other")
        assert result_of(store, "other").result(PAYLOADS) == 4
        assert len(tries) == 1, "the slot is free in the pause"
        assert result_of(store, "flaky").result(PAYLOADS) == 3
    assert tries[1] - tries[0] >= 0.3


def test_a_failure_for_good_is_an_end_like_any(store):
    put(store, examples.fails, "x", id="bad")
    with Node(store), pytest.raises(KeyError, match="x"):
        result_of(store, "bad").result(PAYLOADS)


def test_a_task_may_be_buried_with_its_result(store):
    put(store, examples.fails, "bury me", id="bad")
    with Node(store):
        assert not result_of(store, "bad").is_success
        eventually(lambda: [letter.id for letter in WorkQueue(store, "work").dead_letters()] == ["bad"])


def test_a_task_beyond_its_time_is_stopped(store):
    put(store, examples.is_deaf, 2.0, id="deaf", timeout_s=0.2)
    with Node(store, stop_grace_s=0.2), pytest.raises(TaskTimeout):
        result_of(store, "deaf").result(PAYLOADS)


def test_an_item_that_needs_no_run_ends_at_once(store):
    put(store, examples.square, 1, id="quick", ends=True)
    with Node(store):
        eventually(lambda: store.get("results/quick") is not None)
    assert store.get("results/quick").value == b"at once"


def test_a_task_that_refuses_to_run_here_is_left_to_another(store, connect):
    where = []

    @task(name="picky")
    def picky() -> None:
        from latchwork.tasks import current_task

        where.append(current_task().node_id)
        if current_task().node_id == "n1":
            current_task().refuse("not on n1")

    put(store, picky, id="picky")
    with Node(store) as first:
        eventually(lambda: first.worker_loop.stats().get("released") == 1)
        item = WorkQueue(store, "work").find("any", "s1", "picky")
        assert (item.attempts, "not on n1" in item.why) == (0, True)
        time.sleep(0.3)
        assert where == ["n1"], "it is not offered to the same node again at once"
        with Node(connect(), name="n2"):
            result_of(store, "picky")
    assert where == ["n1", "n2"]


def test_a_function_that_this_node_does_not_know_is_left_to_another(store):
    @task(name="elsewhere")
    def elsewhere() -> None: ...

    put(store, elsewhere, id="x")
    mine = Functions()
    node = Node(store)
    node.slots._functions = mine
    with node:
        eventually(lambda: node.worker_loop.stats().get("released") == 1)
        assert WorkQueue(store, "work").find("any", "s1", "x").attempts == 0


def test_an_item_whose_extra_checks_do_not_hold_is_told_and_stays(store):
    put(store, examples.square, 1, id="orphan", owner="gone")
    put(store, examples.square, 3, id="fine")
    with Node(store) as node:
        assert result_of(store, "fine").result(PAYLOADS) == 9
        eventually(lambda: "orphan" in node.system.refusals)
        assert store.get("results/orphan") is None
        store.put("owners/gone", b"")
        node.worker_loop.request_search()
        assert result_of(store, "orphan").result(PAYLOADS) == 1


def test_an_item_that_is_not_accepted_stays(store):
    put(store, examples.square, 1, id="no")
    with Node(store, System(accepts=lambda item: item.id != "no")) as node:
        put(store, examples.square, 2, id="yes")
        result_of(store, "yes")
        assert node.worker_loop.stats()["taken"] == 1


def test_a_record_that_nobody_of_us_wrote_is_one_dead_letter_and_no_more(store):
    WorkQueue(store, "work").put("any", "s0", "junk", b"\xff no json")
    put(store, examples.square, 2, id="fine")
    put(store, examples.square, 2, id="broken", broken=True)
    with Node(store, max_attempts=2) as node:
        node.system.build_claim_ops = lambda item: ((), ())
        assert result_of(store, "fine").result(PAYLOADS) == 4
        eventually(lambda: {letter.id for letter in WorkQueue(store, "work").dead_letters()} == {"junk", "broken"})


@pytest.mark.parametrize("hook", ["should_claim", "build_claim_ops", "on_claim_refused"])
def test_a_hook_that_raises_for_one_item_keeps_the_node_from_no_other(store, hook):
    put(store, examples.square, 1, id="bad", shelf="s0", owner="gone")
    put(store, examples.square, 2, id="fine")

    class Raising(System):
        pass

    def raises(self, item):
        if item.id == "bad":
            raise SystemExit(1)
        return getattr(System, hook)(self, item)

    setattr(Raising, hook, raises)
    with Node(store, Raising()):
        assert result_of(store, "fine").result(PAYLOADS) == 4
        put(store, examples.square, 3, id="after")
        assert result_of(store, "after").result(PAYLOADS) == 9
    assert store.get("results/bad") is None


def test_hostile_payloads_harm_only_their_own_task(store):
    hostile = [
        b"",
        b"plain:" + b"\xdd\xff\xff\xff\xff",
        b"plain:" + b"\x91" * 10_000,
        b"pickle:cos\nsystem\n(S'true'\ntR.",
        b"junk",
    ]
    name = DEFAULT.resolve(examples.square).name
    for number, payload in enumerate(hostile):
        body = {"fn": name, "args": payload.hex(), "owner": ""}
        WorkQueue(store, "work").put("any", "s1", f"evil{number}", json.dumps(body).encode())
    WorkQueue(store, "work").put("any", "s1", "os", json.dumps({"fn": "os:abort", "args": "", "owner": ""}).encode())
    put(store, examples.square, 5, id="fine")
    with Node(store) as node:
        assert result_of(store, "fine").result(PAYLOADS) == 25
        for number in range(len(hostile)):
            assert result_of(store, f"evil{number}").failure.is_final
        eventually(lambda: node.worker_loop.stats().get("released") == 1)  # unknown here: os:abort
        put(store, examples.square, 6, id="after")
        assert result_of(store, "after").result(PAYLOADS) == 36


# Ends


def test_close_gives_back_what_does_not_end_and_it_is_free_at_once(store, connect):
    put(store, examples.is_deaf, 1.5, id="deaf")
    put(store, examples.square, 1, id="later", lane="none")
    node = Node(store, stop_grace_s=0.2)
    with node:
        runs(node, "any/s1/deaf")
    assert node.worker_loop.running() == []
    item = WorkQueue(connect(), "work").find("any", "s1", "deaf")
    assert (item.attempts, item.why) == (0, "its node closed")
    assert WorkQueue(connect(), "work").claims() == {}
    with pytest.raises(Closed, match="create another one"):
        node.worker_loop.start()


def test_close_ends_pauses_of_retries(store):
    put(store, examples.fails, "x", id="bad")
    with Node(store, System(retry=Retry(attempts=9, initial_s=300.0, max_s=300.0))) as node:
        eventually(lambda: node.system.finished == ["bad"])
        assert WorkQueue(store, "work").find("any", "s1", "bad").attempts == 1
    assert WorkQueue(store, "work").claims() == {}


def test_a_pause_that_begins_while_the_node_closes_ends_at_once(store):
    """Otherwise the close would wait for it: it was decided on before, and was not there when all pauses were ended."""
    with Node(store, System(retry=Retry(attempts=2, initial_s=300.0, max_s=300.0))) as node:
        endings = node.worker_loop._finisher
        later = endings._pauses.schedule

        def while_it_closes(after_s, call):
            endings.skip_pauses()
            return later(after_s, call)

        endings._pauses.schedule = while_it_closes
        put(store, examples.fails, "x", id="bad")
        eventually(lambda: node.worker_loop.stats().get("released"))


def test_drain_lets_tasks_end_and_takes_no_more(store):
    put(store, examples.waits, id="long")
    with Node(store) as node:
        runs(node, "any/s1/long")
        assert not node.worker_loop.drain(0.3)
        put(store, examples.square, 1, id="more")
        assert node.worker_loop.stop_task("any/s1/long")
        assert node.worker_loop.drain(PATIENCE_S)
        assert result_of(store, "long").result(PAYLOADS) is True
        assert store.get("results/more") is None
        assert not node.worker_loop.stop_task("any/s1/long")


def test_a_task_whose_session_is_lost_is_told_to_stop_and_its_outcome_is_dropped(store, connect):
    session = store.open_session(5)
    begun, stopped = threading.Event(), threading.Event()

    @task(name="listens")
    def listens() -> None:
        from latchwork.tasks import current_task

        begun.set()
        current_task().wait_for_stop(PATIENCE_S)
        stopped.set()

    put(store, listens, id="x")
    with Node(store, session=session) as node:
        assert begun.wait(PATIENCE_S)
        session.close()
        assert stopped.wait(PATIENCE_S)
        eventually(lambda: node.system.losses == ["x"])
        assert node.system.finished == []
    assert store.get("results/x") is None
    assert WorkQueue(connect(), "work").find("any", "s1", "x") is not None


def test_nothing_begins_whose_claim_is_over_though_nobody_has_said_so_yet(store):
    """As in a process that was frozen, and whose slots wake before what watches the claims."""
    begun = []

    @task(name="begins-late")
    def begins_late() -> None:
        begun.append(1)

    class Frozen(System):
        def prepare_run(self, claim):
            claim.remaining_s = lambda: 0.0
            return super().prepare_run(claim)

    with Node(store, Frozen()) as node:
        node.worker_loop._watchdog.schedule_check = node.worker_loop._prefetched._check_at = lambda _moment: None
        put(store, begins_late, id="x")
        eventually(lambda: node.system.losses)
    assert begun == []


def test_a_lost_claim_tells_its_run_to_stop():
    task = ClaimedTask(claim=None, path="", context=TaskContext("t"))
    task.mark_lost()
    assert (task.is_lost, task.context.should_stop, task.is_running) == (True, True, False)


def test_a_removed_items_result_is_never_written(store, connect):
    go_on = threading.Event()

    @task(name="slow")
    def slow() -> None:
        go_on.wait(PATIENCE_S)

    put(store, slow, id="x")
    with Node(store) as node:
        eventually(node.worker_loop.running)
        other = WorkQueue(connect(), "work")
        assert other.remove(other.find("any", "s1", "x"), even_if_claimed=True)
        go_on.set()
        eventually(lambda: node.worker_loop.stats().get("lost") == 1)
    assert store.get("results/x") is None


def test_an_end_whose_own_checks_fail_is_decided_anew(store):
    """Somebody else has written the result: the system sees that when it is asked again."""
    put(store, examples.square, 2, id="x")
    store.put("results/x", b"theirs")

    class Again(System):
        def handle_outcome(self, claim, outcome):
            from latchwork.tasks import Done

            return super().handle_outcome(claim, outcome) if not self.finished else Done()

    with Node(store, Again()) as node:
        eventually(lambda: node.worker_loop.stats().get("done") == 1)
        eventually(lambda: is_tidy(store))
    assert store.get("results/x").value == b"theirs"
    assert is_empty(store)


def test_an_end_that_can_never_be_written_gives_the_item_back_and_buries_it_in_the_end(store):
    put(store, examples.square, 2, id="x")
    from latchwork.tasks import Done
    from latchwork.types import Put

    class Broken(System):
        def handle_outcome(self, claim, outcome):
            return Done(ops=(Put("not a key!", b""),))

    with Node(store, Broken(), max_attempts=1):
        eventually(lambda: [letter.id for letter in WorkQueue(store, "work").dead_letters()] == ["x"])


@pytest.mark.parametrize("fault", ["fail", "cut_after", "land_late"])
def test_trouble_with_the_store_changes_no_end(connect, fault):
    seen = connect()
    with FaultyStore(connect()) as store:
        for n in range(10):
            put(seen, examples.square, n, id=f"i{n}")
        store.add(Fault(fault, op="commit", key="results/*", times=4, delay_s=0.3))
        with Node(store) as node:
            assert [result_of(seen, f"i{n}").result(PAYLOADS) for n in range(10)] == [n * n for n in range(10)]
            eventually(lambda: node.worker_loop.running() == [])
            assert node.worker_loop.stats()["done"] == 10
            assert any(call.fault is not None for call in store.calls)
            eventually(lambda: is_tidy(seen))
    assert is_empty(seen)


class ReleasesFirst(System):
    """Releases each item once, with the writes that the test names, and completes it the next time."""

    def __init__(self):
        super().__init__()
        self.ops: dict[str, tuple[Op, ...]] = {}
        self.may_release = threading.Event()

    def handle_outcome(self, claim, outcome):
        if claim.item.id in self.finished:
            return super().handle_outcome(claim, outcome)
        self.finished.append(claim.item.id)
        assert self.may_release.wait(PATIENCE_S)
        return Release("later", count=False)

    def build_settlement_ops(self, claim):
        return self.ops.get(claim.item.id, ())


def items_that_failed(caplog):
    """Return the IDs of the items of which a warning says that they could not be completed."""
    found = [each for each in caplog.records if "could not be completed, retrying" in each.getMessage()]
    return sorted(each.args[0].rpartition("/")[2] for each in found if each.levelno == logging.WARNING)


def test_each_item_that_cannot_be_released_is_one_warning(store, caplog):
    caplog.set_level(logging.INFO, "latchwork.tasks")
    system = ReleasesFirst()
    system.may_release.set()
    for name in ("x", "y", "z"):
        put(store, examples.square, 2, id=name)
    for name in ("x", "y"):
        system.ops[name] = (Put("not a key!", b""),)
    with Node(store, system):
        assert result_of(store, "z").result(PAYLOADS) == 4  # another item ends meanwhile
        eventually(lambda: items_that_failed(caplog) == ["x", "y"], 10.0)
        assert "can be completed again" not in caplog.text
        system.ops.clear()
        for name in ("x", "y"):
            assert result_of(store, name).result(PAYLOADS) == 4
    assert items_that_failed(caplog) == ["x", "y"]
    assert caplog.text.count("can be completed again") == 1


def test_a_store_that_is_away_is_one_warning_for_all_items_that_cannot_be_released(connect, caplog):
    caplog.set_level(logging.INFO, "latchwork.tasks")
    seen, names = connect(), ["w", "x", "y", "z"]
    with FaultyStore(connect()) as store:
        for name in names:
            put(seen, examples.square, 2, id=name)
        with Node(store, ReleasesFirst(), slots=4) as node:
            eventually(lambda: len(node.system.finished) == len(names))
            store.cut_off()
            node.system.may_release.set()
            eventually(lambda: items_that_failed(caplog))
            time.sleep(1.0)
            store.reconnect()
            assert [result_of(seen, name).result(PAYLOADS) for name in names] == [4] * 4
    assert len(items_that_failed(caplog)) == 1
    assert caplog.text.count("can be completed again") == 1


def test_two_nodes_share_the_work_and_no_item_ends_twice(store, connect):
    for n in range(60):
        put(store, examples.square, n, id=f"i{n}", shelf=f"s{n % 2}")
    with Node(store) as one, Node(connect(), name="n2") as two:
        assert [result_of(store, f"i{n}").result(PAYLOADS) for n in range(60)] == [n * n for n in range(60)]
        eventually(lambda: one.worker_loop.running() == two.worker_loop.running() == [])
        assert sum(each.worker_loop.stats().get("done", 0) for each in (one, two)) == 60


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_items_of_a_node_that_dies_or_freezes_run_elsewhere(backend_url, store, connect, how):
    if backend_url.startswith("memory"):
        pytest.skip("needs a second process")
    put(store, examples.waits, id="long")
    node = node_process(backend_url, 2)
    try:
        eventually(lambda: WorkQueue(store, "work").claims())
        time.sleep(0.3)  # it runs there
        assert [claim.label for claim in WorkQueue(store, "work").claims().values()] == ["n1"]
        node.send_signal(how)
        with Node(connect(), name="n2") as other:
            runs(other, "any/s1/long")
            if how == signal.SIGSTOP:
                node.send_signal(signal.SIGCONT)
                time.sleep(1)
                assert store.get("results/long") is None, "the one that was frozen ends nothing"
            other.worker_loop.stop_task("any/s1/long")
            assert result_of(store, "long").result(PAYLOADS) is True
            assert WorkQueue(store, "work").claims() == {}
    finally:
        end_process(node)


@pytest.mark.parametrize("options", [{"batch": 0}, {"search_s": 0}, {"margin_s": -1}])
def test_a_worker_loop_that_cannot_be_is_refused(store, options):
    with Node(store) as node, pytest.raises(ValueError, match="must be"):
        WorkerLoop(WorkQueue(store, "w"), node.slots, node.commits, node.system, store=store, **options)


def test_a_worker_loop_whose_store_is_closed_ends(backend_url):
    store = latchwork.connect(backend_url)
    with closing(Node(store)) as node:
        store.close()
        node.worker_loop.request_search()
        eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("latchwork-worker-loop-n1")])


def test_close_ends_though_the_store_is_away(connect):
    with FaultyStore(connect()) as store:
        put(store, examples.waits, id="long")
        node = Node(store, stop_grace_s=0.2)
        with node.commits, node.slots:
            eventually(node.worker_loop.running)
            store.add(Fault("fail", op="commit", key="work/*", times=None))
            begun = time.monotonic()
            assert node.worker_loop.close(0.5) in ([], ["any/s1/long"])
            node.commits.close(0.2)
            assert time.monotonic() - begun < PATIENCE_S


def test_close_tries_once_to_give_back_what_it_has_while_the_store_is_away(connect):
    with FaultyStore(connect()) as store:
        put(store, examples.waits, id="broken", broken=True)
        with Node(store) as node:
            eventually(node.worker_loop.running)
            store.add(Fault("fail", op="commit", key="work/*", times=None))
            begun = time.monotonic()
            assert node.worker_loop.close(0.5) in ([], ["any/s1/broken"])
            assert time.monotonic() - begun < RELEASES_FOR_S / 2


def test_what_cannot_be_given_back_holds_up_nothing_else_of_its_node(connect):
    with FaultyStore(connect()) as store:
        for name in ("stuck", "free"):
            put(store, examples.square, 1, id=name, broken=True)
        with Node(store) as node:
            eventually(lambda: len(node.worker_loop.running()) == 2)
            store.add(Fault("fail", op="commit", key="work/*/stuck", times=None))
            begun = time.monotonic()
            eventually(lambda: node.worker_loop.stats().get("released"))
            assert node.worker_loop.close(0.5) == ["any/s1/stuck"]
            assert time.monotonic() - begun < RELEASES_FOR_S / 2
