"""User code that raises anything: no outcome is lost, and no thread of ours ends by it. One test for each entrance."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from contextlib import closing

import pytest

import latchwork
import latchwork.aio
from latchwork._base.user_code import call_user
from latchwork.assignment import Balanced
from latchwork.errors import OnceFailed, UserCodeFailed
from latchwork.executor import All, Executor, ExecutorWorker
from latchwork.jobs import FixedDelay, Job, JobManager, Observer
from latchwork.plans import Plans, PlanWorker
from latchwork.primitives import LeaderLatch, Once
from latchwork.store.observers import Observers
from latchwork.tasks import Functions, RemoteError, TaskContext
from latchwork.worker_group import GroupWorker, find
from latchwork_workflows.model.builder import shell, workflow
from latchwork_workflows.model.builder import task as flow_task
from latchwork_workflows.secrets import SecretMissing, Secrets
from latchwork_workflows.types.shell import Shell
from patience import eventually

PATIENCE_S = 60.0


class Panic(BaseException):
    """As libraries have them: a panic of Rust, a timeout of gevent, a cancellation of trio."""


class Mute(Exception):
    """Its message cannot be made."""

    def __str__(self):
        raise KeyboardInterrupt

    __repr__ = __str__


def raised():
    """One of each kind that user code may raise, by name."""
    return {
        "KeyboardInterrupt": KeyboardInterrupt("x"),
        "SystemExit": SystemExit(3),
        "GeneratorExit": GeneratorExit(),
        "Panic": Panic("boom"),
        "Mute": Mute(),
        "ValueError": ValueError("plain"),
        "BaseExceptionGroup": BaseExceptionGroup("g", [ValueError(1), KeyboardInterrupt()]),
    }


KINDS = sorted(raised())
WORK = Functions()
task = WORK.task


@task(name="one")
def one() -> int:
    return 1


@task(name="raises")
def raises(kind: str) -> None:
    raise raised()[kind]


@task(name="raises-async")
async def raises_async(kind: str) -> None:
    raise raised()[kind]


@task(name="raises-in-process", run_in="process")
def raises_in_process(kind: str) -> None:
    raise raised()[kind]


@task(name="returns-what-raises")
def returns_what_raises(kind: str) -> object:
    class Broken(dict):
        def items(self):
            raise raised()[kind]

        __iter__ = keys = values = __len__ = items

    return Broken(a=1)


@pytest.fixture
def store():
    with latchwork.connect("memory://user-code") as made:
        yield made


@pytest.fixture
def pool(store):
    with Executor(store, functions=WORK) as made:
        yield made


@pytest.fixture
def worker(store):
    with ExecutorWorker(store, functions=WORK, slots=2, node_id="n1", session_ttl_s=10.0) as made:
        made.wait_ready(PATIENCE_S)
        yield made


def in_thread(fn, *args):
    """Call it in a thread that is not the main one, in which an interrupt is what Python delivers there."""
    ended = Future()

    def call():
        try:
            ended.set_result(fn(*args))
        except BaseException as error:
            ended.set_exception(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    value = ended.result(PATIENCE_S)
    thread.join(PATIENCE_S)
    return value


def error_of(future):
    return future.exception(PATIENCE_S)


# The wrapper


@pytest.mark.parametrize("kind", KINDS)
def test_what_user_code_raises_in_a_thread_of_ours_is_an_exception_with_a_message(kind):
    with pytest.raises(Exception, match=r".") as caught:
        in_thread(call_user, raises, kind)
    assert kind == "ValueError" or (isinstance(caught.value, UserCodeFailed) and kind in str(caught.value))


def test_control_c_in_the_main_thread_stays_control_c():
    with pytest.raises(KeyboardInterrupt):
        call_user(raises, "KeyboardInterrupt")


# Tasks


@pytest.mark.parametrize("fn", [raises, raises_async, raises_in_process], ids=lambda fn: fn.__name__)
def test_a_task_that_raises_anything_has_an_outcome_that_names_it(pool, worker, fn):
    futures = {kind: pool.submit(fn, kind) for kind in KINDS}
    for kind, future in futures.items():
        error = error_of(future)
        name = error.type_name if isinstance(error, RemoteError) else type(error).__name__
        assert kind in name
        assert kind in error.__cause__.args[0], "the traceback of the node"
    assert pool.submit(one).result(PATIENCE_S) == 1
    assert worker.drain(PATIENCE_S)


def test_a_result_that_raises_when_it_is_encoded_is_the_failure_of_its_task(pool, worker):
    for future in [pool.submit(returns_what_raises, kind) for kind in KINDS]:
        assert error_of(future) is not None
    assert pool.submit(one).result(PATIENCE_S) == 1


def test_an_exception_whose_class_refuses_everything_is_an_outcome(store, pool, worker):
    class Meta(type):
        def __getattribute__(cls, name):
            if name in {"__qualname__", "__name__", "__module__"}:
                raise KeyboardInterrupt
            return super().__getattribute__(name)

    class Hostile(Exception, metaclass=Meta):
        @property
        def args(self):
            raise KeyboardInterrupt

        __str__ = __repr__ = __reduce__ = lambda _: raises("KeyboardInterrupt")

    @task(name=f"hostile-{id(pool)}")
    def fail() -> None:
        raise Hostile

    assert isinstance(error_of(pool.submit(fail)), RemoteError)


def test_a_plan_whose_task_raises_anything_fails_and_names_it(store):
    plans = Plans(store, functions=WORK)
    with PlanWorker(store, functions=WORK, slots=2):
        for kind in KINDS:
            with plans.new(f"p-{kind.lower()}") as plan:
                plan.add(raises, kind, name="bad")
                plan.add(one, name="good")
            assert plan.handle.wait(PATIENCE_S).state.value == "failed"


def test_a_stop_listener_that_raises_anything_keeps_no_other_from_being_called(store, pool, worker):
    called = threading.Event()
    begun = threading.Event()

    @task(name=f"waits-{id(pool)}")
    def waits(context: TaskContext) -> None:
        for kind in KINDS:
            context.on_stop(lambda kind=kind: raises(kind))
        context.on_stop(called.set)
        begun.set()
        context.wait_for_stop(PATIENCE_S)

    future = pool.submit(waits)
    assert begun.wait(PATIENCE_S)
    future.cancel(interrupt=True)
    assert called.wait(PATIENCE_S)


# Executor


def test_a_done_callback_that_raises_anything_holds_up_no_other_callback(pool, worker, caplog):
    called = threading.Event()
    future = pool.submit(one)
    whole = pool.with_options(target=All()).submit(one)
    for each in (future, whole):
        for kind in KINDS:
            each.add_done_callback(lambda _, kind=kind: raises(kind))
    future.add_done_callback(lambda _: called.set())
    assert future.result(PATIENCE_S) == 1
    assert called.wait(PATIENCE_S)
    assert whole.result(PATIENCE_S) == {"n1": 1}
    assert pool.submit(one).result(PATIENCE_S) == 1


def test_a_picker_that_raises_anything_fails_its_task_alone(pool, worker):
    class Bad:
        def __init__(self, kind):
            self.kind = kind

        def pick(self, task, view, load):
            raises(self.kind)

    for kind in KINDS:
        error = error_of(pool.with_options(picker=Bad(kind)).submit(one))
        assert kind == "ValueError" or kind in str(error)
    assert pool.submit(one).result(PATIENCE_S) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_whose_accept_raises_anything_leaves_that_task_alone(store, pool, kind):
    def accept(function):
        return function != "raises" or raises(kind)

    with ExecutorWorker(store, functions=WORK, slots=1, accept=accept) as worker:
        worker.wait_ready(PATIENCE_S)
        future = pool.submit(raises, kind)
        assert [pool.submit(one).result(PATIENCE_S) for _ in range(3)] == [1, 1, 1]
        assert future.cancel()


# Stores and primitives


def test_observers_that_raise_anything_disturb_nobody(caplog):
    class Bad:
        def __init__(self, kind):
            self.kind = kind

        def seen(self):
            raises(self.kind)

    told = []

    class Good:
        def seen(self):
            told.append(1)

    observers = Observers([*map(Bad, KINDS), Good()])
    in_thread(observers.notify, "seen")
    assert told == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_listeners_of_a_store_are_called_again_after_one_has_raised_anything(store, kind):
    seen, changed, states, lost = [], [], threading.Event(), threading.Event()

    def bad(into):
        def listener(*args):
            into.append(args)
            raises(kind)

        return listener

    session = store.open_session(30.0)
    session.on_lost(bad([]))
    session.on_lost(lost.set)
    session.on_state(bad([]))
    session.on_state(lambda _: states.set())
    with store.mirror("m") as mirror, store.watch("m") as watch:
        mirror.on_change(bad(changed))
        watch.subscribe(bad(seen))
        for number in range(3):
            store.put(f"m/{number}", b"")
            eventually(lambda number=number: len(changed) > number and len(seen) > number, PATIENCE_S)
    session.mark_ended()
    assert lost.wait(PATIENCE_S)
    assert states.wait(PATIENCE_S)


def test_a_callback_of_a_call_in_flight_that_raises_anything_holds_up_no_other(store):
    called = threading.Event()
    with store.pipeline() as calls:
        future = calls.get("k")
        for kind in KINDS:
            future.add_done_callback(lambda _, kind=kind: raises(kind))
        future.add_done_callback(lambda _: called.set())
        assert called.wait(PATIENCE_S)


@pytest.mark.parametrize("kind", KINDS)
def test_a_latch_tells_the_listeners_behind_one_that_raises_anything(store, kind):
    elected = threading.Event()
    with LeaderLatch(store, "latch", node_id="n") as latch:
        latch.on_elected(lambda *_: raises(kind))
        latch.on_elected(lambda *_: elected.set())
        assert elected.wait(PATIENCE_S)


def test_a_listener_in_an_event_loop_that_raises_anything_is_called_again():
    seen = dict.fromkeys(KINDS, 0)

    def listener(kind):
        def call(*_):
            seen[kind] += 1
            raises(kind)

        return call

    async def main():
        async with latchwork.aio.connect("memory://user-code-aio") as store:
            mirror = await store.mirror("m")
            for kind in KINDS:
                mirror.on_change(listener(kind))
            until = time.monotonic() + PATIENCE_S
            while min(seen.values()) < 3 and time.monotonic() < until:
                await store.put("m/1", b"")
                await asyncio.sleep(0.01)

    in_thread(asyncio.run, main())
    assert min(seen.values()) >= 3


async def called_again(listener, change):
    """Make changes until the listener was called twice."""
    for number in range(2):
        await change(number)
        await asyncio.to_thread(eventually, lambda number=number: listener.calls > number, PATIENCE_S)


async def listen_to_latch(store, listener):
    async def change(_number):
        async with latchwork.aio.LeaderLatch(store, "latch", node_id="n") as latch:
            latch.on_elected(listener)
            await latch.wait(PATIENCE_S)

    await called_again(listener, change)


async def listen_to_group(store, listener):
    async with latchwork.aio.Group(store, "group", member_id="a") as group:
        group.on_view(listener)
        await called_again(listener, lambda number: group.update(weight=2.0 + number))


async def listen_to_mirror(store, listener):
    mirror = await store.mirror("m")
    mirror.on_change(listener)
    await called_again(listener, lambda number: store.put(f"m/{number}", b""))


async def listen_to_watch(store, listener):
    watch = store.watch("m")
    watch.subscribe(listener)
    await called_again(listener, lambda number: store.put(f"m/{number}", b""))


class AsyncListener:
    """Counts its calls, and raises."""

    def __init__(self, kind):
        self.kind, self.calls = kind, 0

    async def __call__(self, *_):
        self.calls += 1
        await asyncio.sleep(0)
        raises(self.kind)


def call_listener(listen, kind):
    async def main():
        listener = AsyncListener(kind)
        async with latchwork.aio.connect("memory://user-code-aio") as store:
            await listen(store, listener)
        return listener.calls

    return asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("listen", [listen_to_latch, listen_to_group, listen_to_mirror, listen_to_watch])
def test_an_async_listener_that_raises_anything_ends_no_loop_and_is_called_again(listen, kind):
    assert in_thread(call_listener, listen, kind) >= 2


def test_an_async_listener_that_exits_does_not_end_the_loop_of_the_main_thread():
    assert call_listener(listen_to_mirror, "SystemExit") >= 2


def test_control_c_in_an_async_listener_in_the_main_thread_stays_control_c():
    with pytest.raises(KeyboardInterrupt):
        call_listener(listen_to_mirror, "KeyboardInterrupt")


@pytest.mark.parametrize("kind", KINDS)
def test_once_passes_to_another_when_its_function_raises_anything(store, kind):
    def first():
        with closing(Once(store, f"once-{kind}")) as one, pytest.raises((OnceFailed, type(raised()[kind]))):
            one.run(lambda _: raises(kind))

    in_thread(first)
    with closing(Once(store, f"once-{kind}")) as one:
        if isinstance(raised()[kind], Exception):
            with pytest.raises(OnceFailed, match=kind if kind != "Mute" else "message"):
                one.run(lambda _: b"other", timeout_s=PATIENCE_S)
        else:
            assert one.run(lambda _: b"other", timeout_s=PATIENCE_S) == b"other"


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "Panic"])
def test_once_in_an_event_loop_passes_to_another_when_its_function_raises_anything(store, kind):
    """An exit ends that loop, as everywhere in asyncio; the claim is given back meanwhile."""

    async def fails(_work):
        raises(kind)

    async def main():
        async with latchwork.aio.Once(latchwork.aio.Store.wrap(store), f"once-aio-{kind}") as one:
            await one.run(fails)

    with pytest.raises(type(raised()[kind])):
        in_thread(asyncio.run, main())
    with closing(Once(store, f"once-aio-{kind}")) as one:
        assert one.run(lambda _: b"other", timeout_s=PATIENCE_S) == b"other"


def test_once_in_an_event_loop_records_the_failure_of_a_function_that_raises_generator_exit(store):
    async def fails(_work):
        raise GeneratorExit

    async def main():
        async with latchwork.aio.Once(latchwork.aio.Store.wrap(store), "once-aio") as one:
            await one.run(fails, timeout_s=PATIENCE_S)

    with pytest.raises(OnceFailed, match="GeneratorExit"):
        in_thread(asyncio.run, main())


# Jobs and worker groups


class BadObserver(Observer):
    def __init__(self, kind):
        self.kind = kind

    def pool_read(self, info):
        raises(self.kind)

    def run(self, info):
        raises(self.kind)

    def rebalanced(self, info):
        raises(self.kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_whose_user_code_raises_anything_keeps_no_other_from_running(store, kind):
    class BadStrategy(Balanced):
        name = "bad"

        def assign(self, problem):
            raises(kind)

    class BadSchedule(FixedDelay):
        def next_due(self, *args, **options):
            raises(kind)

        first_due = next_due

    runs, failed = [], []

    def fails(context):
        failed.append(1)
        raises(kind)

    quick = {"schedule": FixedDelay(0.05), "initial_delay_s": 0.0}
    jobs = [
        Job(
            "pool",
            work_pool=lambda: ["a"] if not reads.append(1) and len(reads) < 2 else raises(kind),
            run=print,
            pool_check_period_s=0.05,
        ),
        Job("schedule", work_pool=["a"], run=print, schedule=BadSchedule(0.05), initial_delay_s=0.0),
        Job("fails", work_pool=["a"], run=fails, **quick),
        Job("strategy", work_pool=["a"], run=print, **quick),
        Job("good", work_pool=["a"], run=runs.append, **quick),
    ]
    reads = []

    def work():
        with JobManager(
            store,
            "n1",
            jobs,
            strategy={"*": "balanced", "strategy": BadStrategy()},
            observers=[BadObserver(kind)],
            debounce_s=0.05,
        ) as node:
            eventually(lambda: len(runs) > 2 and len(failed) > 2 and len(reads) > 2, PATIENCE_S)
            assert node.stats().jobs["fails"].failures >= 2
            runs.clear()
            eventually(lambda: runs, PATIENCE_S)

    in_thread(work)


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_whose_function_raises_anything_fails_its_job(store, kind):
    def work():
        worker = GroupWorker(store, f"job-{kind}", key="a", workers=1)
        worker.join(PATIENCE_S)
        try:
            worker.run(lambda _: raises(kind))
        except BaseException as error:
            return error, find(store, f"job-{kind}").status()
        finally:
            worker.close()

    error, status = in_thread(work)
    assert type(error).__name__ == kind
    assert kind == "GeneratorExit" or (status.state == "FAILED" and kind in status.why)


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_whose_block_raises_anything_fails_its_job(store, kind):
    job = f"block-{kind}"

    def work():
        with GroupWorker(store, job, key="a", workers=2):
            raises(kind)

    with closing(GroupWorker(store, job, key="b", workers=2)) as other:
        other.join(PATIENCE_S)
        with pytest.raises(type(raised()[kind])):
            in_thread(work)
        status = find(store, job).status()
    assert kind == "GeneratorExit" or (status.state == "FAILED" and kind in status.why)


# Workflows


@pytest.mark.parametrize("kind", KINDS)
def test_a_provider_of_secrets_that_raises_anything_is_named(kind):
    def provider(_name, _scope):
        raises(kind)

    with pytest.raises(SecretMissing, match=kind):
        in_thread(Secrets(environ={}, providers=[provider]).get, "X", "default")


@flow_task
def bad(kind: str) -> None:
    raises(kind)


@workflow(params={"kind": "ValueError"})
def calls_bad(kind: str):
    bad(kind)


@workflow
def shells_bad():
    shell("true", name="bad")


@pytest.mark.parametrize("kind", KINDS)
def test_a_tried_task_whose_function_raises_anything_has_failed_and_names_it(kind):
    run = in_thread(lambda: calls_bad.test(kind=kind))
    assert run.state == "failure"
    assert kind in run.tasks["bad"].error


def test_a_tried_task_that_exits_in_the_main_thread_has_failed():
    assert "SystemExit: 3" in calls_bad.test(kind="SystemExit").tasks["bad"].error


def test_control_c_in_a_tried_task_in_the_main_thread_stays_control_c():
    with pytest.raises(KeyboardInterrupt):
        calls_bad.test(kind="KeyboardInterrupt")


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_whose_type_raises_anything_cannot_be_prepared_and_says_why(kind, monkeypatch):
    monkeypatch.setattr(Shell, "command", lambda *_: raises(kind))
    run = in_thread(shells_bad.test)
    assert run.state == "failure"
    assert run.tasks["bad"].error.startswith("the worker could not prepare it: ")
    assert kind in run.tasks["bad"].error
