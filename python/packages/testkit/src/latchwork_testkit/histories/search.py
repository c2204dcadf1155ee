"""Checks linearizability by search: is there an order of the calls that explains every answer? No I/O.

In such an order, each call takes effect at one point in time between its invocation and its return, and the answers are
those of ``spec`` in that order. The search goes through the history in time and keeps every configuration that explains
it so far. A configuration is a state, and the set of calls in flight that have taken effect. When a call returns, it
must have taken effect. Other calls in flight are then tried before it, in every order (just-in-time linearization:
Lowe, "Testing for linearizability", 2017; after Wing and Gong, 1993). Equal configurations are kept once.

The number of configurations stays small for these reasons:

- Tokens are a total order of writes, so of the writes with a known token only the next one can take effect.
- A call that changes nothing takes effect as soon as its answer fits. This never rules out another order.
- A write of unknown outcome that no answer shows may take effect until its client's next answer, because the store
settles it before that answer. Applying it later is never worse than having applied it already, if the state is the
same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from latchwork_testkit.histories.calls import REFUSED, UNKNOWN, Call, History, ReportedEntry
from latchwork_testkit.histories.spec import SequentialSpec, State, is_unobserved

_NEVER = 1 << 62


class Configuration(NamedTuple):
    """One explanation of the history so far: the state of the store, and the calls in flight that have taken effect, as
    a bit set.
    """

    state: State
    done: int


@dataclass(eq=False, slots=True)
class PendingCall:
    """A call while the search orders it.

    Attributes:
        call: The recorded call.
        token: Token of its commit, if its answer or an answer to another client shows it.
        is_unobserved: Whether it may have been applied or not, because no answer shows its effect.
        until: Time at which it must have taken effect, or from which it no longer can.
        bit: Its bit in `Configuration.done` while it is in flight.
        rules_out: Calls of the same client whose outcome is unknown, and which can no longer take effect after the
            answer to this call.
    """

    call: Call
    token: int | None
    is_unobserved: bool
    until: int
    bit: int = 0
    rules_out: list[PendingCall] = field(default_factory=list)

    @property
    def changes_nothing(self) -> bool:
        """Whether the call certainly did not change the store."""
        return self.call.changes_nothing


@dataclass(frozen=True)
class CertainState:
    """A time at which only one explanation was left: the state of the store, and the numbers of the calls in flight
    that had taken effect.
    """

    at: int
    state: State
    done: frozenset[int]


@dataclass
class SearchResult:
    """The result of a search.

    Attributes:
        unexplained: The first call whose answer no order explains. None if the history is linearizable.
        states_before: The possible states of the store just before that call. Items are in the order of the history's
            keys.
        last_certain: The last time before that call with only one explanation.
        max_configurations: The greatest number of configurations that the search had to keep at once.
    """

    unexplained: Call | None = None
    states_before: tuple[State, ...] = ()
    last_certain: CertainState | None = None
    max_configurations: int = 0

    @property
    def is_linearizable(self) -> bool:
        """Whether an order of the calls explains every answer."""
        return self.unexplained is None


def search_linearization(history: History) -> SearchResult:
    """Search for an order of the calls in which every response of a history is possible."""
    return _Search(history).run()


class _Search:
    def __init__(self, history: History) -> None:
        entries = _reported_entries(history.calls)
        self.spec = SequentialSpec(history.keys, entries)
        self.pending = _build_pending_calls(history.calls, entries)
        self._previous_token = _map_predecessors(self.pending, history.after)
        self.active: dict[int, PendingCall] = {}
        self.configurations = {Configuration(self.spec.get_initial_state(history), 0)}
        self.result = SearchResult()
        self._last_certain: tuple[int, Configuration, dict[int, PendingCall]] | None = None

    def run(self) -> SearchResult:
        for at, is_return, each in _list_events(self.pending):
            before = self.configurations
            if is_return:
                self._process_return(each)
            else:
                self._process_invocation(each)
            if not self.configurations:
                self.result.unexplained = each.call
                self.result.states_before = tuple({configuration.state for configuration in before})
                self.result.last_certain = self._certain_state()
                return self.result
            self.result.max_configurations = max(self.result.max_configurations, len(self.configurations))
            if len(self.configurations) == 1:
                self._last_certain = (at, next(iter(self.configurations)), dict(self.active))
        return self.result

    def _certain_state(self) -> CertainState | None:
        if self._last_certain is None:
            return None
        at, configuration, active = self._last_certain
        return CertainState(
            at, configuration.state, frozenset(active[bit].call.number for bit in active if configuration.done & bit)
        )

    def _process_invocation(self, each: PendingCall) -> None:
        bit = 1
        while bit in self.active:
            bit <<= 1
        each.bit = bit
        self.active[bit] = each
        if each.changes_nothing:
            self.configurations = {
                result
                for current in self.configurations
                for result in self._apply_calls_without_effect(current, [each])
            }

    def _process_return(self, each: PendingCall) -> None:
        configurations = self._find_configurations_with(each)
        if each.is_unobserved:
            configurations |= self.configurations
        del self.active[each.bit]
        frontier = self._new_frontier()
        for configuration in configurations:
            frontier.add(Configuration(configuration.state, configuration.done & ~each.bit))
        self.configurations = frontier.configurations()

    def _find_configurations_with(self, target: PendingCall) -> set[Configuration]:
        """Return the possible configurations in which a call has taken effect.

        Starts from the current configurations, and lets further pending calls take effect until the call has.

        Args:
            target: The call.
        """
        frontier = self._new_frontier()
        unexplored = deque(configuration for configuration in self.configurations if frontier.add(configuration))
        with_target = set()
        while unexplored:
            configuration = unexplored.popleft()
            if configuration.done & target.bit:
                with_target.add(configuration)
                continue
            unexplored.extend(each for each in self._find_next_configurations(configuration) if frontier.add(each))
        return with_target

    def _find_next_configurations(self, configuration: Configuration) -> Iterable[Configuration]:
        """Return the configurations that follow from one more write. Calls that change nothing are applied immediately.

        Args:
            configuration: The configuration to start from.
        """
        for each in self.active.values():
            if configuration.done & each.bit or each.changes_nothing:
                continue
            if each.token and self._previous_token[each.token] != configuration.state[1]:
                continue
            state = self.spec.compute_state_after(configuration.state, each.call, each.token)
            if state is not None:
                yield from self._apply_calls_without_effect(
                    Configuration(state, self._mark_effective(configuration.done, each)), self.active.values()
                )

    def _apply_calls_without_effect(
        self, configuration: Configuration, candidates: Iterable[PendingCall]
    ) -> list[Configuration]:
        """Apply the calls that change nothing, such as reads, if their responses agree with the state.

        Calls that would rule out other calls are optional, so there may be several results.

        Args:
            configuration: The configuration to start from.
            candidates: The calls.
        """
        choices = []
        for each in candidates:
            if configuration.done & each.bit or not each.changes_nothing:
                continue
            if self.spec.compute_state_after(configuration.state, each.call, each.token) is not None:
                if any(
                    ruled_out.bit & ~configuration.done for ruled_out in each.rules_out if ruled_out.bit in self.active
                ):
                    choices.append(each)  # taking effect rules out other calls: keep both possibilities
                else:
                    configuration = Configuration(configuration.state, configuration.done | each.bit)
        configurations = [configuration]
        for each in choices:
            configurations += [
                Configuration(earlier.state, self._mark_effective(earlier.done, each)) for earlier in configurations
            ]
        return configurations

    def _mark_effective(self, done: int, each: PendingCall) -> int:
        for ruled_out in each.rules_out:
            if self.active.get(ruled_out.bit) is ruled_out:
                done |= ruled_out.bit
        return done | each.bit

    def _new_frontier(self) -> _Frontier:
        active = self.active.values()
        return _Frontier(
            sum(each.bit for each in active if each.is_unobserved),
            sum(each.bit for each in active if each.changes_nothing),
        )


class _Frontier:
    """A set of configurations without redundant ones.

    A configuration is redundant if another one has the same state and at least the same calls left to apply.
    """

    def __init__(self, unobserved: int, reads: int) -> None:
        self._unobserved = unobserved
        self._reads = reads
        self._costs: dict[tuple[State, int], dict[int, Configuration]] = {}

    def add(self, configuration: Configuration) -> bool:
        """Add a configuration unless it is redundant. Return whether it was added."""
        state, done = configuration
        cost = (done & self._unobserved) | (~done & self._reads)
        costs = self._costs.setdefault((state, done & ~self._unobserved & ~self._reads), {})
        if any(other & ~cost == 0 for other in costs):
            return False
        for other in [other for other in costs if cost & ~other == 0]:
            del costs[other]
        costs[cost] = configuration
        return True

    def configurations(self) -> set[Configuration]:
        return {configuration for costs in self._costs.values() for configuration in costs.values()}


def _reported_entries(calls: Iterable[Call]) -> dict[tuple[int, str], ReportedEntry]:
    entries = {}
    for call in calls:
        for each in (*call.written, *([call.found] if call.found else [])):
            entries.setdefault((each.token, each.key), each)
    return entries


def _build_pending_calls(calls: list[Call], entries: dict[tuple[int, str], ReportedEntry]) -> list[PendingCall]:
    """Return the calls that the search has to order. Each has the token of its commit, if known, and its deadline.

    A call must take effect before its deadline, the time of its response. Refused calls, and reads without a response,
    are left out.

    Args:
        calls: The calls of the history.
        entries: Every entry that a response contained, by token and key.
    """
    token_of = {(each.key, each.value): each.token for each in entries.values()}
    pending, open_calls = [], {}
    for call in sorted(calls, key=lambda each: each.invoked):
        if call.outcome == REFUSED or (call.is_read and call.outcome == UNKNOWN):
            continue
        token = call.token
        if call.outcome == UNKNOWN:
            tokens = [token_of.get((op.key, op.value)) for op in call.ops if op.kind != "delete"]
            token = next((each for each in tokens if each), None)
        until = _NEVER if call.returned is None else call.returned
        each = PendingCall(call, token, is_unobserved(call, token), until)
        if call.outcome == UNKNOWN:
            if not call.ops:
                continue
            open_calls.setdefault(call.client, []).append(each)
        else:
            each.rules_out = open_calls.pop(call.client, [])
            for ruled_out in each.rules_out:
                ruled_out.until = min(ruled_out.until, until)
        pending.append(each)
    return pending


def _map_predecessors(pending: list[PendingCall], after: int) -> dict[int, int]:
    """Return, for the token of each write, the token of the previous write.

    Args:
        pending: The calls to order.
        after: The token of the last write before the history.
    """
    tokens = sorted({each.token for each in pending if each.token and not each.changes_nothing})
    return dict(zip(tokens, [after, *tokens], strict=False))


def _list_events(pending: list[PendingCall]) -> list[tuple[int, bool, PendingCall]]:
    """Return the beginning and the end of each call, sorted by time. At equal times, beginnings come first."""
    events = []
    for index, each in enumerate(pending):
        events.append((each.call.invoked, False, index, each))
        if each.until != _NEVER or not each.is_unobserved:
            events.append((each.until, True, index, each))
    events.sort(key=lambda event: event[:3])
    return [(at, is_return, each) for at, is_return, _, each in events]
