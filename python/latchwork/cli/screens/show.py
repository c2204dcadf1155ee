"""`latchwork show`, `forget` and `once`: inspect a primitive, and remove its records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Annotated, Any

import typer

from latchwork._base.text import counted
from latchwork.cli.cluster import open_store
from latchwork.cli.options import Json, Url, command, group
from latchwork.cli.outcome import UsageError
from latchwork.cli.text import say, say_json
from latchwork.errors import OnceFailed
from latchwork.primitives import (
    Counter,
    Election,
    Group,
    LeaderLatch,
    Lock,
    Once,
    Queue,
    ReadWriteLock,
    Semaphore,
    Ticket,
    WorkQueue,
    lock_states,
)
from latchwork.primitives import forget as forget_name
from latchwork.store import Store

#: Of a value so many bytes are shown.
_MOST_SHOWN = 200


def _describe_lock(store: Store, name: str) -> dict[str, Any]:
    with closing(Lock(store, name)) as lock:
        holder = lock.holder()
        return {
            "holders": [] if holder is None else [_describe_ticket(holder)],
            "waiters": _describe_tickets(lock.waiters()),
        }


def _describe_rwlock(store: Store, name: str) -> dict[str, Any]:
    with closing(ReadWriteLock(store, name)) as lock:
        holders = [{**_describe_ticket(each), "mode": str(each.body.get("mode", "?"))} for each in lock.holders()]
        waiters = [{**_describe_ticket(each), "mode": str(each.body.get("mode", "?"))} for each in lock.waiters()]
    return {"holders": holders, "waiters": waiters}


def _describe_semaphore(store: Store, name: str) -> dict[str, Any]:
    with closing(Semaphore(store, name)) as semaphore:
        return {
            "leases": semaphore.size(),
            "holders": _describe_tickets(semaphore.holders()),
            "waiters": _describe_tickets(semaphore.waiters()),
        }


def _describe_latch(store: Store, name: str) -> dict[str, Any]:
    latch = LeaderLatch(store, name, node_id="-")  # it looks, and never stands
    return {"candidates": [{"node": each.node_id, "token": each.token} for each in latch.candidates()]}


def _describe_election(store: Store, name: str) -> dict[str, Any]:
    with closing(Election(store, name, node_id="-")) as election:
        found = election.candidates()
    return {
        "candidates": [{"node": each.node_id, "token": each.token, "value": _format_text(each.value)} for each in found]
    }


def _describe_once(store: Store, name: str) -> dict[str, Any]:
    with closing(Once(store, name)) as once:
        try:
            result, failure = once.outcome(), None
        except OnceFailed as error:
            result, failure = None, str(error)
        runner = once.runner()
        return {
            "outcome": "failed" if failure else "none yet" if result is None else "done",
            "result": None if result is None else _format_text(result),
            "failure": failure,
            "runner": [] if runner is None else [_describe_ticket(runner)],
            "waiters": _describe_tickets(once.waiters()),
        }


def _describe_persistent_lock(store: Store, name: str) -> dict[str, Any]:
    found = next((each for each in lock_states(store) if each.name == name), None)
    if found is None or found.holder is None:
        return {"holders": []}
    who = found.holder
    return {"holders": [{"label": who.label, "host": who.host, "pid": who.pid, "token": found.token}]}


def _describe_queue(store: Store, name: str) -> dict[str, Any]:
    with closing(Queue(store, name)) as queue:
        return {
            "items": queue.size(),
            "claims": [{"item": item, **_describe_ticket(each)} for item, each in sorted(queue.claims().items())],
            "waiting_consumers": _describe_tickets(queue.waiting_consumers()),
            "dead_letters": len(queue.dead_letters()),
        }


def _describe_work_queue(store: Store, name: str) -> dict[str, Any]:
    with closing(WorkQueue(store, name)) as queue:
        partitions = queue.partitions()
        return {
            "partitions": [
                {
                    "partition": partition,
                    "items": queue.size(partition),
                    "waiting_consumers": len(queue.waiting_consumers(partition)),
                }
                for partition in partitions
            ],
            "claims": [{"item": item, **_describe_ticket(each)} for item, each in queue.claims().items()],
            "dead_letters": [
                {"id": dead.dead_letter_id, "item": dead.path, "attempts": dead.attempts, "why": dead.why}
                for dead in queue.dead_letters()
            ],
        }


def _describe_group(store: Store, name: str) -> dict[str, Any]:
    with closing(Group(store, name)) as found:
        return {
            "members": [
                {"id": each.id, "host": each.host, "pid": each.pid, "labels": dict(each.labels)}
                for each in found.members()
            ]
        }


_KINDS: dict[str, Callable[[Store, str], dict[str, Any]]] = {
    "lock": _describe_lock,
    "rwlock": _describe_rwlock,
    "persistent-lock": _describe_persistent_lock,
    "semaphore": _describe_semaphore,
    "latch": _describe_latch,
    "election": _describe_election,
    "once": _describe_once,
    "queue": _describe_queue,
    "work-queue": _describe_work_queue,
    "counter": lambda store, name: {"value": Counter(store, name).value()},
    "group": _describe_group,
}

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the primitive.")]


@command("latchwork show lock backup --url sqlite:///jobs.db", "latchwork show election scheduler --json")
def show(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(_KINDS)}.")],
    name: Name,
    *,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show a primitive: its holders, its waiters and its contents.

    The command only reads. A name that was never used is shown as free or empty.
    """
    look = _KINDS.get(kind)
    if look is None:
        raise UsageError(f"there is no kind {kind!r}; give one of {', '.join(_KINDS)}")
    try:
        with open_store(url, of_cluster=False) as store:
            found = look(store, name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if as_json:
        say_json(found)
        return
    for field, value in found.items():
        told = "none" if value in (None, []) else value
        if not isinstance(told, list):
            say(f"{field}: {told}")
            continue
        say(f"{field}:")
        for row in told:
            say("  " + "  ".join(f"{key}={part}" for key, part in row.items()))


@command("latchwork once reset migrate-7 --url sqlite:///jobs.db")
def reset(name: Name, *, url: Url = None) -> None:
    """Reset a `Once`: delete its outcome and its starts, so that the next `run` runs it again."""
    try:
        with open_store(url, of_cluster=False) as store, closing(Once(store, name)) as once:
            before = _describe_once(store, name)["outcome"]
            once.reset()
    except ValueError as error:
        raise UsageError(str(error)) from None
    say(f"{name}: forgotten, its outcome was: {before}")


@command("latchwork forget orders/17 --url sqlite:///jobs.db")
def forget(name: Name, *, url: Url = None) -> None:
    """Remove the records of an unused primitive. Refused while it is in use."""
    try:
        with open_store(url, of_cluster=False) as store:
            removed = forget_name(store, name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    say(f"{name}: {counted(removed, 'key')} removed")


once_app = group("Actions that run once in a cluster.", reset=reset)


def _describe_tickets(found: Iterable[Ticket]) -> list[dict[str, Any]]:
    return [_describe_ticket(each) for each in found]


def _describe_ticket(found: Ticket) -> dict[str, Any]:
    return {"label": found.label, "host": found.host, "pid": found.pid, "token": found.token}


def _format_text(value: bytes) -> str:
    """Format a stored value as text. If it is too long to be shown, shorten it."""
    cut = f" and {len(value) - _MOST_SHOWN} bytes more" if len(value) > _MOST_SHOWN else ""
    return value[:_MOST_SHOWN].decode("utf-8", "backslashreplace") + cut
