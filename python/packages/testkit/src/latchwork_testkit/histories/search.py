"""Checks linearizability by search: is there an order of the calls that explains every answer? Pure.

An order is good if each call takes effect at one point in time between its invocation and its return, and the answers
are those of ``spec`` in that order. The search goes through the history in time and keeps every configuration that
explains it so far. A configuration is a state, and the set of calls in flight that have taken effect. When a call
returns, it must have taken effect. Other calls in flight are then tried before it, in every order (just-in-time
linearization: Lowe, "Testing for linearizability", 2017; after Wing and Gong, 1993). Equal configurations are kept
once.

Their number stays small for these reasons:

- Tokens are a total order of writes, so of the writes with a known token only the next one can take effect.
- A call that changes nothing takes effect as soon as its answer fits, which never spoils another order.
- A write of unknown outcome without a trace may take effect until its client's next answer, which the store gives only
after settling it. Keeping it in reserve is never worse than having used it for the same state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from latchwork_testkit.histories.calls import REFUSED, UNKNOWN, Call, History, Seen
from latchwork_testkit.histories.spec import Spec, State, is_optional

_NEVER = 1 << 62


class Config(NamedTuple):
    """One explanation of the history so far: the state, and the bits of the calls in flight that have taken effect."""

    state: State
    done: int


@dataclass(eq=False, slots=True)
class Pending:
    """A call of the history in the search.

    Attributes:
        call: The call.
        token: Token of its commit, if known from its answer or from reads of others.
        optional: Whether it may have been applied or not.
        until: Time at which it must have taken effect, or from which it no longer can.
        bit: Its bit while it is in flight.
        closes: Calls of unknown outcome of the same client that can no longer take effect after this one's answer.
    """

    call: Call
    token: int | None
    optional: bool
    until: int
    bit: int = 0
    closes: list[Pending] = field(default_factory=list)

    @property
    def changes_nothing(self) -> bool:
        """Whether the call is known to have changed nothing."""
        return self.call.changes_nothing


@dataclass(frozen=True)
class Moment:
    """A point in time, the state then, and the calls in flight that had taken effect by then."""

    at: int
    state: State
    done: frozenset[int]


@dataclass
class Verdict:
    """The result of the search.

    Attributes:
        culprit: The call whose answer no order explains; None if the history is good.
        before: The possible states just before that call.
        certain: The last point in time before it with only one explanation.
        most: Maximum number of configurations that were kept.
    """

    culprit: Call | None = None
    before: tuple[State, ...] = ()
    certain: Moment | None = None
    most: int = 0

    @property
    def is_good(self) -> bool:
        """Whether an order was found."""
        return self.culprit is None


def search(history: History) -> Verdict:
    """Judge a history. The states of the verdict list the keys in the history's order."""
    return _Search(history).run()


class _Search:
    def __init__(self, history: History) -> None:
        seen = _all_seen(history.calls)
        self.spec = Spec(history.keys, seen)
        self.pending = _pending_calls(history.calls, seen)
        self.before = _predecessors(self.pending, history.after)
        self.active: dict[int, Pending] = {}
        self.configs = {Config(self.spec.start(history), 0)}
        self.verdict = Verdict()
        self.certain: tuple[int, Config, dict[int, Pending]] | None = None

    def run(self) -> Verdict:
        for at, is_return, each in _events(self.pending):
            before = self.configs
            if is_return:
                self._return(each)
            else:
                self._invoke(each)
            if not self.configs:
                self.verdict.culprit = each.call
                self.verdict.before = tuple({config.state for config in before})
                self.verdict.certain = self._moment()
                return self.verdict
            self.verdict.most = max(self.verdict.most, len(self.configs))
            if len(self.configs) == 1:
                self.certain = (at, next(iter(self.configs)), dict(self.active))
        return self.verdict

    def _moment(self) -> Moment | None:
        if self.certain is None:
            return None
        at, config, active = self.certain
        return Moment(at, config.state, frozenset(active[bit].call.number for bit in active if config.done & bit))

    def _invoke(self, each: Pending) -> None:
        bit = 1
        while bit in self.active:
            bit <<= 1
        each.bit = bit
        self.active[bit] = each
        if each.changes_nothing:
            self.configs = {found for config in self.configs for found in self._settle(config, [each])}

    def _return(self, each: Pending) -> None:
        found = self._configs_after(each)
        if each.optional:
            found |= self.configs
        del self.active[each.bit]
        front = self._front()
        for config in found:
            front.add(Config(config.state, config.done & ~each.bit))
        self.configs = front.all()

    def _configs_after(self, target: Pending) -> set[Config]:
        """Return every configuration in which the target has just taken effect, starting from all current ones."""
        front = self._front()
        todo = deque(config for config in self.configs if front.add(config))
        reached = set()
        while todo:
            config = todo.popleft()
            if config.done & target.bit:
                reached.add(config)
                continue
            todo.extend(each for each in self._next_configs(config) if front.add(each))
        return reached

    def _next_configs(self, config: Config) -> Iterable[Config]:
        """Return the configurations after one more effect. Calls that change nothing take effect by themselves."""
        for each in self.active.values():
            if config.done & each.bit or each.changes_nothing:
                continue
            if each.token and self.before[each.token] != config.state[1]:
                continue
            state = self.spec.next(config.state, each.call, each.token)
            if state is not None:
                yield from self._settle(Config(state, self._with(config.done, each)), self.active.values())

    def _settle(self, config: Config, candidates: Iterable[Pending]) -> list[Config]:
        """Let calls that change nothing take effect where their answers fit."""
        choices = []
        for each in candidates:
            if config.done & each.bit or not each.changes_nothing:
                continue
            if self.spec.next(config.state, each.call, each.token) is not None:
                if any(closed.bit & ~config.done for closed in each.closes if closed.bit in self.active):
                    choices.append(each)  # doing so costs something: keep both ways
                else:
                    config = Config(config.state, config.done | each.bit)
        found = [config]
        for each in choices:
            found += [Config(one.state, self._with(one.done, each)) for one in found]
        return found

    def _with(self, done: int, each: Pending) -> int:
        for closed in each.closes:
            if self.active.get(closed.bit) is closed:
                done |= closed.bit
        return done | each.bit

    def _front(self) -> _Front:
        active = self.active.values()
        return _Front(
            sum(each.bit for each in active if each.optional), sum(each.bit for each in active if each.changes_nothing)
        )


class _Front:
    """Configurations without those that are equal to another one that has as much or more in reserve."""

    def __init__(self, optional: int, reads: int) -> None:
        self._optional = optional
        self._reads = reads
        self._costs: dict[tuple[State, int], dict[int, Config]] = {}

    def add(self, config: Config) -> bool:
        """Add a configuration unless one that is as good exists. Return whether it was added."""
        state, done = config
        cost = (done & self._optional) | (~done & self._reads)
        costs = self._costs.setdefault((state, done & ~self._optional & ~self._reads), {})
        if any(other & ~cost == 0 for other in costs):
            return False
        for other in [other for other in costs if cost & ~other == 0]:
            del costs[other]
        costs[cost] = config
        return True

    def all(self) -> set[Config]:
        return {config for costs in self._costs.values() for config in costs.values()}


def _all_seen(calls: Iterable[Call]) -> dict[tuple[int, str], Seen]:
    seen = {}
    for call in calls:
        for each in (*call.written, *([call.found] if call.found else [])):
            seen.setdefault((each.token, each.key), each)
    return seen


def _pending_calls(calls: list[Call], seen: dict[tuple[int, str], Seen]) -> list[Pending]:
    """Return the calls that the search must order, with their tokens and the times by which they must take effect.

    Left out are refused calls, and reads without an answer.
    """
    token_of = {(each.key, each.value): each.token for each in seen.values()}
    found, open_calls = [], {}
    for call in sorted(calls, key=lambda each: each.invoked):
        if call.outcome == REFUSED or (call.is_read and call.outcome == UNKNOWN):
            continue
        token = call.token
        if call.outcome == UNKNOWN:
            tokens = [token_of.get((op.key, op.value)) for op in call.ops if op.kind != "delete"]
            token = next((each for each in tokens if each), None)
        until = _NEVER if call.returned is None else call.returned
        each = Pending(call, token, is_optional(call, token), until)
        if call.outcome == UNKNOWN:
            if not call.ops:
                continue
            open_calls.setdefault(call.client, []).append(each)
        else:
            each.closes = open_calls.pop(call.client, [])
            for closed in each.closes:
                closed.until = min(closed.until, until)
        found.append(each)
    return found


def _predecessors(pending: list[Pending], after: int) -> dict[int, int]:
    """Return the token just before each token of a write."""
    tokens = sorted({each.token for each in pending if each.token and not each.changes_nothing})
    return dict(zip(tokens, [after, *tokens], strict=False))


def _events(pending: list[Pending]) -> list[tuple[int, bool, Pending]]:
    """Return invocations and returns, sorted by time. At the same time, invocations come first."""
    events = []
    for index, each in enumerate(pending):
        events.append((each.call.invoked, False, index, each))
        if each.until != _NEVER or not each.optional:
            events.append((each.until, True, index, each))
    events.sort(key=lambda event: event[:3])
    return [(at, is_return, each) for at, is_return, _, each in events]
