"""Checks a history by the rules for tokens alone, which is cheap and gives clear messages. No I/O.

The store promises that tokens are a total order of its writes. Therefore:

- A token belongs to one commit, and every answer shows the same write for it.
- A write that began after another one had been answered has the greater token.
- A read shows the value of a write that was not refused and had begun before the read ended.
- No read shows a write that was overwritten before the read began, or that is older than an earlier read showed.

This finds most violations and names both calls. Deletions, whose token no answer contains, and checks are left to
``search``.
"""

from __future__ import annotations

from bisect import bisect_left

from latchwork_testkit.histories.calls import OK, REFUSED, UNKNOWN, Call, History, ReportedEntry


def check_tokens(history: History) -> list[str]:
    """Return a sentence for each violation of the rules for tokens."""
    return [
        *_check_uniqueness(history),
        *_check_real_time(history),
        *_check_origins(history),
        *_check_reads(history),
    ]


def _writes(history: History) -> list[Call]:
    return [call for call in history.calls if call.outcome == OK and call.token and not call.changes_nothing]


def _check_uniqueness(history: History) -> list[str]:
    problems, writer, first_reports = [], {}, {}
    for call in _writes(history):
        if writer.setdefault(call.token, call) is not call:
            problems.append(
                f"token {call.token} was given to two commits: {writer[call.token].describe()} | {call.describe()}"
            )
        if call.token <= history.after:
            problems.append(f"token {call.token} is not greater than {history.after}, given earlier: {call.describe()}")
    for call, entry in _reported_entries(history):
        if first_reports.setdefault((entry.token, entry.key), entry) != entry:
            problems.append(
                f"one write was shown in two ways, first as {first_reports[entry.token, entry.key]}: {call.describe()}"
            )
    return problems


def _reported_entries(history: History) -> list[tuple[Call, ReportedEntry]]:
    found = [(call, call.found) for call in history.calls if call.found is not None]
    return found + [(call, each) for call in history.calls for each in call.written]


def _check_real_time(history: History) -> list[str]:
    """Check that each write has a greater token than all writes that had a response before it began."""
    problems = []
    writes = _writes(history)
    answered = sorted(writes, key=lambda call: call.returned)
    greatest, at = None, 0
    for call in sorted(writes, key=lambda each: each.invoked):
        while answered[at].returned < call.invoked:
            if greatest is None or answered[at].token > greatest.token:
                greatest = answered[at]
            at += 1
        if greatest is not None and greatest.token >= call.token:
            problems.append(f"a later write has a smaller token: first {greatest.describe()} | then {call.describe()}")
    return problems


def _check_origins(history: History) -> list[str]:
    """Check that every value that was read comes from a write that had begun before and may have been applied."""
    origin = {(op.key, op.value): call for call in history.calls for op in call.ops if op.kind != "delete"}
    problems = []
    for call, entry in _reported_entries(history):
        if entry == history.start.get(entry.key):
            continue
        source = origin.get((entry.key, entry.value))
        if source is None:
            problems.append(f"no call wrote the value that was shown: {call.describe()}")
        elif source.outcome not in {OK, UNKNOWN}:
            what = "refused" if source.outcome == REFUSED else "in conflict"
            problems.append(f"a write that was {what} took effect: {source.describe()} | {call.describe()}")
        elif source.invoked > (call.returned or source.invoked):
            problems.append(f"shown before it was written: {source.describe()} | {call.describe()}")
    return problems


def _check_reads(history: History) -> list[str]:
    problems = []
    for key in history.keys:
        reported = sorted(_list_reported_tokens(history, key))
        ends = [returned for returned, _, _ in reported]
        newest: list[tuple[int, str]] = []
        for _, token, description in reported:
            newest.append(max(newest[-1], (token, description)) if newest else (token, description))
        for call in history.calls:
            if call.found is None or call.key != key:
                continue
            before = bisect_left(ends, call.invoked)
            if before and newest[before - 1][0] > call.found.token:
                problems.append(f"stale read: {newest[before - 1][1]} | then {call.describe()}")
    return problems


def _list_reported_tokens(history: History, key: str) -> list[tuple[int, int, str]]:
    """Return every token of a key that a response contained, in the order of the calls.

    Returns:
        The time of the response, the token, and a description of the call.
    """
    reported = []
    for call in history.calls:
        entry = [call.found] if call.found is not None and call.key == key else []
        entry += [each for each in call.written if each.key == key]
        reported += [(call.returned, each.token, call.describe()) for each in entry]
    return reported
