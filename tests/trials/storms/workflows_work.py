"""The workflows of a storm: what their tasks write, and what waits for what."""

from __future__ import annotations

from pathlib import Path

#: Fire times of these must all be started, however late.
PERIODS_S = {"tick": 2, "tock": 5}
#: A pool, and how many of its tasks run at a time.
POOL, POOL_SIZE = "few", 2

_HEAD = """
say() {
  printf '%s %s %s %s %s %s\\n' "$1" "$LATCHWORK_RUN" "$LATCHWORK_TASK" "$LATCHWORK_ATTEMPT" \\
    "$LATCHWORK_TOKEN" "$(date +%s.%N)" >> "$journal/journal"
}
exec 9>> "$journal/$LATCHWORK_RUN.$LATCHWORK_TASK.lock"
flock -n 9 || say overlap
"""
_SERIAL = """
exec 8>> "$journal/$LATCHWORK_WORKFLOW.lock"
flock -n 8 || say clash
"""


def shell(*after, sleep_s=0.05, fails=False, serial=False, **fields):
    """A task that writes when it begins and ends; one that ``fails`` does so in its first attempt."""
    end = '[ "$LATCHWORK_ATTEMPT" -gt 1 ] || { say fail; exit 3; }\n' if fails else ""
    script = f"{_HEAD}{_SERIAL if serial else ''}say begin\nsleep {sleep_s}\n{end}say end\n"
    return {"type": "shell", "params": {"script": script}, "after": list(after), **fields}


def _of(name, params=None, **tasks):
    rows = [{"name": task, **each} for task, each in tasks.items()]
    return {"name": name, "params": params or {}, "tasks": rows}


def _child(*after, **fields):
    return {"type": "sub_process", "params": {"workflow": "child"}, "after": list(after), **fields}


def definitions(folder: Path):
    """All of them; children before their parents."""
    again = {"retries": 3, "retry_interval_s": 0.3}
    made = [
        _of("child", c=shell(), d=shell("c", fails=True, **again)),
        _of(
            "dag",
            a=shell(),
            b=shell("a", fails=True, **again),
            c=shell("a", pool=POOL),
            d=shell("a", pool=POOL, sleep_s=0.3),
            e=shell("b", "c", "d"),
        ),
        _of("broken", x=shell(fails=True), y=shell("x")),
        _of("long", a=shell(sleep_s=1.0), b=shell("a", sleep_s=2.0), c=shell("a", sleep_s=0.5), d=shell("b", "c")),
        _of(
            "family",
            a=shell(),
            sub=_child("a"),
            fan=_child("a", map=[1, 2]),
            m=shell("a", map=[1, 2, 3]),
            z=shell("sub", "fan", "m"),
        ),
        _of("dates", t=shell(sleep_s=0.2)),
        {**_of("one", t=shell(sleep_s=0.4, serial=True)), "serial": "wait"},
        _of("waits", dep={"type": "dependent", "params": {"on": "dag"}}, t=shell("dep")),
    ]
    for name, every_s in PERIODS_S.items():
        cron = {"cron": f"*/{every_s} * * * * *", "misfire": "all", "max_lateness_s": 3600}
        made.append({**_of(name, t=shell()), "schedule": cron})
    for each in made:
        each["params"] = {**each["params"], "journal": str(folder)}
    return made


def written_after(made):
    """What each task waits for, of those that write: a task of masters is left out."""
    found = {}
    for each in made:
        writers = {task["name"] for task in each["tasks"] if task["type"] == "shell"}
        found[each["name"]] = {
            task["name"]: [of for of in task.get("after", ()) if of in writers and "map" not in _named(each, of)]
            for task in each["tasks"]
            if task["name"] in writers
        }
    return found


def _named(definition, name):
    return next(each for each in definition["tasks"] if each["name"] == name)
