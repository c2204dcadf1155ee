"""Functions by name: what is registered may be run, and nothing else."""

from __future__ import annotations

import pytest

from latchwork.tasks import DEFAULT, Functions, Retry, TaskContext, UnknownFunction, task
from latchwork.tasks.functions import RegisteredFunction, default_name

from . import examples


def test_a_function_is_registered_by_module_and_name_and_stays_what_it_is():
    assert DEFAULT.get(f"{examples.__name__}:square").fn is examples.square
    assert examples.square(3) == 9


def test_an_unknown_name_lists_names_that_are_near():
    functions = Functions()
    functions.task(examples.square, name="shop.square")
    functions.task(examples.ship, name="shop.ship")
    with pytest.raises(UnknownFunction, match=r"no function 'shop.sqare' is registered here \(near it: shop.square"):
        functions.get("shop.sqare")


def test_a_function_that_was_not_registered_is_refused_with_what_to_do():
    with pytest.raises(UnknownFunction, match="print is not registered; decorate it with @task"):
        DEFAULT.resolve(print)


def test_a_lambda_has_no_name_that_others_know():
    with pytest.raises(ValueError, match="has no name that other processes could use; give it one"):
        Functions().task(lambda: 1)


def test_a_local_function_may_be_given_a_name():
    functions = Functions()

    @functions.task(name="local", retry=Retry(attempts=3), timeout_s=5, run_in="thread")
    def local() -> None: ...

    found = functions.get("local")
    assert (found.fn, found.retry.attempts, found.timeout_s, found.run_in) == (local, 3, 5, "thread")


def test_two_functions_cannot_have_one_name():
    functions = Functions()
    functions.task(examples.square, name="one")
    with pytest.raises(ValueError, match="another function is registered as 'one'"):
        functions.task(examples.ship, name="one")


def test_a_module_that_is_imported_again_registers_its_functions_again():
    functions, space = Functions(), {}
    code = compile("def again(): return 1", "again.py", "exec")
    for _ in range(2):
        exec(code, space)
        functions.task(space["again"], name="again")
    assert len(functions) == 1


@pytest.mark.parametrize("options", [{"timeout_s": 0}, {"timeout_s": True}, {"run_in": "moon"}, {"name": "a\nb"}])
def test_options_that_cannot_be_are_refused(options):
    with pytest.raises(ValueError, match="must be"):
        Functions().task(examples.square, **options)


def test_a_generator_is_refused_because_its_body_would_never_run():
    def lines():
        yield 1

    with pytest.raises(TypeError, match="a generator, whose body would never run"):
        Functions().task(lines, name="lines")


def test_load_takes_over_what_a_module_has_and_no_more():
    functions = Functions().load(examples.__name__)
    assert f"{examples.__name__}:ship" in functions
    assert all(each.fn.__module__ == examples.__name__ for each in functions)


def test_load_refuses_a_module_without_tasks():
    with pytest.raises(UnknownFunction, match="has no function with @task"):
        Functions().load("json.tool")


def test_the_main_modules_functions_are_named_as_others_import_them(monkeypatch):
    import __main__

    def fn() -> None: ...

    fn.__module__, fn.__qualname__ = "__main__", "fn"
    monkeypatch.setattr(__main__, "__spec__", None)
    monkeypatch.setattr(__main__, "__file__", "/somewhere/shop.py", raising=False)
    assert default_name(fn) == "shop:fn"


def test_the_context_is_no_argument_of_a_caller():
    def fn(ctx: TaskContext, n: int) -> None: ...

    one = RegisteredFunction("fn", fn)
    assert (list(one.signature.parameters), one.context_parameters) == (["n"], {"ctx"})
    one.check_arguments((1,), {})
    with pytest.raises(TypeError, match="function 'fn': too many positional"):
        one.check_arguments((1, 2), {})


def test_an_annotation_for_type_checkers_alone_leaves_the_others_known():
    def fn(n: int, other: "OnlyForTypeCheckers") -> None: ...  # noqa: F821, UP037

    assert RegisteredFunction("fn", fn).hints == {"n": int, "return": type(None)}


def test_task_is_the_decorator_of_the_default_list():
    assert task == DEFAULT.task
