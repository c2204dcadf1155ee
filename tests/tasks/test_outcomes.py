"""Outcomes: exceptions that are raised where the task was submitted, without importing or running anything."""

from __future__ import annotations

import subprocess
import sys
import traceback
import types

import pytest

from latchwork.errors import BackendNotInstalled, Conflict, LatchworkError
from latchwork.tasks import (
    DEFAULT,
    BadPayload,
    Failure,
    Outcome,
    Payloads,
    PickleCodec,
    RemoteError,
    RemoteTraceback,
    StoredCall,
    TaskContext,
    current_task,
    run_call,
    task,
)
from latchwork.tasks.payloads import codec
from latchwork.tasks.payloads.values import pack

from .examples import fails, lies, refuses, square

PAYLOADS = Payloads()


def run(fn, *args, **kwargs):
    one = DEFAULT.resolve(fn)
    context = TaskContext("t1", attempt=2, node_id="n1")
    return run_call(StoredCall(one.name, PAYLOADS.encode_call(one, args, kwargs)), DEFAULT, PAYLOADS, context)


def stored(outcome):
    return Outcome.from_bytes(outcome.to_bytes())


def test_a_value_comes_back_by_the_functions_return_annotation():
    assert stored(run(square, 3)).result(PAYLOADS, int) == 9


def test_an_exception_is_raised_with_where_it_was_raised():
    with pytest.raises(KeyError, match="lost") as raised:
        stored(run(fails, "lost")).result(PAYLOADS)
    assert raised.value.args == ("lost",)
    assert isinstance(raised.value.__cause__, RemoteTraceback)
    shown = "".join(traceback.format_exception(raised.value))
    assert "raise KeyError(text)" in shown
    assert "performing.py" not in shown.partition("The above exception")[0]


class ShopError(Exception):
    """Takes apart what it is given, as many do."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"error {code}")
        self.code, self.where = code, where


def test_a_class_that_is_loaded_here_is_raised_with_its_attributes_and_without_its_constructor():
    failure = stored(Outcome.from_exception(ShopError(7, where="till"))).failure
    error = failure.exception()
    assert (type(error), str(error), error.code, error.where) == (ShopError, "error 7", 7, "till")


@pytest.mark.parametrize(
    "error", [OSError(2, "No such file", "x"), Conflict("no"), UnicodeDecodeError("utf-8", b"x", 0, 1, "y")]
)
def test_exceptions_with_fields_of_their_own_keep_them(error):
    made = stored(Outcome.from_exception(error)).failure.exception()
    assert (type(made), made.args, str(made)) == (type(error), error.args, str(error))
    assert getattr(made, "errno", None) == getattr(error, "errno", None)


def test_a_class_that_is_not_loaded_here_is_a_remote_error_and_its_module_is_not_imported():
    assert "antigravity" not in sys.modules
    failure = Failure("antigravity", "FlyError", "up\x1b[2J", "trace", pack([(), {}], "it"))
    error = stored(Outcome(failure=failure)).failure.exception()
    assert (type(error), error.type_name, error.text) == (RemoteError, "antigravity:FlyError", "up\x1b[2J")
    assert "\x1b" not in str(error)
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "SystemExit"),
        ("builtins", "KeyboardInterrupt"),
        ("builtins", "eval"),
        ("os", "system"),
        ("subprocess", "Popen"),
        ("builtins", "int"),
        ("", ""),
        ("builtins", "Exception.__init__"),
        ("os", "path.os.system"),
        ("concurrent.futures._base", "Error.__base__"),
    ],
)
def test_what_is_no_exception_class_is_never_made(module, name):
    failure = Failure(module, name, "x", "", pack([("true",), {}], "it"))
    assert type(stored(Outcome(failure=failure)).failure.exception()) is RemoteError


def test_no_code_of_a_class_runs_when_its_exception_is_made(monkeypatch):
    ran = []

    class Loud(Exception):
        def __init__(self, *args):
            ran.append("init")

        def __setattr__(self, name, value):
            ran.append(name)

        def __setstate__(self, state):
            ran.append("state")

    monkeypatch.setattr(sys.modules[__name__], "Loud", Loud, raising=False)
    Loud.__qualname__ = "Loud"
    failure = Failure(__name__, "Loud", "x", "", pack([(1, 2), {"a": 3}], "it"))
    made = failure.exception()
    assert (type(made), made.args, vars(made), ran) == (Loud, (1, 2), {"a": 3}, [])


def test_arguments_that_the_class_does_not_take_make_it_a_remote_error():
    failure = Failure("builtins", "UnicodeDecodeError", "x", "", pack([(1,), {}], "it"))
    assert type(failure.exception()) is RemoteError


def test_an_exception_whose_arguments_are_no_plain_values_is_a_remote_error_with_its_text():
    error = stored(Outcome.from_exception(ValueError(types.SimpleNamespace(a=1)))).failure.exception()
    assert (type(error), error.text) == (RemoteError, "namespace(a=1)")


def test_an_exception_that_cannot_be_shown_is_an_outcome_all_the_same():
    class Broken(Exception):
        def __str__(self):
            raise OSError

    assert "its message cannot be created: OSError" in stored(Outcome.from_exception(Broken())).failure.text


def test_a_huge_message_is_cut_in_the_middle():
    failure = stored(Outcome.from_exception(ValueError("x" * 10**6))).failure
    assert len(failure.text) < 10_000
    assert len(failure.traceback) < 40_000


def test_a_result_that_is_not_what_the_function_says_is_its_failure_and_final():
    outcome = run(lies)
    assert outcome.failure.is_final
    with pytest.raises(TypeError, match=r"the result of .*:lies.* has to be of type int, and is 'no number'"):
        outcome.result(PAYLOADS)


def test_a_task_that_calls_exit_fails_and_ends_nothing():
    from .examples import exits

    assert type(run(exits).failure.exception()) is RemoteError
    assert run(exits).failure.summary == "SystemExit: 3"


def test_a_refusal_is_told_from_a_failure():
    outcome = stored(run(refuses))
    assert (outcome.failure.is_refusal, outcome.failure.text) == (True, "not on this machine")


def test_an_unknown_function_is_a_refusal_because_another_node_may_know_it():
    outcome = run_call(StoredCall("no:such", b"plain:"), DEFAULT, PAYLOADS, TaskContext("t"))
    assert outcome.failure.is_refusal


def test_a_task_finds_its_context_and_nobody_else_does():
    from .examples import about

    assert run(about).result(PAYLOADS, tuple[str, int, int, str]) == ("t1", 2, 0, "n1")
    with pytest.raises(LatchworkError, match="no task runs in this thread"):
        current_task()


def test_an_async_task_is_awaited():
    from .examples import awaits

    assert run(awaits, 4).result(PAYLOADS, int) == 4


def test_a_coroutine_from_a_plain_function_is_its_failure():
    async def later():
        return 1

    task(name="later")(lambda: later())  # noqa: PLW0108 - a plain function that returns a coroutine
    outcome = run_call(
        StoredCall("later", PAYLOADS.encode_call(DEFAULT.get("later"), (), {})), DEFAULT, PAYLOADS, TaskContext("t")
    )
    assert "a coroutine, whose body would never run" in outcome.failure.text


@pytest.mark.parametrize(
    "data", [b"", b"x", pack(["value"], "it"), pack(["value", "text"], "it"), pack({"a": 1}, "it")]
)
def test_what_is_no_outcome_is_refused(data):
    with pytest.raises(BadPayload):
        Outcome.from_bytes(data)


def test_importing_tasks_imports_neither_msgspec_nor_cloudpickle():
    code = "import sys, latchwork.tasks; print(sorted({'msgspec', 'cloudpickle'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_error_about_a_missing_library_names_the_extra(monkeypatch):
    codec._cloudpickle.cache_clear()
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(BackendNotInstalled, match=r"latchwork\[pickle\]"):
        PickleCodec().encode(len, "a function")
