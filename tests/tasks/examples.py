"""Functions and classes that tests of tasks run, here and in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from latchwork.tasks import TaskContext, current_task, task


class Colour(enum.Enum):
    RED = 1
    GREEN = "g"


class Point(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True)
class Order:
    id: int
    points: list[Point]
    colour: Colour = Colour.RED


class Cart(msgspec.Struct, frozen=True):
    orders: tuple[Order, ...]
    note: str | None = None


class Base:
    """Takes keyword arguments, as many constructors do; no task may have it made."""

    made = 0

    def __init__(self, **_: object) -> None:
        type(self).made += 1


@task
def square(n: int) -> int:
    return n * n


@task
def ship(cart: Cart, *, to: Point, times: int = 1) -> list[Cart]:
    return [cart] * times


@task
def anything(value, *rest, **more):
    return value


@task
def wants_base(value: Base) -> None:
    return None


@task
def lies() -> int:
    return "no number"  # type: ignore[return-value]


@task
def fails(text: str) -> None:
    raise KeyError(text)


@task
def refuses() -> None:
    current_task().refuse("not on this machine")


@task
def about(ctx: TaskContext) -> tuple[str, int, int, str]:
    return ctx.task_id, ctx.attempt, ctx.fence.token, ctx.node_id


@task
def waits(ctx: TaskContext) -> bool:
    """Until it is told to stop."""
    return ctx.wait_for_stop(60)


@task
def is_deaf(seconds: float) -> None:
    """Does not listen."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(BaseException):
            time.sleep(0.02)


@task
def tells_and_is_deaf(path: str, seconds: float) -> None:
    """Says which process it is in; does not listen."""
    Path(f"{path}.new").write_text(str(os.getpid()))
    Path(f"{path}.new").rename(path)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    is_deaf(seconds)


@task
async def awaits(n: int) -> int:
    await asyncio.sleep(0)
    return n


@task
async def awaits_for_ever() -> None:
    await asyncio.Event().wait()


@task(run_in="process")
def own_process() -> int:
    return os.getpid()


@task
def pid() -> int:
    return os.getpid()


@task
def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@task
def exits() -> None:
    raise SystemExit(3)


@task
def leaves_a_child(path: str) -> None:
    """Starts what outlives it, in a session of its own."""
    command = f"trap '' TERM; echo $$ > {path}; exec sleep 300"
    subprocess.Popen(["sh", "-c", command], start_new_session=True)
    while not Path(path).exists() or not Path(path).read_text().strip():
        time.sleep(0.01)
