"""Checks a history by its tokens alone, which is cheap and gives plain messages. Pure.

The store promises that tokens are a total order of its writes. So before any search:

- A token belongs to one commit, and every answer shows the same write for it.
- A write that began after another had been answered has the greater token.
- A read shows the value of some write that was not refused and had begun before the read ended.
- No read shows a write that was overwritten before the read began, or that is older than an earlier read showed.

This finds most violations and names both calls. Deletions, whose token no answer contains, and checks are left to
``search``.
"""

from __future__ import annotations

from bisect import bisect_left

from latchwork_testkit.histories.calls import OK, REFUSED, UNKNOWN, Call, History, Seen


def check_tokens(history: History) -> list[str]:
    """Return the problems, one sentence each; empty if the tokens show none."""
    return [
        *_check_uniqueness(history),
        *_check_real_time(history),
        *_check_origins(history),
        *_check_reads(history),
    ]


def _writes(history: History) -> list[Call]:
    return [call for call in history.calls if call.outcome == OK and call.token and not call.changes_nothing]


def _check_uniqueness(history: History) -> list[str]:
    problems, writer, shown = [], {}, {}
    for call in _writes(history):
        if writer.setdefault(call.token, call) is not call:
            problems.append(
                f"token {call.token} was given to two commits: {writer[call.token].describe()} | {call.describe()}"
            )
        if call.token <= history.after:
            problems.append(f"token {call.token} is not greater than {history.after}, given earlier: {call.describe()}")
    for call, seen in _shown(history):
        if shown.setdefault((seen.token, seen.key), seen) != seen:
            problems.append(
                f"one write was shown in two ways, first as {shown[seen.token, seen.key]}: {call.describe()}"
            )
    return problems


def _shown(history: History) -> list[tuple[Call, Seen]]:
    found = [(call, call.found) for call in history.calls if call.found is not None]
    return found + [(call, each) for call in history.calls for each in call.written]


def _check_real_time(history: History) -> list[str]:
    """Check writes in the order of their invocations: each has a greater token than all writes answered before."""
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
    """Check that every value read was written by a call that had begun and may have been applied."""
    origin = {(op.key, op.value): call for call in history.calls for op in call.ops if op.kind != "delete"}
    problems = []
    for call, seen in _shown(history):
        if seen == history.start.get(seen.key):
            continue
        source = origin.get((seen.key, seen.value))
        if source is None:
            problems.append(f"nobody wrote what was shown: {call.describe()}")
        elif source.outcome not in {OK, UNKNOWN}:
            what = "refused" if source.outcome == REFUSED else "in conflict"
            problems.append(f"a write that was {what} took effect: {source.describe()} | {call.describe()}")
        elif source.invoked > (call.returned or source.invoked):
            problems.append(f"shown before it was written: {source.describe()} | {call.describe()}")
    return problems


def _check_reads(history: History) -> list[str]:
    problems = []
    for key in history.keys:
        known = sorted(_known_at(history, key))
        ends = [returned for returned, _, _ in known]
        newest: list[tuple[int, str]] = []
        for _, token, told in known:
            newest.append(max(newest[-1], (token, told)) if newest else (token, told))
        for call in history.calls:
            if call.found is None or call.key != key:
                continue
            before = bisect_left(ends, call.invoked)
            if before and newest[before - 1][0] > call.found.token:
                problems.append(f"stale read: {newest[before - 1][1]} | then {call.describe()}")
    return problems


def _known_at(history: History, key: str) -> list[tuple[int, int, str]]:
    """Return when an answer showed which token of a key: (time, token, description of the call)."""
    known = []
    for call in history.calls:
        seen = [call.found] if call.found is not None and call.key == key else []
        seen += [each for each in call.written if each.key == key]
        known += [(call.returned, each.token, call.describe()) for each in seen]
    return known
