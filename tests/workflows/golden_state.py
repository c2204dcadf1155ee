"""Stories of runs: files that say what happens and, below each line, what is known then.

    plan on_failure=end
      extract  retries=1 retry_interval_s=30
      load  after=extract
    at 0 start
      running | extract submitted 1 | load waiting
    at 1 claimed extract 1
      ...

Several events of one time are parted by ``;``. ``refused:`` is the error of a command. This file, run, writes what is
below the lines anew: read the difference.
"""

import sys
from pathlib import Path

from latchwork.errors import LatchworkError
from latchwork_workflows.state import (
    ChildForced,
    ChildPaused,
    Chose,
    Claimed,
    Ended,
    Expanded,
    ForceStart,
    ForceSuccess,
    Lost,
    OnFailure,
    OnTimeout,
    Outcome,
    Pause,
    Recover,
    Removed,
    Rerun,
    Resume,
    Scope,
    SeenFailed,
    Start,
    Stop,
    TaskRule,
    Wake,
    WorkflowPlan,
    WorkflowRun,
    advance,
    conditions,
)

STORIES = Path(__file__).parent / "golden"
PLAIN = {"pause": Pause, "resume": Resume, "stop": Stop, "rerun": Rerun, "wake": Wake}
OF_HELD = {"child_paused": ChildPaused, "seen_failed": SeenFailed}
OF_A_TASK = {"force_success": ForceSuccess, "force_start": ForceStart}


def options(words):
    return dict(word.split("=", 1) for word in words if "=" in word)


def number(text):
    return float(text) if "." in text else int(text)


def rule_of(words):
    given = options(words)
    values = {}
    for name, text in given.items():
        if name == "after":
            values[name] = tuple(text.split(","))
        elif name == "kind":
            values[name] = text
        elif name == "maps":
            values[name] = text == "yes"
        elif name == "branches":  # success/failure, or those of a switch
            parts = tuple(tuple(filter(None, each.split(","))) for each in text.split("/"))
            values |= {"heads": tuple(each for part in parts for each in part), "branches": (*parts, (), ())[:2]}
        elif name == "when":
            values[name] = conditions.AllOf(tuple(ended_of(each) for each in text.split(",")))
        elif name == "on_timeout":
            values[name] = OnTimeout(text)
        elif name == "enabled":
            values[name] = text == "yes"
        else:
            values[name] = number(text)
    return TaskRule(**values)


def ended_of(text):
    return conditions.TaskEnded(text.removeprefix("!"), failed=text.startswith("!"))


def plan_of(head, lines):
    given = options(head.split())
    return WorkflowPlan(
        {line.split()[0]: rule_of(line.split()[1:]) for line in lines},
        on_failure=OnFailure(given.get("on_failure", "continue")),
        timeout_s=number(given["timeout_s"]) if "timeout_s" in given else None,
        on_timeout=OnTimeout(given.get("on_timeout", "warn")),
    )


def event_of(text):
    kind, *words = text.split()
    given = options(words)
    if kind in PLAIN:
        return PLAIN[kind]()
    if kind in OF_A_TASK:
        return OF_A_TASK[kind](words[0])
    chosen = tuple(given.get("from", "").split(",")) if "from" in given else ()
    if kind == "start":
        return Start(chosen, Scope(given.get("scope", "downstream")), dry="dry" in words)
    if kind == "recover":
        return Recover(chosen)
    run = int(given.get("run", "1"))
    if kind == "child_forced":
        return ChildForced(words[0], run)
    task, n = words[0], int(words[1])
    if kind == "chose":
        return Chose(task, n, tuple(words[2:]), run)
    if kind == "expanded":
        return Expanded(task, n, int(words[2]), run)
    if kind == "ended":
        return Ended(task, n, Outcome(words[2]), run)
    return {"claimed": Claimed, "lost": Lost, "removed": Removed, **OF_HELD}[kind](task, n, run)


def seen(run):
    """What is known, as the lines below an event."""
    tasks = []
    for name, task in run.tasks.items():
        words = [name, task.state.value, str(task.n) if task.n else ""]
        words.append(f"wakes {task.wake_at:g}" if task.wake_at is not None else "")
        words.append(f"failures {task.failures}" if task.failures else "")
        words.append("held" if task.runs_on_master else "")
        words.append(f"until {task.fails_at:g}" if task.fails_at is not None else "")
        words.append("cut" if task.is_cut else "")
        words.append(f"chose {','.join(task.chosen) or 'nothing'}" if task.chosen is not None else "")
        words.append("to remove" if name in run.tasks_to_withdraw else "")
        words.append("to kill" if name in run.tasks_to_kill else "")
        tasks.append(" ".join(word for word in words if word))
    state = run.state.value
    state += f" run {run.round}" if run.round > 1 else ""
    state += f" ending: {run.ending}" if run.ending else ""
    state += f" warns {run.warn_at:g}" if run.warn_at is not None else ""
    lines = ["  " + " | ".join([state, *tasks])]
    if run.calls:
        lines.append("  calls: " + ", ".join(f"{each.kind} {each.task}" for each in run.calls))
    if run.timeline_events:
        told = [
            " ".join(word for word in (each.kind, each.task, str(each.n or "")) if word) for each in run.timeline_events
        ]
        lines.append("  tells: " + ", ".join(told))
    return lines


def told(path):
    """The story with what is known below each event, as the code has it."""
    lines = path.read_text().splitlines()
    result, plan, run = [], None, WorkflowRun()
    rows = iter(enumerate(lines))
    for index, line in rows:
        if line.startswith("plan"):
            body = []
            result.append(line)
            for each in lines[index + 1 :]:
                if not each.startswith("  "):
                    break
                body.append(each)
            result += body
            plan, run = plan_of(line[4:], body), WorkflowRun()
        elif line.startswith("at "):
            result.append(line)
            _, moment, *events = line.split(" ", 2)
            try:
                run = advance(plan, run, [event_of(each) for part in events for each in part.split(";")], float(moment))
                result += seen(run)
            except LatchworkError as error:
                result.append(f"  refused: {error}")
        elif not line.startswith("  "):
            result.append(line)
    return "\n".join(result) + "\n"


if __name__ == "__main__":
    for story in [Path(name) for name in sys.argv[1:]] or sorted(STORIES.glob("*.txt")):
        story.write_text(told(story))
