"""What a referee of workflows reads once all is quiet: the database, the journal, and what is in the store."""

from __future__ import annotations

import sqlalchemy as sa

from latchwork_workflows.db import tables
from trials.judges.workflows import Attempt, Command, Facts, Fire, Run, Task, line_of


def facts_of(database, folder, **more):
    """All of it; ``more`` are the other fields of ``Facts``."""
    names = sa.select(tables.definition.c.code, tables.definition.c.name)
    with database.read() as connection:
        name_of = {row.code: row.name for row in connection.execute(names)}

        def rows(table, kind, *columns):
            return [kind(*row) for row in connection.execute(sa.select(*(table.c[each] for each in columns)))]

        found = {
            "fires": [
                Fire(name_of[code], at, number) for code, at, number in connection.execute(sa.select(tables.fire))
            ],
            "commands": [
                Command(number, kind, of, key, done is not None, error)
                for number, kind, of, key, done, error in rows(
                    tables.command, _plain, "id", "type", "run_id", "unique_key", "done_at", "error"
                )
            ],
            "runs": [
                Run(number, name_of[code], *rest)
                for number, code, *rest in rows(
                    tables.workflow_run, _plain, "id", "code", "state", "round", "schedule_time", "ended_at"
                )
            ],
            "tasks": [
                Task(number, of, name if index < 0 else f"{name}[{index}]", *rest)
                for number, of, name, index, *rest in rows(
                    tables.task, _plain, "id", "run_id", "name", "map_index", "round", "state", "n"
                )
            ],
            "attempts": rows(tables.attempt, Attempt, "task", "n", "claim", "outcome", "ended_at"),
        }
    return Facts(lines=lines_of(folder), **found, **more)


def _plain(*row):
    return row


def lines_of(folder):
    """What attempts wrote, in their order; a line that a kill has cut short is none."""
    path = folder / "journal"
    found = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(line_of(text))
        except ValueError:
            continue
    return found


def left_of(store, keys):
    """What no run that is over leaves: items, who runs, slots, results, cancels, second parts of specs."""
    prefixes = (keys.backlog, keys.shards, keys.cancels, keys.every_data, keys.slots)
    found = [entry.key for prefix in prefixes for entry in store.list(prefix, recursive=True)]
    stays = ("/sort_keys/", "/consumers/", "/holders/")
    return [key for key in found if not (any(part in key for part in stays) or key.endswith(("/poke", "/size")))]
