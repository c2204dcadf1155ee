"""A master of one shard without its job manager, and a worker that does what the test says."""

import itertools
import threading
import time
import uuid
from contextlib import contextmanager

import sqlalchemy as sa

import latchwork
from latchwork.primitives import WorkQueue
from latchwork.types import Absent, At, Create, Delete
from latchwork_workflows.client import WorkflowClient
from latchwork_workflows.cluster import StoreCluster
from latchwork_workflows.db import Database, commands, definitions, runs
from latchwork_workflows.db.accounts import DatabaseAccounts
from latchwork_workflows.db.commands import CommandType, send_command
from latchwork_workflows.db.database import DatabaseUnavailable
from latchwork_workflows.db.tables import attempt, command, event, shard, workflow_run
from latchwork_workflows.installation import initialize
from latchwork_workflows.keys import ItemName, Keys, get_workflows_store
from latchwork_workflows.master.shard import ShardLoop, ShardTools
from latchwork_workflows.messages import AttemptResult, RunningRecord, TaskHead, TaskMessage
from latchwork_workflows.model.validate import check_definition
from latchwork_workflows.schemas.workflows import AppliedVersion
from latchwork_workflows.services import ServiceContext
from latchwork_workflows.state import Outcome
from latchwork_workflows.types import TaskTypes
from patience import eventually


def client_of(database, store=None, *, logs=None, types=None, by=None):
    """A client of the API in this process, on what the test has opened."""
    cluster = None if store is None else StoreCluster(store, Keys())
    context = ServiceContext(database, DatabaseAccounts(database), types or TaskTypes(), logs, cluster)
    return WorkflowClient.in_process(context, by=by)


def a_workflow(name="flow", *, tasks=None, **fields):
    """A workflow of shell tasks, by what each comes after."""
    after = tasks if tasks is not None else {"a": [], "b": ["a"]}
    rows = [
        {"name": each, "type": "shell", "params": {"script": "true"}, **({"after": of} if isinstance(of, list) else of)}
        for each, of in after.items()
    ]
    return check_definition({"name": name, **fields, "tasks": rows}, TaskTypes())


class Hand:
    """A worker, driven by the test."""

    def __init__(self, store, keys=None, name="hand"):
        self.store, self.keys, self.name = get_workflows_store(store), keys or Keys(), name
        self.session = store.open_session(30.0)  # a machine that is busy elsewhere loses none
        self.backlog = WorkQueue(self.store, self.keys.backlog, session=self.session, max_attempts=1000)

    def take(self, *, limit=20, lanes=("default",)):
        """What is free, by the name of the task."""
        found = {}
        for claim in self.backlog.try_take(list(lanes), limit=limit, extra=self._extra):
            item = ItemName.parse(claim.item.id)
            body = self.store.get(self.keys.data_key(item.attempt_key))
            found[TaskMessage.from_bytes(claim.value, body.value if body else None).head.name] = claim
        return found

    def take_all(self):
        """What is free, by its path: tasks of several runs may have one name."""
        return {claim.item.path: claim for claim in self.backlog.try_take(["default"], limit=20, extra=self._extra)}

    def spec(self, claim):
        body = self.store.get(self.keys.data_key(ItemName.parse(claim.item.id).attempt_key))
        return TaskMessage.from_bytes(claim.value, body.value if body else None)

    def wait(self, *names, lanes=("default",)):
        """Take these, and nothing else may come."""
        got = {}
        eventually(lambda: got.update(self.take(lanes=lanes)) or len(got) >= len(names))
        assert sorted(got) == sorted(names)
        return got if len(names) > 1 else got[names[0]]

    def _extra(self, item):
        made = ItemName.parse(item.id)
        running = RunningRecord(self.name, "host", time.time(), item.why).to_bytes()
        return [Absent(self.keys.cancel_key(made.attempt_key))], [
            Create(self.keys.running_key(made.shard, made.attempt_key), running, session=self.session)
        ]

    def end(self, claim, outcome=Outcome.SUCCESS, **fields):
        """How it ended."""
        item = ItemName.parse(claim.item.id)
        if "cache_key" not in fields:
            fields["cache_key"] = TaskHead.from_bytes(claim.value).cache_key
        ended_at = time.time()
        started_at = ended_at - fields.pop("took_s", 0.0)
        result = AttemptResult(outcome, claim.fence.token, self.name, "host", started_at, ended_at, **fields)
        claim.ack(
            ops=[
                Delete(self.keys.running_key(item.shard, item.attempt_key)),
                Delete(self.keys.data_key(item.attempt_key)),
                Create(self.keys.result_key(item.shard, item.attempt_key), result.to_bytes()),
            ]
        )

    def release(self, claim):
        item = ItemName.parse(claim.item.id)
        claim.release("its node closed", count=False, ops=[Delete(self.keys.running_key(item.shard, item.attempt_key))])

    def die(self):
        """Its session ends, and everything that is bound to it."""
        self.backlog.close()
        self.session.close()


class Stage:
    """One database and one store, with masters and workers on them."""

    def __init__(self, url, store):
        self.database = Database(url)
        self.opened, self.store, self.keys = store, get_workflows_store(store), Keys()
        self.hands = []
        self.threads = {}

    def close(self):
        for each in self.hands:
            each.die()
        self.database.close()

    def hand(self, name="hand"):
        self.hands.append(Hand(self.store, self.keys, name))
        return self.hands[-1]

    def apply(self, checked_, **options):
        with self.database.write() as connection:
            return definitions.save_definition(connection, checked_, shards=1, **options)

    def send(self, kind, run_id=None, *, on=0, **args):
        with self.database.write() as connection:
            asked = send_command(connection, CommandType(kind), shard_id=on, run_id=run_id, args=args)
        self.poke(on)
        return asked.id

    def poke(self, on=0):
        self.store.put(self.keys.notify_key(on), b"")

    def start(self, version, **args):
        of = version.version if isinstance(version, AppliedVersion) else version.number
        number = self.send("start", code=version.code, version=of, **args)
        return eventually(lambda: self.command(number).run_id)

    def command(self, number):
        with self.database.read() as connection:
            return commands.find_command(connection, number)

    def known(self, run_id):
        with self.database.read() as connection:
            return runs.load_runs(connection, [run_id])[run_id].known

    def state(self, run_id):
        return self.known(run_id).state.value

    def states(self, run_id):
        return {name: task.state.value for name, task in self.known(run_id).tasks.items()}

    def rows(self, run_id):
        with self.database.read() as connection:
            return dict(runs.load_runs(connection, [run_id])[run_id].ids)

    def result(self, **fields):
        given = {"outcome": Outcome.SUCCESS, "claim": 1, "worker": "w", "host": "h", "started_at": 1.0, "ended_at": 2.0}
        return AttemptResult(**{**given, **fields}).to_bytes()

    def cut_database(self, monkeypatch):
        """Nothing is written until what is returned is put back."""
        write = self.database.write
        monkeypatch.setattr(self.database, "write", self.refused)
        return write

    @staticmethod
    def refused():
        raise DatabaseUnavailable("cut off by the test")

    def lose_answers(self, monkeypatch, every, limit=1000):
        """Of every so many writes the master hears that they failed, though they did not."""
        write, lost = self.database.write, []
        turns = itertools.count(1)

        @contextmanager
        def losing():
            with write() as connection:
                yield connection
                loses = threading.current_thread().name == "master" and next(turns) % every == 0 and len(lost) < limit
                if loses:
                    lost.append(1)  # before the commit: whoever sees that finds it noted
            if loses:
                raise DatabaseUnavailable("the answer was lost")

        monkeypatch.setattr(self.database, "write", losing)
        return lost

    def fail_at(self, monkeypatch, step):
        """Every write of a master is undone after so many statements, as if it had died there."""
        write, self.failures = self.database.write, 0

        @contextmanager
        def dying():
            with write() as connection:
                if threading.current_thread().name == "master":
                    execute, done = connection.execute, itertools.count()

                    def counted(*args, **kwargs):
                        if "INSERT INTO" in str(args[0]) and next(done) == step:
                            self.failures += step + 1
                            raise DatabaseUnavailable("died here")
                        return execute(*args, **kwargs)

                    monkeypatch.setattr(connection, "execute", counted, raising=False)
                yield connection

        monkeypatch.setattr(self.database, "write", dying)

    def lose(self, hand):
        """A worker dies."""
        self.hands.remove(hand)
        hand.die()

    def is_cancelled(self, claim):
        return self.store.get(self.keys.cancel_key(ItemName.parse(claim.item.id).attempt_key)) is not None

    def items(self):
        found = self.store.list(f"{self.keys.backlog}/partitions", recursive=True)
        return {entry.key for entry in found if "/items/" in entry.key}

    def is_over(self, run):
        return not self.threads[run].is_alive()

    def until(self, run_id, state):
        eventually(lambda: self.state(run_id) == state)

    def until_task(self, run_id, **states):
        eventually(lambda: states.items() <= self.states(run_id).items())

    def attempts(self):
        with self.database.read() as connection:
            chosen = sa.select(attempt.c.n, attempt.c.kind, attempt.c.outcome, attempt.c.worker, attempt.c.error)
            return [
                tuple(each)
                for each in connection.execute(chosen.order_by(attempt.c.task, attempt.c.n, attempt.c.claim))
            ]

    def events(self, run_id):
        with self.database.read() as connection:
            chosen = sa.select(event.c.kind).where(event.c.run_id == run_id).order_by(event.c.id)
            return list(connection.execute(chosen).scalars())

    def count(self, table):
        with self.database.read() as connection:
            return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()

    def owner(self):
        with self.database.read() as connection:
            return connection.execute(sa.select(shard.c.owner).where(shard.c.id == 0)).scalar_one()

    def runs(self):
        return self.count(workflow_run)

    def commands_open(self):
        with self.database.read() as connection:
            return connection.execute(sa.select(command.c.id).where(command.c.done_at.is_(None))).scalars().all()

    def left(self):
        """What is in the store, except marks, empty sort keys and holders, which end with a session."""
        ours = [entry.key for entry in self.store.list("default", recursive=True)]
        return [
            key
            for key in ours
            if not any(part in key for part in ("/sort_keys/", "/holders/", "/high/"))
            and not key.endswith(("/poke", "/id", "/pair"))
        ]

    def run_of(self, on=0, **tools):
        """A hold of the shard: its run, and what gives it up."""
        lock = self.store.create(f"lock-{on}", b"")
        fence = self.store.fence(lock.created, At(lock))
        poll_s = tools.pop("poll_s", 5.0)
        node = tools.pop("node", "node")
        made = ShardTools(self.database, self.store, self.keys, node, poll_s=poll_s, **tools)
        return ShardLoop(made, on, fence, lambda: 1000.0), lambda: self.store.delete(lock.key)

    @contextmanager
    def master(self, on=0, **tools):
        """A master of a shard, at work in a thread; what it raised is raised at the end."""
        run, give_up = self.run_of(on, **tools)
        errors = []

        def work():
            try:
                run.run()
            except BaseException as error:
                errors.append(error)

        thread = self.threads[run] = threading.Thread(target=work, name="master")
        thread.start()
        try:
            yield run
        finally:
            run.stop()
            thread.join()
            give_up()
        if errors:
            raise errors[0]


@contextmanager
def stage_in_memory(database_url, shards=1):
    """A stage on an empty database, with a store of its own in memory."""
    with latchwork.connect(f"memory://{uuid.uuid4().hex}") as store:
        made = Stage(database_url, store)
        initialize(made.database, shards=shards)
        yield made
        made.close()
