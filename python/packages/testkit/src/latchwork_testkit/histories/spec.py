"""The sequential specification of a store: the effect and the answer of each call, one after the other. Pure.

A state is a tuple with one item per key, and the greatest token so far. An item is (value, token, created). A token of
0 is unknown: it belongs to a write of unknown outcome whose value no one has read.
"""

from __future__ import annotations

from collections.abc import Mapping

from latchwork_testkit.histories.calls import CONFLICT, OK, UNKNOWN, Call, Check, History, Op, Seen

Item = tuple[str, int, int]
State = tuple[tuple["Item | None", ...], int]


class Spec:
    """The rules for a set of keys.

    Args:
        keys: All keys of the history.
        seen: Every entry that any answer contained, by token and key. It shows the tokens of writes of unknown outcome.
    """

    def __init__(self, keys: tuple[str, ...], seen: Mapping[tuple[int, str], Seen]) -> None:
        self._index = {key: index for index, key in enumerate(keys)}
        self._seen = seen

    def start(self, history: History) -> State:
        """Return the state at the beginning of a history."""
        items = [history.start.get(key) for key in history.keys]
        return tuple(None if each is None else (each.value, each.token, each.created) for each in items), history.after

    def next(self, state: State, call: Call, token: int | None) -> State | None:
        """Return the state after a call; None if the call cannot have given its answer in this state.

        Args:
            state: State before the call.
            call: The call. An unknown outcome counts as applied.
            token: Token of the commit, if known.
        """
        if call.is_read:
            return state if self._matches(state[0][self._index[call.key]], call.found) else None
        if call.outcome == CONFLICT:
            return state if all(not self._holds(state[0], each) for each in call.failed) else None
        if not all(self._holds(state[0], each) for each in (*call.checks, *call.ops)):
            return None
        if token and token <= state[1]:
            return None
        return self._apply(state, call, token or 0)

    def _matches(self, item: Item | None, found: Seen | None) -> bool:
        if item is None or found is None:
            return item is None and found is None
        value, token, created = item
        return value == found.value and token == found.token and created in {0, found.created}

    def _holds(self, items: tuple[Item | None, ...], each: Check | Op) -> bool:
        if each.kind in {"put", "delete"}:
            return True
        item = items[self._index[each.key]]
        if each.kind == "at":
            return item is not None and item[1] == each.token
        return (item is not None) == (each.kind == "exists")

    def _apply(self, state: State, call: Call, token: int) -> State | None:
        items = list(state[0])
        answers = {each.key: each for each in call.written}
        deleted = []
        for op in call.ops:
            at = self._index[op.key]
            if op.kind == "delete":
                if items[at] is not None:
                    deleted.append(op.key)
                items[at] = None
                continue
            item = self._written(items[at], op, token, answers.get(op.key))
            if item is None:
                return None
            items[at] = item
        if call.outcome == OK and tuple(deleted) != call.deleted:
            return None
        return tuple(items), max(state[1], token)

    def _written(self, before: Item | None, op: Op, token: int, answer: Seen | None) -> Item | None:
        """Return the item of a key after a put; None if the answer or what others read contradicts it."""
        created = token if before is None else before[2]
        told = answer or self._seen.get((token, op.key))
        if told is not None:
            if created not in {0, told.created} or told.value != op.value or told.created > told.token:
                return None
            created = told.created
        return op.value, token, created


def is_optional(call: Call, token: int | None) -> bool:
    """Return whether a call may have been applied or not, and left no trace in any answer."""
    return call.outcome == UNKNOWN and not call.is_read and token is None
