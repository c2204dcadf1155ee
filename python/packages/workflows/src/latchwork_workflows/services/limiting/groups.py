"""Task groups: how many of their tasks run at a time, in all workers and workflows together."""

from __future__ import annotations

from typing import NamedTuple

from latchwork_workflows.db.history import told
from latchwork_workflows.db.policies import groups
from latchwork_workflows.db.views import slots
from latchwork_workflows.services.limiting.holding import Held, check_name, held
from latchwork_workflows.services.parts import Parts, need, need_any
from latchwork_workflows.web import Identity, Problem, Role

#: Whose master tells the store.
_TELLS = 0


class GroupSeen(NamedTuple):
    """A task group.

    Attributes:
        name: of it.
        size: so many of its tasks run at a time.
        used: how many run now; None: the store cannot be asked.
        waiting: how many are queued for a slot of it.
        workflows: that name it, as far as the asker may see them.
    """

    name: str
    size: int
    used: int | None
    waiting: int
    workflows: tuple[str, ...]


def listed(parts: Parts, who: Identity) -> list[GroupSeen]:
    """All task groups, by name.

    Raises:
        Problem: 403.
    """
    need_any(who)
    with parts.database.read() as connection:
        sizes, users = groups.sizes(connection), groups.users(connection)
        waiting = slots.waiting_counts(connection)
    used = parts.slots()
    return [
        GroupSeen(
            name,
            size,
            None if used is None else len(used.get(name, ())),
            waiting.get(name, 0),
            _visible(who, users.get(name, [])),
        )
        for name, size in sizes.items()
    ]


def find(parts: Parts, who: Identity, name: str, *, most: int = 100) -> tuple[GroupSeen, Held]:
    """A task group, who holds its slots and who waits for one.

    Raises:
        Problem: 403, 404.
    """
    need_any(who)
    with parts.database.read() as connection:
        size = groups.sizes(connection).get(name)
        if size is None:
            raise Problem(404, f"there is no task group {name[:100]!r}")
        users = groups.users(connection).get(name, [])
    taken = parts.slots()
    with parts.database.read() as connection:
        found = held(connection, who, name, taken, most=most)
    used = None if found.holders is None else len(found.holders)
    return GroupSeen(name, size, used, found.waiting_count, _visible(who, users)), found


def _visible(who: Identity, names: list[str]) -> tuple[str, ...]:
    return tuple(each for each in names if who.may(Role.VIEWER, each.partition(".")[0]))


def put(parts: Parts, who: Identity, name: str, size: int) -> None:
    """Make a group, or change how many of its tasks run at a time. What runs beyond a smaller size ends by itself.

    Raises:
        Problem: 403; 422, the name or the size is none.
    """
    need(who, Role.EDITOR)
    check_name("name", name)
    if not 1 <= size <= groups.MOST_SIZE:
        what = f"{size} is not from 1 to {groups.MOST_SIZE:,}"
        raise Problem(422, f"size: {what}", errors=[("size", what)])
    with parts.database.write() as connection:
        is_new = groups.put(connection, name, size)
        told(connection, "group set", by=who.name, details={"group": name, "size": size, "is_new": is_new})
    parts.poke(_TELLS)


def remove(parts: Parts, who: Identity, name: str) -> None:
    """Remove a group that no workflow names.

    Raises:
        Problem: 403; 404; 409 with the workflows that name it.
    """
    need(who, Role.EDITOR)
    with parts.database.write() as connection:
        users = groups.users(connection).get(name, [])
        if users:
            shown = ", ".join(users[:5]) + (f" and {len(users) - 5} more" if len(users) > 5 else "")
            raise Problem(409, f"task group {name} is named by {shown}; apply these without it first")
        if not groups.remove(connection, name):
            raise Problem(404, f"there is no task group {name[:100]!r}")
        told(connection, "group remove", by=who.name, details={"group": name})
    parts.poke(_TELLS)
