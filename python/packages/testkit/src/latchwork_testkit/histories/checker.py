"""Checks whether a history is linearizable, and minimizes one that is not so that it can be read. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace

from latchwork_testkit.histories.calls import History, ReportedEntry
from latchwork_testkit.histories.search import SearchResult, search_linearization
from latchwork_testkit.histories.spec import Item, State
from latchwork_testkit.histories.tokens import check_tokens


@dataclass
class HistoryCheck:
    """The result of checking a history.

    Attributes:
        problems: A sentence for each violation. Empty if the history is linearizable.
        search: Result of the search for an order of the calls.
    """

    problems: list[str]
    search: SearchResult

    @property
    def is_linearizable(self) -> bool:
        """Whether the history is linearizable."""
        return not self.problems


def check_history(history: History) -> HistoryCheck:
    """Check whether a history is linearizable.

    Checks first that the tokens of entries grow with each commit, then searches for an order of the calls that explains
    all responses.

    Returns:
        All problems that were found, and the result of the search.
    """
    problems = check_tokens(history)
    result = search_linearization(history)
    if result.unexplained is not None:
        states = " or ".join(_describe_state(history, state) for state in result.states_before[:3])
        problems.append(f"no order of the calls explains {result.unexplained.describe()}; the store held {states}")
    return HistoryCheck(problems, result)


def minimize_history(history: History) -> History:
    """Shorten a history that is not linearizable, so that it can be read. The result is not linearizable either.

    Removes calls from the end, calls from the beginning, and calls that changed nothing. Writes are removed only before
    the last time at which the state of the store was certain, because without them later calls would be wrong for
    another reason.

    Raises:
        ValueError: The history is linearizable.
    """
    if check_history(history).is_linearizable:
        raise ValueError("the history is good: there is nothing to minimize")
    small = _candidate_if_bad(_cut_end(history), history)
    small = _candidate_if_bad(_cut_beginning(small), small)
    step = max(1, len(small.calls) // 2)
    while step:
        small = _drop_unchanging_calls(small, step)
        step //= 2
    return small


def _candidate_if_bad(candidate: History, otherwise: History) -> History:
    return otherwise if check_history(candidate).is_linearizable else candidate


def _cut_end(history: History) -> History:
    unexplained = search_linearization(history).unexplained
    if unexplained is None or unexplained.returned is None:
        return history
    kept = [call for call in history.calls if call.invoked <= unexplained.returned]
    return replace(history, calls=kept)


def _cut_beginning(history: History) -> History:
    certain = search_linearization(history).last_certain
    if certain is None:
        return history
    items, after = certain.state
    start = {key: _entry_of(key, item) for key, item in zip(history.keys, items, strict=True)}
    kept = [call for call in history.calls if call.returned is None or call.returned > certain.at]
    return History(history.keys, start, after, [call for call in kept if call.number not in certain.done])


def _drop_unchanging_calls(history: History, step: int) -> History:
    """Remove calls that changed nothing, as long as the history stays not linearizable.

    Args:
        history: The history.
        step: Number of calls to remove at a time.
    """
    at = 0
    while at < len(history.calls):
        chosen = history.calls[at : at + step]
        kept = [call for call in chosen if not call.changes_nothing]
        smaller = replace(history, calls=history.calls[:at] + kept + history.calls[at + step :])
        if len(kept) < len(chosen) and not check_history(smaller).is_linearizable:
            history = smaller
            at += len(kept)
        else:
            at += step
    return history


def format_timeline(history: History) -> str:
    """Return a history as text: a line for each call, with its times in milliseconds from the beginning."""
    first = min((call.invoked for call in history.calls), default=0)

    def ms(time_ns: int | None) -> str:
        return f"{(time_ns - first) / 1e6:10.3f}" if time_ns is not None else "      open"

    lines = [f"keys at the start: {_describe_state(history, _start_state(history))}"]
    calls = sorted(history.calls, key=lambda each: each.invoked)
    lines += [f"{ms(call.invoked)} - {ms(call.returned)}  {call.describe()}" for call in calls]
    return "\n".join(lines) + "\n"


def _start_state(history: History) -> State:
    found = [history.start.get(key) for key in history.keys]
    return tuple(None if each is None else (each.value, each.token, each.created) for each in found), history.after


def _describe_state(history: History, state: State) -> str:
    pairs: list[tuple[str, Item | None]] = list(zip(history.keys, state[0], strict=True))
    return ", ".join(f"{key}={item[0]} (token {item[1]})" if item else f"no {key}" for key, item in pairs)


def _entry_of(key: str, item: Item | None) -> ReportedEntry | None:
    return None if item is None else ReportedEntry(key, *item)
