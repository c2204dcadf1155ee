"""Joining and leaving, disturbed: signals and closes in the middle of it, a cleanup at the same moment, stray keys."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid

import pytest

from latchwork import Closed, Conflict, Exists, NodeIdInUse, SessionLost, connect
from latchwork.jobs import Job, JobManager, WorkPoolFailed, inspect
from latchwork.jobs.manager.leadership import Leadership
from latchwork.jobs.manager.strategies import ManagerOptions, Strategies
from latchwork.jobs.node.pools import PoolReader
from latchwork.jobs.node.registration import Registration
from latchwork.jobs.stored import chunked_set, cluster_store, keys
from latchwork.jobs.stored.caches import PoolCache
from latchwork.jobs.stored.nodes import MemberOptions, NodeRecord
from latchwork.store import Store
from patience import eventually
from signalling import signals_later


@pytest.fixture
def memory():
    with connect(f"memory://{uuid.uuid4().hex}") as store:
        yield cluster_store(store)


def idle(job_id="report", pool=("a",)):
    return Job(job_id, work_pool=pool, run=lambda _context: None)


def test_a_cleanup_spares_the_chunks_of_a_node_that_registers_at_this_moment(memory, monkeypatch):
    """The node joins after the leader looked who lives, and has written its chunks but not yet its manifest."""
    items = [f"item-{number:05d}" for number in range(3000)]
    session = memory.open_session(10.0)
    ticket = memory.create(f"{keys.LEADER}/t", b"", session=session)
    newcomer = NodeRecord.of_this_process(MemberOptions("w", 10), since=0, ttl_s=10)
    registration = Registration(memory, memory.open_session(10.0), newcomer, ["report"])
    written, go_on = threading.Event(), threading.Event()
    write_chunks = chunked_set.write_chunks

    def stop_before_the_manifest(*args):
        write_chunks(*args)
        written.set()
        go_on.wait(10)

    def register():
        registration.join(1.0, threading.Event())
        registration.store_available_jobs()
        registration.write_pool("report", tuple(items), None)
        registration.mark_ready()

    thread = threading.Thread(target=register)

    class Leaders:
        """The leader's store: the newcomer comes right after it has listed who lives."""

        def __getattr__(self, name):
            return getattr(memory, name)

        def list(self, prefix, **options):
            found = memory.list(prefix, **options)
            if prefix == keys.ALIVE:
                monkeypatch.setattr(chunked_set, "write_chunks", stop_before_the_manifest)
                thread.start()
                assert written.wait(10)
            return found

    leader = NodeRecord.of_this_process(MemberOptions("boss", 10), since=0, ttl_s=10)
    fence = memory.fence(ticket.created, Exists(ticket.key))
    options = ManagerOptions(strategies=Strategies(), sweep=lambda: None)
    with memory.mirror(keys.ALIVE) as alive, memory.mirror(keys.WORK_POOL) as pools:
        known = PoolCache(memory, pools)
        monkeypatch.setattr(
            known, "list_chunk_keys", lambda: {"report": [e.key for e in memory.list(keys.work_pool_key("report"))]}
        )
        with pytest.raises(Conflict):
            Leadership(
                Leaders(), leader, fence, alive=alive, pools=known, nodes=None, restarts=None, options=options
            ).delete_unused_pools()
    go_on.set()
    thread.join(10)
    assert len(chunked_set.read_set(memory, keys.work_pool_key("report")).chunked.items) == 3000


def test_a_node_closed_while_it_registers_anew_leaves_nothing_behind(memory, cluster, monkeypatch):
    node = cluster.node(memory, "n1", [idle("x"), idle("y")], session_ttl_s=1.0, close_timeout_s=1.0)
    begun, go_on = threading.Event(), threading.Event()
    write_pool = Registration.write_pool

    def slow(self, *given):
        begun.set()
        go_on.wait(20)
        return write_pool(self, *given)

    monkeypatch.setattr(Registration, "write_pool", slow)
    node._membership.session.mark_ended()
    assert begun.wait(10)
    closing = threading.Thread(target=node.close)
    closing.start()
    closing.join(3.0)
    go_on.set()
    closing.join(20)
    assert node.state == "closed"
    assert memory.list(keys.ALIVE) == []
    assert memory.list(keys.LEADER) == []
    left = [
        thread.name for thread in threading.enumerate() if thread.name.endswith("-n1") and "pools" not in thread.name
    ]
    assert left == []


def test_a_node_that_hangs_in_a_work_pool_can_be_closed_and_does_not_join_later(memory):
    release = threading.Event()

    def pool():
        release.wait(20)
        return ["a"]

    node = JobManager(memory, "n1", idle(pool=pool), close_timeout_s=0.5)
    errors = []

    def start():
        try:
            node.start()
        except Closed as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    while node.state != "starting":
        time.sleep(0.01)
    time.sleep(0.2)
    began = time.monotonic()
    node.close()
    assert time.monotonic() - began < 5.0
    release.set()
    thread.join(10)
    assert len(errors) == 1
    assert memory.list(keys.ALIVE) == []


def test_a_start_whose_registration_is_removed_says_so_and_leaves_nothing(store, monkeypatch):
    """The node is suspended between two steps of its start until its session has ended."""
    write_pool = Registration.write_pool

    def suspended(self, *given):
        store.delete(keys.alive_key("n1"))
        return write_pool(self, *given)

    monkeypatch.setattr(Registration, "write_pool", suspended)
    with pytest.raises(SessionLost, match="registration of node n1 ended"):
        JobManager(store, "n1", idle()).start()
    monkeypatch.undo()
    assert store.list(keys.ALIVE) == store.list(keys.WORK_POOL) == []
    with JobManager(store, "n1", idle()):
        pass


@pytest.mark.parametrize("before", [("a",), None], ids=["changed", "created"])
def test_a_pool_that_another_node_stores_after_it_was_read_for_a_registration_is_kept(memory, before):
    nodes = []
    for name in ("n1", "n2"):
        member = NodeRecord.of_this_process(MemberOptions(name, 5.0), since=0, ttl_s=5.0)
        nodes.append(Registration(memory, memory.open_session(5.0), member, ["report"]))
        assert nodes[-1].try_join() is None
    if before is not None:
        nodes[0].write_pool("report", before, None)
    found = memory.get(keys.work_pool_key("report"))
    seen = None if found is None else found.version
    assert nodes[1].write_pool("report", ("later",), seen).is_ours
    assert not nodes[0].write_pool("report", ("earlier",), seen, [found]).is_ours
    assert inspect(memory).pools == {"report": ("later",)}


def test_a_second_node_with_an_id_does_not_touch_the_jobs_of_the_first(memory):
    """The jobs are written with the node's key, so a start that finds another one writes neither."""
    made = []
    for job in ("report", "mail"):
        member = NodeRecord.of_this_process(MemberOptions("n1", 5.0), since=0, ttl_s=5.0)
        made.append(Registration(memory, memory.open_session(5.0), member, [job]))
    assert made[0].try_join() is None
    guard = memory.get(keys.GUARD_WORKER)
    assert made[1].try_join() is not None
    assert memory.children(keys.available_job_key("n1")) == ["report"]
    assert memory.get(keys.GUARD_WORKER) == guard


def test_a_node_that_returns_with_other_jobs_removes_those_of_its_earlier_start(memory):
    for job in ("report", "mail"):
        session = memory.open_session(5.0)
        member = NodeRecord.of_this_process(MemberOptions("n1", 5.0), since=0, ttl_s=5.0)
        registration = Registration(memory, session, member, [job])
        assert registration.try_join() is None
        registration.store_available_jobs()
        session.close()  # as if it had crashed
    assert memory.children(keys.available_job_key("n1")) == ["mail"]


def test_a_node_with_more_jobs_than_a_transaction_holds_registers_and_leaves_all(memory):
    jobs = [f"job-{number:03d}" for number in range(250)]
    member = NodeRecord.of_this_process(MemberOptions("n1", 5.0), since=0, ttl_s=5.0)
    registration = Registration(memory, memory.open_session(5.0), member, jobs)
    assert registration.try_join() is None
    registration.store_available_jobs()
    assert memory.children(keys.available_job_key("n1")) == jobs
    registration.leave()
    assert memory.children(keys.available_job_key("n1")) == []


def test_pools_of_jobs_that_the_first_transaction_did_not_hold_are_read_after_these_jobs_are_stored(
    memory, cluster, monkeypatch
):
    """Until then, a cleanup may delete them, because no running node can run these jobs."""
    cluster.node(memory, "stays", [])
    jobs = [idle(f"job-{number:03d}") for number in range(100)]
    cluster.node(memory, "n1", jobs).close()
    late = keys.work_pool_key("job-099")
    assert memory.get(late) is not None
    store_available_jobs, start_reading = Registration.store_available_jobs, PoolReader.start_reading_stored

    def read_at_once(pools):
        stored = start_reading(pools)
        stored.result()
        return stored

    def after_a_cleanup(registration):
        memory.delete(late)
        return store_available_jobs(registration)

    monkeypatch.setattr(PoolReader, "start_reading_stored", read_at_once)
    monkeypatch.setattr(Registration, "store_available_jobs", after_a_cleanup)
    cluster.node(memory, "n1", jobs)
    assert memory.get(late) is not None


def test_a_start_whose_work_pool_cannot_be_read_leaves_no_session(memory, monkeypatch):
    """The session is opened before the pool is read, so that the node waits for neither."""
    opened = []
    open_session = Store.open_session
    monkeypatch.setattr(Store, "open_session", lambda *given: opened.append(open_session(*given)) or opened[-1])

    def pool():
        raise OSError("no database")

    with pytest.raises(WorkPoolFailed):
        JobManager(memory, "n1", idle(pool=pool)).start()
    assert [session.state for session in opened] == ["closed"]


def test_a_session_that_ends_while_a_slow_work_pool_is_read_is_replaced(memory, cluster):
    def pool():
        if not ended:
            ended.append(cluster.nodes[0]._membership.get_newest_session())
            ended[0].mark_ended()
        return ["a"]

    ended = []
    node = cluster.node(memory, "n1", idle(pool=pool))
    assert ended[0].state == "lost"
    assert node.health().ok


def test_a_registration_writes_nothing_more_after_the_node_has_left(memory):
    """A thread of the node that outlived its close would write keys that the cleanup has not listed."""
    member = NodeRecord.of_this_process(MemberOptions("n1", 5.0), since=0, ttl_s=5.0)
    registration = Registration(memory, memory.open_session(5.0), member, ["report"])
    assert registration.try_join() is None
    registration.leave()
    with pytest.raises(Closed, match="node n1 has left"):
        registration.write_pool("report", ("a",), None)
    assert memory.list(keys.WORK_POOL, recursive=True) == []


def test_a_registration_writes_nothing_while_the_node_leaves_in_two_transactions(memory, monkeypatch):
    member = NodeRecord.of_this_process(MemberOptions("n1", 5.0), since=0, ttl_s=5.0)
    registration = Registration(memory, memory.open_session(5.0), member, [f"j{n:03}" for n in range(150)])
    assert registration.try_join() is None
    registration.store_available_jobs()
    commit, refused = memory.commit, []

    def write_pool_first(*parts):
        if not refused and memory.get(keys.alive_key("n1")).value != member.to_bytes():
            refused.append(parts)
            with pytest.raises(Closed):
                registration.write_pool("j000", ("a",), None)
        return commit(*parts)

    monkeypatch.setattr(memory, "commit", write_pool_first)
    registration.leave()
    assert len(refused) == 1
    assert memory.list(keys.WORKERS, recursive=True) == memory.list(keys.WORK_POOL, recursive=True) == []


def test_an_id_is_waited_for_as_long_as_its_holders_session_can_last(memory):
    holder = memory.open_session(3.0)
    member = NodeRecord.of_this_process(MemberOptions("n1", 3.0), since=0, ttl_s=3.0)
    memory.put(keys.alive_key("n1"), member.to_bytes(), session=holder)
    began = time.monotonic()
    with pytest.raises(NodeIdInUse):
        JobManager(memory, "n1", idle(), session_ttl_s=0.5).start()
    assert time.monotonic() - began >= 4.0


WAITING = """
import logging, sys
from latchwork.jobs import Job, JobManager
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
job = Job("report", work_pool=["a"], run=lambda context: None)
JobManager(sys.argv[1], "n1", job, session_ttl_s=10.0).run_forever()
print("ended cleanly", flush=True)
"""


def test_sigterm_ends_a_node_that_still_waits_for_its_id_at_once_and_cleanly(tmp_path):
    url = f"sqlite:///{tmp_path / 'cluster.db'}?root=test"
    with connect(url) as store:
        member = NodeRecord.of_this_process(MemberOptions("n1", 10.0), since=0, ttl_s=10.0)
        cluster_store(store).put(keys.alive_key("n1"), member.to_bytes(), session=store.open_session(10.0))
        process = subprocess.Popen(
            [sys.executable, "-c", WAITING, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        for line in process.stderr:
            if "still in use" in line:
                break
        began = time.monotonic()
        os.kill(process.pid, signal.SIGTERM)
        out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "ended cleanly" in out
    assert time.monotonic() - began < 4.0


SIGNALLED_ELSEWHERE = """
import signal, threading
from latchwork.jobs import Job, JobManager
started = threading.Event()
job = Job("report", work_pool=["a"], run=lambda context: started.set(), initial_delay_s=0.0)
node = JobManager("memory://cluster", "n1", job)

def tell():
    started.wait()
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    threading.Event().wait()

threading.Thread(target=tell, daemon=True).start()
node.run_forever()
print("ended cleanly", flush=True)
"""


def test_sigterm_that_the_system_gives_to_another_thread_than_the_main_one_ends_a_node_too():
    command = [sys.executable, "-c", SIGNALLED_ELSEWHERE]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0
    assert "ended cleanly" in done.stdout


def test_a_second_signal_does_not_wait_for_runs(memory):
    begun, gate = threading.Event(), threading.Event()

    def run(_context):
        begun.set()
        gate.wait()

    job = Job("deaf", work_pool=["a"], run=run, initial_delay_s=0.0)
    node = JobManager(memory, "n1", job, close_timeout_s=3600.0)
    try:
        with signals_later(signal.SIGTERM, signal.SIGTERM, when=begun.is_set):
            node.run_forever()
        assert node.state == "closed"
    finally:
        gate.set()


def test_a_close_with_less_patience_shortens_the_one_before(memory):
    begun, gate = threading.Event(), threading.Event()

    def run(_context):
        begun.set()
        gate.wait()

    node = JobManager(memory, "n1", Job("deaf", work_pool=["a"], run=run, initial_delay_s=0.0)).start()
    try:
        assert begun.wait(60.0)
        patient = threading.Thread(target=node.close, args=(3600.0,))
        patient.start()
        eventually(lambda: node.state == "closing", 60.0)
        node.close(0.0)
        patient.join(60.0)
        assert not patient.is_alive()
    finally:
        gate.set()


def test_keys_that_somebody_else_put_there_do_not_break_the_inspector(memory, cluster):
    cluster.node(memory, "n1", idle())
    memory.put("workers/x", b"")
    memory.put("workers/y/notes", b"")
    state = inspect(memory)
    assert state is not None
    assert list(state.nodes) == ["n1"]


def test_labels_that_are_no_text_are_refused(memory):
    with pytest.raises(ValueError, match=r"'zone'.*str"):
        JobManager(memory, "n1", idle(), labels={"zone": object()})
