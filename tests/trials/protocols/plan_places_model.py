"""So many tasks of a plan at a time, without the code: a claim creates a place, and its end deletes it.

    items/<i>       tries so far        claims/<i>      by whom; dies with the session
    running/<n>     which item; dies with the session of the claim

Workers see which places are free with a delay, lose answers, die and freeze. Judges: no more tasks run at a time than
there are places; each task is run to its end; in the end no place is left. `MUTANTS` are checks of
docs/design/plans.md.
"""

from __future__ import annotations

from trials.protocols.simulator import TROUBLE, Conflict, Simulation, Unknown

MOST_TURNS, TROUBLE_ENDS = 20_000, 3_000
#: Afterwards nobody dies: what is left behind by the living stays.
CALM = (0.0, 0.0, 0.01, 0.002)

MUTANTS = {
    "a place is written whether it is there or not": "two claims have one place",
    "a place does not die with its worker": "a task that is not run has it for ever",
    "a task gives its place back twice": "the second time it is another's",
    "a place of a claim that was given up stays": "nobody gives it back",
    "a place is given back without a check that it is still ours": "it is another's",
}


class PlacesModel:
    """One plan whose tasks are all ready."""

    def __init__(self, seed, mutant=""):
        self.mutant = mutant
        self.simulation = Simulation(seed)
        self.random, self.store = self.simulation.random, self.simulation.store
        self.simulation.trouble = self.random.choice((TROUBLE, (0.03, 0.05, 0.03, 0.02), (0.01, 0.03, 0.05, 0.1)))
        self.store.after_commit.append(self._judge)
        self.places = self.random.randint(1, 3)
        self.count = self.random.randint(3, 10)
        self.seen = []

    def run(self):
        """Until all tasks are done.

        Raises:
            AssertionError: a rule was broken, or they never were.
        """
        self.store.commit([], [("put", f"items/{i}", 0) for i in range(self.count)])
        for _ in range(4):
            self.simulation.spawn("worker", self.work)

        def each_turn(turn):
            if turn == TROUBLE_ENDS:
                self.simulation.trouble = CALM
            if turn % 10 == 0:
                self.seen = self.store.children("running")
            if turn % 20 == 0 and self.simulation.living() < 4:
                self.simulation.spawn("worker", self.work)

        def over():
            return not self.store.children("items") and not self.store.children("running")

        assert self.simulation.run(over, MOST_TURNS, each_turn), ("never over", self.store.entries)

    def _judge(self, _before, _ops):
        tries = [entry for _, entry in self.store.list("claims") if entry[0][1] == "runs"]
        assert len(tries) <= self.places, ("too many at a time", self.store.entries)

    def work(self, session):
        idle = set()
        while session in self.store.alive:
            yield ("pause",)
            if self.mutant != "a place of a claim that was given up stays":
                idle = yield from self._tidy(session, idle)
            items = yield ("list", "items")
            claimed = yield ("children", "claims")
            free = [(key, item) for key, item in items if key.rpartition("/")[2] not in claimed]
            places = [n for n in map(str, range(self.places)) if n not in self.seen]
            if free and places:
                key, item = self.random.choice(free)
                yield from self._run(session, key, item, self.random.choice(places))

    def _run(self, session, key, item, place):
        claim, running = key.replace("items", "claims"), f"running/{place}"
        kind = "put" if self.mutant == "a place is written whether it is there or not" else "create"
        owner = [] if self.mutant == "a place does not die with its worker" else [session]
        ops = [("put", key, item[0] + 1), ("create", claim, (session, "runs"), session), (kind, running, key, *owner)]
        try:
            version = yield ("commit", [("at", key, item[1])], ops)
        except Conflict:
            return
        except Unknown:
            yield from self._give_up(session, claim)
            return
        fence = [("at", claim, version), ("session", session)]
        for _ in range(self.random.randint(0, 8)):
            yield ("pause",)
        ops = [("delete", key), ("delete", claim), ("delete", running)]
        if item[0] < 2 and self.random.random() < 0.3:
            version = yield from self._pause_before_the_next_try(session, claim, version, running)
            if version is None:
                return
            fence = [("at", claim, version), ("session", session)]
            ops = [("delete", claim)]
            if self.mutant == "a task gives its place back twice":
                ops.append(("delete", running))
        yield from self._surely(fence, ops)

    def _pause_before_the_next_try(self, session, claim, version, running):
        """It gives its place back with the record of its try, and keeps its claim; the version of that."""
        check = [("at", claim, version), ("session", session)]
        yield from self._surely(check, [("put", claim, (session, "pauses")), ("delete", running)])
        for _ in range(self.random.randint(0, 20)):
            yield ("pause",)
        now = yield ("get", claim)
        return now[1] if now is not None and now[0] == (session, "pauses") else None

    def _give_up(self, session, claim):
        """A claim whose answer was lost, and that nobody wants: it goes, once it is known that it is there."""
        yield ("pause",)  # whatever was on its way lands with the sender's next call
        found = yield ("get", claim)
        if found is not None and found[0] == (session, "runs"):
            yield from self._surely([("at", claim, found[1])], [("delete", claim)])

    def _surely(self, checks, ops):
        while True:
            try:
                yield ("commit", checks, ops)
            except Unknown:
                continue
            except Conflict:
                pass
            return

    def _tidy(self, session, idle):
        """Give places back that have been ours without a claim at two looks; those of this look."""
        found = {}
        for key, place in (yield ("list", "running")):
            if place[2] == session:
                claim = yield ("get", place[0].replace("items", "claims"))
                if claim is None or claim[2] != session:
                    found[key] = place[1]
        careless = self.mutant == "a place is given back without a check that it is still ours"
        for key in found.keys() & idle:
            check = [] if careless else [("at", key, found[key])]
            yield from self._surely(check, [("delete", key)])
        return set(found)
