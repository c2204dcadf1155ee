"""Masters as nodes: they share the shards, hand them over, and give them away while they have no database."""

import threading
import time
import uuid
from contextlib import ExitStack

import pytest
import sqlalchemy as sa

import latchwork
from latchwork.errors import Closed
from latchwork_testkit.proxy import Proxy
from latchwork_workflows.db import Database
from latchwork_workflows.db import database as databases
from latchwork_workflows.db.database import DatabaseUnavailable
from latchwork_workflows.db.tables import shard
from latchwork_workflows.errors import StoreMismatch
from latchwork_workflows.installation import NotInitialized, initialize
from latchwork_workflows.master import Master
from latchwork_workflows.master import master as node
from patience import eventually
from workflows.hands import Stage, a_workflow


@pytest.fixture
def stage(tmp_path, store):
    """One database with four shards."""
    made = Stage(f"sqlite:///{tmp_path}/flows.db", store)
    initialize(made.database, shards=4)
    yield made
    made.close()


@pytest.fixture
def master(stage):
    """Start a master with a database of its own, which can be cut off; closed after the test."""
    made = []

    def start(name):
        database = Database(stage.database.engine.url.render_as_string(hide_password=False))
        made.append((Master(database, stage.store, node_id=name, lock_ttl_s=5.0, poll_s=0.5).start(), database))
        return made[-1]

    yield start
    for each, database in made:
        each.close()
        database.close()


def owners(stage):
    with stage.database.read() as connection:
        return set(connection.execute(sa.select(shard.c.owner)).scalars())


def test_masters_share_the_shards_and_one_that_leaves_hands_its_own_over(stage, master):
    first, _ = master("m1")
    eventually(lambda: owners(stage) == {"m1"}, 30.0)
    master("m2")
    eventually(lambda: owners(stage) == {"m1", "m2"}, 30.0)
    version = stage.apply(a_workflow())
    runs = [stage.send("start", on=each, code=version.code, version=1) for each in range(4)]
    made = [eventually(lambda each=each: stage.command(each).run_id, 30.0) for each in runs]
    first.close()
    hand, claims = stage.hand(), {}
    for names in (4, 8):
        eventually(lambda names=names: claims.update(hand.take_all()) or len(claims) == names, 30.0)
        for claim in list(claims.values())[names - 4 :]:
            hand.end(claim)
    for each in made:
        eventually(lambda each=each: stage.state(each) == "success", 30.0)
    assert owners(stage) == {"m2"}


def test_a_master_without_its_database_gives_its_shards_away_and_comes_back(stage, master, monkeypatch):
    monkeypatch.setattr(node, "WITHOUT_S", 1.0)
    monkeypatch.setattr(node, "_LOOK_S", 0.2)
    one, database = master("m1")
    eventually(lambda: owners(stage) == {"m1"}, 30.0)
    with monkeypatch.context() as cut:
        for each in ("read", "write", "ping"):
            cut.setattr(database, each, stage.refused)
        master("m2")
        eventually(lambda: owners(stage) == {"m2"} and not one.health().ok, 30.0)
    eventually(lambda: one.health().ok, 30.0)


def test_a_close_with_less_patience_shortens_the_one_before(stage, master, monkeypatch):
    begun, gate = threading.Event(), threading.Event()

    def deaf(_self):
        begun.set()
        gate.wait()

    monkeypatch.setattr(node.ShardLoop, "run", deaf)
    one, _ = master("m1")
    try:
        assert begun.wait(60.0)
        patient = threading.Thread(target=one.close, args=(3600.0,))
        patient.start()
        eventually(lambda: "the node is closing" in one.health().reasons, 60.0)
        one.close(0.0)
        patient.join(60.0)
        assert not patient.is_alive()
        assert one.health().reasons == ("it does not run",)
    finally:
        gate.set()


@pytest.fixture
def cut_off(database_url):
    """A stage on PostgreSQL, and a way of one master to it that a test holds up: nothing comes back, nothing ends."""
    url = sa.make_url(database_url)
    with latchwork.connect(f"memory://{uuid.uuid4().hex}") as store, Proxy(f"{url.host}:{url.port}") as proxy:
        made = Stage(database_url, store)
        initialize(made.database, shards=2)
        host, _, port = proxy.endpoint.rpartition(":")
        made.through = url.set(host=host, port=int(port)).render_as_string(hide_password=False)
        made.proxy = proxy
        yield made
        proxy.release()
        made.close()


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_master_whose_way_to_the_database_hangs_gives_its_shards_away_and_comes_back(cut_off, monkeypatch):
    monkeypatch.setattr(node, "WITHOUT_S", 2.0)
    monkeypatch.setattr(node, "_LOOK_S", 0.3)
    ours, theirs = (
        Database(cut_off.through),
        Database(cut_off.database.engine.url.render_as_string(hide_password=False)),
    )
    with Master(ours, cut_off.store, node_id="m1", lock_ttl_s=5.0, poll_s=0.5) as one:
        eventually(lambda: owners(cut_off) == {"m1"}, 60.0)
        cut_off.proxy.hold()
        with Master(theirs, cut_off.store, node_id="m2", lock_ttl_s=5.0, poll_s=0.5):
            eventually(lambda: owners(cut_off) == {"m2"} and not one.health().ok, 90.0)
            cut_off.proxy.release()
            eventually(lambda: one.health().ok, 60.0)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_master_whose_connections_are_all_in_use_is_not_without_its_database(cut_off, monkeypatch):
    monkeypatch.setattr(node, "WITHOUT_S", 1.5)
    monkeypatch.setattr(node, "_LOOK_S", 0.3)
    monkeypatch.setattr(databases, "_KEPT", 3)
    monkeypatch.setattr(databases, "_MORE", 0)
    ours = Database(cut_off.through)
    version, hand = cut_off.apply(a_workflow()), cut_off.hand()
    with Master(ours, cut_off.store, node_id="m1", lock_ttl_s=5.0, poll_s=0.5) as one:
        eventually(lambda: owners(cut_off) == {"m1"}, 60.0)
        with ExitStack() as busy:
            for _ in range(3):
                busy.enter_context(ours.engine.connect())
            for _ in range(15):
                time.sleep(0.2)
                assert one.health().ok
        run = cut_off.start(version)
        for name in ("a", "b"):
            hand.end(hand.wait(name))
        eventually(lambda: cut_off.state(run) == "success", 60.0)
    ours.close()


def test_who_gets_no_connection_in_time_is_told_so(tmp_path, monkeypatch):
    ours = Database(f"sqlite:///{tmp_path}/flows.db")
    monkeypatch.setattr(ours.engine.pool, "_timeout", 0.1)
    with ExitStack() as busy:
        for _ in range(ours.engine.pool.size() + ours.engine.pool._max_overflow):
            busy.enter_context(ours.engine.connect())
        with pytest.raises(DatabaseUnavailable, match="all connections of this process are in use"), ours.read():
            pass
    ours.close()


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_connection_whose_answer_never_comes_holds_up_its_shard_for_a_while_only(cut_off, monkeypatch):
    monkeypatch.setattr(node, "STUCK_S", 2.0)
    monkeypatch.setattr(node, "WITHOUT_S", 1e9)  # others answer
    monkeypatch.setattr(node, "_LOOK_S", 0.3)
    ours = Database(cut_off.through)
    version, hand = cut_off.apply(a_workflow()), cut_off.hand()
    with Master(ours, cut_off.store, node_id="m1", lock_ttl_s=5.0, poll_s=0.5) as one:
        run = cut_off.start(version)
        claim = hand.wait("a")
        cut_off.proxy.hold(open_only=True)  # the server hears nothing, and has nothing to end
        hand.end(claim)
        hand.end(eventually(lambda: hand.take().get("b"), 60.0))
        eventually(lambda: cut_off.state(run) == "success", 60.0)
        assert one.health().ok
    ours.close()


def test_a_node_is_refused_before_it_joins_where_something_is_wrong(stage, store, tmp_path):
    empty = Database(f"sqlite:///{tmp_path}/empty.db")
    with pytest.raises(NotInitialized, match="workflows init"):
        Master(empty, store).start()
    empty.close()
    stage.store.put(stage.keys.id, b"another")
    one = Master(stage.database, store)
    with pytest.raises(StoreMismatch, match="another database"):
        one.start()
    one.close()
    with pytest.raises(Closed):
        one.start()
