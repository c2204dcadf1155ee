"""The sequential specification of a store: the effect and the answer of each call if calls are made one after another.

No I/O.

A state is a tuple with one item per key, and the greatest token so far. An item is (value, token, created). A token of
0 is unknown: it belongs to a write of unknown outcome whose value no client has read.
"""

from __future__ import annotations

from collections.abc import Mapping

from latchwork_testkit.histories.calls import CONFLICT, OK, UNKNOWN, Call, Check, History, Operation, ReportedEntry

Item = tuple[str, int, int]
State = tuple[tuple["Item | None", ...], int]


class SequentialSpec:
    """The sequential specification of a store with a fixed set of keys.

    Args:
        keys: All keys of the history.
        entries: Every entry that any answer contained, by token and key. They show the tokens of writes of unknown
            outcome.
    """

    def __init__(self, keys: tuple[str, ...], entries: Mapping[tuple[int, str], ReportedEntry]) -> None:
        self._index = {key: index for index, key in enumerate(keys)}
        self._entries = entries

    def get_initial_state(self, history: History) -> State:
        """Return the state of the store at the beginning of a history."""
        items = [history.start.get(key) for key in history.keys]
        return tuple(None if each is None else (each.value, each.token, each.created) for each in items), history.after

    def compute_state_after(self, state: State, call: Call, token: int | None) -> State | None:
        """Return the state after a call, or None if the call cannot have had its response in this state.

        Args:
            state: State before the call.
            call: The call. If its outcome is unknown, it is assumed to be applied.
            token: Token of the commit, if it is known.
        """
        if call.is_read:
            return state if self._matches(state[0][self._index[call.key]], call.found) else None
        if call.outcome == CONFLICT:
            return state if all(not self._is_satisfied(state[0], each) for each in call.failed) else None
        if not all(self._is_satisfied(state[0], each) for each in (*call.checks, *call.ops)):
            return None
        if token and token <= state[1]:
            return None
        return self._apply(state, call, token or 0)

    def _matches(self, item: Item | None, found: ReportedEntry | None) -> bool:
        if item is None or found is None:
            return item is None and found is None
        value, token, created = item
        return value == found.value and token == found.token and created in {0, found.created}

    def _is_satisfied(self, items: tuple[Item | None, ...], each: Check | Operation) -> bool:
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
            item = self._compute_state_after_put(items[at], op, token, answers.get(op.key))
            if item is None:
                return None
            items[at] = item
        if call.outcome == OK and tuple(deleted) != call.deleted:
            return None
        return tuple(items), max(state[1], token)

    def _compute_state_after_put(
        self, before: Item | None, op: Operation, token: int, response_entry: ReportedEntry | None
    ) -> Item | None:
        """Return the state of a key after a put, or None if the response contradicts it.

        Args:
            before: The state before: value, token and creation token. None: the key does not exist.
            op: The put.
            token: Token of the commit.
            response_entry: The entry that the response contained. None: it contained none.
        """
        created = token if before is None else before[2]
        reported = response_entry or self._entries.get((token, op.key))
        if reported is not None:
            if created not in {0, reported.created} or reported.value != op.value or reported.created > reported.token:
                return None
            created = reported.created
        return op.value, token, created


def is_unobserved(call: Call, token: int | None) -> bool:
    """Return whether a write has an unknown outcome and no response shows its effect. It may not have been applied."""
    return call.outcome == UNKNOWN and not call.is_read and token is None
