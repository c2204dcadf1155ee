"""Judges a history by its tokens and by search, and shortens a bad one so that it can be read. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from latchwork_testkit.histories.calls import History, Seen
from latchwork_testkit.histories.search import Verdict, search
from latchwork_testkit.histories.spec import Item, State
from latchwork_testkit.histories.tokens import check_tokens


@dataclass
class Judgement:
    """Whether a history is linearizable.

    Attributes:
        problems: Sentences; empty if it is linearizable.
        verdict: Verdict of the search.
    """

    problems: list[str]
    verdict: Verdict

    @property
    def is_good(self) -> bool:
        """Whether the history is linearizable."""
        return not self.problems


def judge(history: History) -> Judgement:
    """Check a history in both ways. A problem found in either way makes it bad."""
    problems = check_tokens(history)
    verdict = search(history)
    if verdict.culprit is not None:
        states = " or ".join(_describe(history, state) for state in verdict.before[:3])
        problems.append(f"no order of the calls explains {verdict.culprit.describe()}; the store held {states}")
    return Judgement(problems, verdict)


def minimize(history: History) -> History:
    """Return a shorter history that is bad as well, without its end, its beginning and calls that changed nothing.

    Writes stay, because without them the rest would be bad for another reason. Writes are left out only before the last
    point in time at which the state of the store was certain.

    Raises:
        ValueError: The history is good.
    """
    if judge(history).is_good:
        raise ValueError("the history is good: there is nothing to make smaller")
    small = _while_bad(_without_end(history), history)
    small = _while_bad(_without_beginning(small), small)
    step = max(1, len(small.calls) // 2)
    while step:
        small = _drop_idle(small, step)
        step //= 2
    return small


def _while_bad(candidate: History, otherwise: History) -> History:
    return otherwise if judge(candidate).is_good else candidate


def _without_end(history: History) -> History:
    culprit = search(history).culprit
    if culprit is None or culprit.returned is None:
        return history
    kept = [call for call in history.calls if call.invoked <= culprit.returned]
    return replace(history, calls=kept)


def _without_beginning(history: History) -> History:
    moment = search(history).certain
    if moment is None:
        return history
    items, after = moment.state
    start = {key: _seen(key, item) for key, item in zip(history.keys, items, strict=True)}
    kept = [call for call in history.calls if call.returned is None or call.returned > moment.at]
    return History(history.keys, start, after, [call for call in kept if call.number not in moment.done])


def _drop_idle(history: History, step: int) -> History:
    """Leave out calls that changed nothing, in runs of this length, as long as the history stays bad."""
    at = 0
    while at < len(history.calls):
        chosen = history.calls[at : at + step]
        kept = [call for call in chosen if not call.changes_nothing]
        smaller = replace(history, calls=history.calls[:at] + kept + history.calls[at + step :])
        if len(kept) < len(chosen) and not judge(smaller).is_good:
            history = smaller
            at += len(kept)
        else:
            at += step
    return history


def timeline(history: History) -> str:
    """Format a history: each call with its times in milliseconds from the beginning."""
    first = min((call.invoked for call in history.calls), default=0)

    def ms(moment: int | None) -> str:
        return f"{(moment - first) / 1e6:10.3f}" if moment is not None else "      open"

    lines = [f"keys at first: {_describe(history, _start_state(history))}"]
    calls = sorted(history.calls, key=lambda each: each.invoked)
    lines += [f"{ms(call.invoked)} - {ms(call.returned)}  {call.describe()}" for call in calls]
    return "\n".join(lines) + "\n"


def _start_state(history: History) -> State:
    found = [history.start.get(key) for key in history.keys]
    return tuple(None if each is None else (each.value, each.token, each.created) for each in found), history.after


def _describe(history: History, state: State) -> str:
    pairs: list[tuple[str, Item | None]] = list(zip(history.keys, state[0], strict=True))
    return ", ".join(f"{key}={item[0]} (token {item[1]})" if item else f"no {key}" for key, item in pairs)


def _seen(key: str, item: Item | None) -> Seen | None:
    return None if item is None else Seen(key, *item)
