"""The keys of a cluster and the keys of its users on one root."""

from __future__ import annotations

import threading

import pytest

import latchwork
from latchwork import Put
from latchwork.errors import InvalidKey
from latchwork.jobs import Control, FixedDelay, Job, JobManager, Threads, inspect
from latchwork.primitives import LeaderLatch, Lock, PersistentLock


@pytest.fixture
def url(backend_url):
    return backend_url


def refreshing(**options):
    """A job, and the items that it has run."""
    ran = set()
    job = Job(
        "refresh",
        work_pool=["a", "b", "c", "d"],
        run=lambda context: ran.update(context.items),
        schedule=FixedDelay(0.1),
        initial_delay_s=0,
        **options,
    )
    return job, ran


def test_the_examples_of_the_readme_work_together_on_one_root(url, eventually):
    with latchwork.connect(url) as store:
        store.put("config/greeting", b"hello")
        store.create("alive/web-1", b"", session=store.session)
        assert store.children("alive") == ["web-1"]
        with PersistentLock(store, "nightly-report", ttl_s=10) as fence:
            store.commit([fence], [Put("report/state", b"begun")])
        seen = threading.Event()
        job = Job(
            "refresh", work_pool=["a", "b", "c"], run=lambda _: seen.set(), threads=Threads.whole(), initial_delay_s=0
        )
        with LeaderLatch(store, "leader", node_id="web-1") as latch:
            latch.wait(timeout_s=5)
            with JobManager(url, "web-1", [job]) as manager:
                assert seen.wait(10)
                assert manager.is_manager
                assert manager.health().ok
            assert latch.is_leader


def test_a_users_leader_latch_does_not_stand_for_election_as_manager(url, eventually):
    job, ran = refreshing()
    with latchwork.connect(url) as store, LeaderLatch(store, "leader", node_id="web-1") as latch:
        latch.wait(timeout_s=5)
        with JobManager(store, "n1", [job]):
            eventually(lambda: len(ran) == 4)
            assert inspect(store).candidates == ("n1",)


def test_a_users_persistent_lock_does_not_lock_an_item(url, eventually):
    job, ran = refreshing()
    with latchwork.connect(url) as store, PersistentLock(store, "refresh/a", ttl_s=30), JobManager(store, "n1", [job]):
        eventually(lambda: len(ran) == 4)
        assert "a" in {lock.item for lock in inspect(store).locks}


def test_a_users_key_below_alive_is_no_node(url):
    job, _ = refreshing()
    with latchwork.connect(url) as store:
        store.create("alive/n1", b"", session=store.session)
        store.create("alive/web-1", b"", session=store.session)
        with JobManager(store, "n1", [job]):
            assert list(inspect(store).nodes) == ["n1"]


def test_a_cluster_keeps_all_its_keys_below_its_reserved_segment(url, eventually):
    job, ran = refreshing()
    with latchwork.connect(url) as store, JobManager(store, "n1", [job]):
        Control(store).disable("other")
        eventually(lambda: len(ran) == 4)
        assert store.list("", recursive=True) == []
        names = {"alive", "leader", "locks", "owners", "settings", "versions", "work-pool", "workers"}
        assert names <= set(store.children("@jobs"))


def test_clusters_of_two_namespaces_and_of_the_root_know_nothing_of_each_other(url):
    job, _ = refreshing()
    with (
        latchwork.connect(url) as store,
        JobManager(store, "n1", [job]),
        JobManager(store, "n2", [job], namespace="alive"),
    ):
        assert list(inspect(store).nodes) == ["n1"]
        assert list(inspect(store, namespace="alive").nodes) == ["n2"]
        assert list(inspect(store.namespace("alive")).nodes) == ["n2"]


@pytest.mark.parametrize("namespace", [None, "blue"])
def test_a_run_writes_below_the_root_or_namespace_of_its_job_manager(url, namespace):
    def count(context):
        for item in context.items:
            context.store.commit([context.fence(item)], [Put(f"counts/{item}", b"1")])

    job = Job("crawl", work_pool=["a", "b"], run=count, initial_delay_s=0)
    prefix = f"{namespace}/counts" if namespace else "counts"
    with (
        latchwork.connect(url) as store,
        store.mirror(prefix) as counts,
        JobManager(store, "n1", job, namespace=namespace),
    ):
        counts.wait_until(lambda found: set(found) == {f"{prefix}/a", f"{prefix}/b"}, 20)


@pytest.mark.parametrize("key", ["@jobs/alive/n1", "blue/@jobs/leader/t1", "@locks/locks/a", "x/@anything"])
def test_a_user_can_write_no_key_of_a_system(url, key):
    with latchwork.connect(url) as store:
        for call in (
            lambda: store.put(key, b""),
            lambda: store.create(key, b""),
            lambda: store.create(key, b"", sequential=True),
            lambda: store.delete(key),
            lambda: store.delete_tree(key),
            lambda: store.commit([], [Put(key, b"")]),
            lambda: store.transact(lambda tx: tx.put(key, b"")),
            lambda: store.transact(lambda _: None, guard=key),
            lambda: store.namespace(key),
            lambda: Lock(store, key),
            lambda: PersistentLock(store, key),
        ):
            with pytest.raises(InvalidKey, match="is reserved"):
                call()


def test_a_user_can_read_and_follow_the_keys_of_a_cluster(url):
    job, _ = refreshing()
    with latchwork.connect(url) as store, JobManager(store, "n1", [job]) as node:
        assert store.get("@jobs/alive/n1").key == "@jobs/alive/n1"
        with store.mirror("@jobs/alive") as alive:
            assert list(alive) == ["@jobs/alive/n1"]
            node.close()
            alive.wait_until(lambda state: not state, 10)


def test_a_user_that_deletes_all_keys_of_the_root_leaves_a_cluster_alone(url):
    job, _ = refreshing()
    with latchwork.connect(url) as store, JobManager(store, "n1", [job]):
        store.put("mine", b"")
        assert store.delete_tree("") == 1
        assert list(inspect(store).nodes) == ["n1"]


def test_a_root_of_a_url_is_never_inside_a_system():
    for root in ("@jobs", "app/@jobs", "app/@s"):
        with pytest.raises(latchwork.InvalidURL, match="none starting with @"):
            latchwork.connect("memory://inside", root=root)
