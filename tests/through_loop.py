"""The tests of the sync SDK through the other driver: each call is made by a task of one event loop, to the twin.

``DRIVER=loop`` has tests of `conformance/` and `primitives/` run so. What looks like a store or a lock to a test is
a face of its twin, whose methods wait for the task in the test's thread. All calls of one thread are of one caller, as
the tests expect. A function of the test that blocks runs in a thread that counts as its caller.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
import threading
import types
import weakref
from concurrent.futures import Future

from msgspec import structs

import latchwork
from latchwork import aio
from latchwork._base.execution_context import Caller, current_task_caller
from latchwork.aio.table import FUNCTIONS
from latchwork.aio.wrapper import AsyncWrapper, async_classes, wrap_async
from latchwork.store import system_namespace
from latchwork.store.driving import background_loop
from latchwork.store.driving.background_loop import spawn
from latchwork.store.driving.loop import get_or_create_caller, inherit_caller

_thread = threading.local()
#: Functions of users that block, by the name of the argument: work and listeners.
_BLOCKING = ("fn", "on_error")
#: The call of a store that a test took before it replaced it: made as it was.
_original = contextvars.ContextVar("original", default=None)


class Loop:
    """An event loop in a thread."""

    def __init__(self):
        self.begin()

    def begin(self):
        self.pid = os.getpid()
        self.faces = weakref.WeakValueDictionary()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="loop-of-test", daemon=True)
        self.thread.start()

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def call(self, fn, original=None):
        """Have it called in the loop, in the name of this thread; what it returns, awaited."""
        if os.getpid() != self.pid:  # a child of a fork, without the thread of its parent
            self.begin()
        if threading.current_thread() is self.thread:
            before = _original.set(original)
            try:
                return self.face(fn())
            finally:
                _original.reset(before)
        if not hasattr(_thread, "caller"):
            _thread.caller = Caller(spawn)
        ended = threading.Event()
        future = asyncio.run_coroutine_threadsafe(self._go(fn, _thread.caller, original, ended), self.loop)
        try:
            result, interrupt = future.result()
        except KeyboardInterrupt:  # of this thread: a cancellation of the task, as `asyncio.run` does it
            future.cancel()
            ended.wait()
            raise
        if interrupt is not None:
            raise interrupt
        return self.face(result)

    async def _go(self, fn, caller, original, ended):
        _original.set(original)
        inherit_caller(asyncio.current_task(), caller)
        try:
            result = fn()
            return (await result if inspect.isawaitable(result) else result), None
        except KeyboardInterrupt as interrupt:  # of a test's function: it would end the loop
            return None, interrupt
        finally:
            ended.set()

    def read(self, twin, name):
        """A property."""
        return self.call(lambda: getattr(twin, name))

    def face(self, value):
        value = wrap_async(value)
        if isinstance(value, list):
            return [self.face(each) for each in value]
        if isinstance(value, dict):
            return {key: self.face(each) for key, each in value.items()}
        if not isinstance(value, AsyncWrapper):
            return value
        face = self.faces.get(id(value._of))
        if face is None:
            face = self.faces[id(value._of)] = Face(value, self)
        return face

    def inside(self, value):
        if isinstance(value, (list, tuple)):
            return [self.inside(each) for each in value]
        if isinstance(value, (latchwork.Put, latchwork.Create)) and isinstance(value.session, Face):
            return structs.replace(value, session=value.session.__dict__["twin"])
        return value.__dict__["twin"] if isinstance(value, Face) else value

    def given(self, name, value):
        """An option of a class."""
        is_function = name == "session" and inspect.isfunction(value)
        return (lambda: self.inside(value())) if is_function else self.inside(value)

    def blocking(self, fn):
        """A function of the test as an async one of the loop."""
        if not callable(fn) or inspect.iscoroutinefunction(fn) or inspect.isclass(fn):
            return fn

        @functools.wraps(fn, updated=())
        async def call(*args):
            ended = Future()
            caller = current_caller()

            def run():
                _thread.caller = caller
                try:
                    ended.set_result(fn(*map(self.face, args)))
                except BaseException as error:
                    ended.set_exception(error)

            threading.Thread(target=run, daemon=True, name="work-of-test").start()
            while not ended.done():
                try:
                    await asyncio.shield(asyncio.wrap_future(ended))
                except asyncio.CancelledError:
                    continue  # a thread cannot be cancelled
                except BaseException:
                    break
            return ended.result()

        return call


def current_caller():
    return current_task_caller() or get_or_create_caller(spawn)


class Face:
    """What a test sees of a twin."""

    def __init__(self, twin, loop):
        self.__dict__.update(twin=twin, loop=loop)

    def __getattr__(self, name):
        twin, loop = self.__dict__["twin"], self.__dict__["loop"]
        found = inspect.getattr_static(type(twin), name, None)
        if name == "pipeline":  # its futures are of the loop: it has tests of its own
            return twin._of.pipeline
        if name.startswith("_"):
            value = getattr(twin._of, name)
            return loop.face(value) if isinstance(value, latchwork.Store) else value
        if found is None:
            hidden = getattr(twin._of, name)
            is_method = hasattr(hidden, "__self__")
            return (lambda *args: hidden(*map(raw, args))) if is_method else loop.face(hidden)
        if isinstance(found, property):
            return loop.read(twin, name)
        patched = twin._of.__dict__.get("patches", {}).get(name)
        if patched is not None:
            return patched
        method = functools.wraps(found)(lambda *args, **options: self._call(name, args, options, name))
        method.is_own = True
        return method

    def _call(self, name, args, options, original=None):
        twin, loop = self.__dict__["twin"], self.__dict__["loop"]
        if threading.current_thread() is loop.thread:  # a test's function that a protocol calls without waiting
            return loop.call(lambda: getattr(twin._of, name)(*map(raw, args), **options), original)
        method = getattr(twin, name)
        try:
            names = list(inspect.signature(method).parameters)
        except (TypeError, ValueError):
            names = []

        def one(parameter, value):
            return loop.blocking(value) if parameter in _BLOCKING else loop.inside(value)

        args = [one(names[at] if at < len(names) else "", value) for at, value in enumerate(args)]
        options = {key: one(key, value) for key, value in options.items()}
        result = loop.call(lambda: method(*args, **options), original)
        return self if isinstance(result, Face) and result.__dict__["twin"] is twin else result

    def __setattr__(self, name, value):
        of = self.__dict__["twin"]._of
        if not callable(value):
            setattr(of, name, value)
        elif getattr(value, "is_own", False):  # monkeypatch takes its patch back
            delattr(self, name)
        elif isinstance(of, latchwork.Store):
            patch(of, name, value)
        else:
            replace(of, name, value)

    def __delattr__(self, name):
        of = self.__dict__["twin"]._of
        of.__dict__.get("patches", {}).pop(name, None)
        of.__dict__.pop(name, None)

    def __bool__(self):
        return not hasattr(type(self.__dict__["twin"]), "__len__") or len(self) > 0

    def __enter__(self):
        return self._call("__aenter__", (), {})

    def __exit__(self, *error):
        return self._call("__aexit__", error, {})

    def __iter__(self):
        twin = self.__dict__["twin"]
        return iter(list(twin)) if hasattr(type(twin), "__len__") else self

    def __next__(self):
        try:
            return self._call("__anext__", (), {})
        except StopAsyncIteration:
            raise StopIteration from None

    def __len__(self):
        return len(self.__dict__["twin"])

    def __getitem__(self, key):
        return self.__dict__["twin"][key]

    def __contains__(self, key):
        return key in self.__dict__["twin"]

    def __eq__(self, other):
        return self.__dict__["twin"]._of is raw(other)

    def __hash__(self):
        return hash(self.__dict__["twin"]._of)

    def __repr__(self):
        return repr(self.__dict__["twin"]._of)


def system_of(store, name):
    """The namespace of a system of latchwork, behind a face if the store is."""
    found = system_namespace(raw(store), name)
    return store.__dict__["loop"].face(found) if isinstance(store, Face) else found


def raw(value):
    """The object in a face; of a list those in its faces."""
    if isinstance(value, list):
        return [raw(each) for each in value]
    return value.__dict__["twin"]._of if isinstance(value, Face) else value


def patch(store, name, fn):
    """Have a call of a store made by a function of the test: in a thread, or in that of the SDK that makes the call."""
    if "patches" not in store.__dict__:
        store.__dict__["patches"] = {}
        start_call = store.start_call

        def patched_start_call(method, *args, **options):
            patched = store.patches.get(method)
            if patched is None or _original.get() == method:
                return start_call(method, *args, **options)
            future, caller = Future(), current_caller()

            def run():
                _thread.caller = caller
                try:
                    future.set_result(patched(*args, **options))
                except BaseException as error:
                    future.set_exception(error)

            threading.Thread(target=run, daemon=True, name="patch-of-test").start()
            return future

        store.start_call = patched_start_call
    store.patches[name] = fn
    replace(store, name, fn)


def replace(of, name, fn):
    """Have a function of the test called instead of a method, which it may call itself."""
    unpatched = getattr(of, name)

    def call(_, *args, **options):
        return raw((unpatched if _original.get() == name else fn)(*args, **options))

    call.__name__ = name  # an event loop begins a call of a store by its name
    setattr(of, name, types.MethodType(call, of))


def driver():
    """By which driver tests in this process go now."""
    return getattr(latchwork.connect, "driver", "thread")


def install(modules, monkeypatch, loop=None):
    """Give modules of tests faces instead of what they have imported; returns the loop, to be closed."""
    loop = loop or Loop()
    monkeypatch.setenv("LATCHWORK_ASYNC_WARN", "0")
    monkeypatch.setattr(background_loop, "_LINGER_S", 0.02)  # each test waits for the end of its threads

    def connect(*args, **options):
        async def opened():
            return await aio.connect(*args, **options)

        return loop.call(opened)

    def maker(twin):
        def make(*args, **options):
            args = [loop.inside(value) for value in args]
            options = {name: loop.given(name, value) for name, value in options.items()}
            return loop.call(lambda: twin(*args, **options))

        return functools.wraps(twin, updated=())(make)

    def function(name):
        twin = getattr(aio, name)
        return lambda *args, **options: loop.call(lambda: twin(*map(loop.inside, args), **options))

    connect.driver = "loop"
    monkeypatch.setattr(latchwork, "connect", connect)
    for module in modules:
        for name, value in list(vars(module).items()):
            if isinstance(value, type) and value in async_classes and value is not latchwork.Session:
                monkeypatch.setattr(module, name, maker(async_classes[value]))
            elif any(value is each for each in FUNCTIONS):
                monkeypatch.setattr(module, name, function(value.__name__))
    return loop
