"""Slow references, written from the definitions alone: mmh3 for the hashes, exact solvers for the seats.

Nothing here looks at how latchwork does it, and nothing is fast.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import mmh3

from latchwork.assignment import JobProblem, Problem

MASK = 0xFFFF_FFFF


# Hashing


def fast_score(key, worker):
    k = mmh3.hash64(key, 0x6974656D, signed=False)[0]
    w = mmh3.hash64(worker, 0x776F726B, signed=False)[0]
    x = k ^ w
    return ((x & MASK) * 0x9E3779B1 + (x >> 32) * 0x85EBCA77) & MASK


def compat_score(key, worker):
    return mmh3.hash64(key + worker)[0]


def top_bits(mode, score):
    return score if mode == "fast" else (score + 2**63) >> 32


def ranked(key, weights, mode):
    """Workers, best first: by weight / -ln(u), then by score, then by name."""
    score = {"fast": fast_score, "compat": compat_score}[mode]
    scores = {worker: score(key, worker) for worker in weights}
    if len(set(weights.values())) == 1:
        return sorted(weights, key=lambda worker: (-scores[worker], worker))
    value = {
        worker: weight / -math.log((2 * top_bits(mode, scores[worker]) + 1) / 2**33)
        for worker, weight in weights.items()
    }
    return sorted(weights, key=lambda worker: (-value[worker], -scores[worker], worker))


# Quotas


def quota(job):
    """Whole shares by worker, who may have a seat, and how many seats there are."""
    exact = {worker: Fraction(weight) for worker, weight in job.workers.items()}
    total = sum(exact.values())
    floors, eligible = {}, set()
    for worker, weight in exact.items():
        share = len(job.items) * weight / total
        if abs(share - round(share)) < Fraction(1, 10**9):
            floors[worker] = round(share)
        else:
            floors[worker] = math.floor(share)
            eligible.add(worker)
    return floors, eligible, len(job.items) - sum(floors.values()) if job.workers else 0


def held(job):
    """How many of the items each able worker had."""
    items = set(job.items)
    return Counter(w for item, w in job.previous.items() if item in items and w in job.workers)


def evenly_rendezvous(job, mode):
    floors, eligible, seats = quota(job)
    count, owners = Counter(), {}
    for item in sorted(job.items):
        for worker in ranked(f"{job.job}:{item}", job.workers, mode):
            has_seat = count[worker] == floors[worker] and worker in eligible and seats > 0
            if count[worker] < floors[worker] or has_seat:
                seats -= count[worker] == floors[worker]
                count[worker] += 1
                owners[item] = worker
                break
    return owners


def fewest_moves(job):
    """The closed form: items that cannot stay where they were, however the seats are given."""
    if not job.workers:
        return 0
    floors, eligible, seats = quota(job)
    had = held(job)
    kept = sum(min(had[w], floors[w]) for w in job.workers)
    return len(job.items) - kept - min(seats, sum(had[w] > floors[w] for w in eligible))


def moved(job, owners):
    """How many of the job's items have an owner other than before."""
    return sum(job.previous.get(item) != worker for item, worker in owners.items())


# Balanced


def rates(problem):
    """What a squared item costs each worker."""
    weight = {}
    for job in problem.jobs:
        for worker, w in job.workers.items():
            weight[worker] = max(weight.get(worker, 0.0), w)
    strongest = max(weight.values(), default=1.0)
    return {worker: min(math.floor(4096 * strongest / w + 0.5), 2**28) for worker, w in weight.items()}


def value(problem, owners):
    """What Balanced minimises: the cost of the loads, then the moves."""
    rate = rates(problem)
    load = Counter(worker for placed in owners.values() for worker in placed.values())
    cost = sum(rate[worker] * count * count for worker, count in load.items())
    return cost, sum(moved(job, owners[job.job]) for job in problem.jobs)


def seat_questions(problem):
    for job in problem.jobs:
        floors, eligible, seats = quota(job)
        had = held(job)
        yield job, floors, {worker: had[worker] > floors[worker] for worker in eligible}, seats


def brute_force(problem):
    """The least value over all ways to give the seats: exponential."""
    questions = [question for question in seat_questions(problem) if question[0].workers]
    rate = rates(problem)
    bare = Counter()
    for _, floors, _, _ in questions:
        bare.update(floors)
    base = sum(
        len(job.items) - sum(min(held(job)[w], floors[w]) for w in job.workers) for job, floors, _, _ in questions
    )
    best = (math.inf, 0)
    options = [list(itertools.combinations(sorted(gain), seats)) for _, _, gain, seats in questions]
    for choice in itertools.product(*options):
        load = bare + Counter(worker for chosen in choice for worker in chosen)
        gains = sum(gain[w] for chosen, (_, _, gain, _) in zip(choice, questions, strict=True) for w in chosen)
        best = min(best, (sum(rate[w] * n * n for w, n in load.items()), base - gains))
    return best if best[0] < math.inf else (0, 0)


def least_value(problem):
    """The same by successive shortest paths (Bellman-Ford), one seat at a time; independent of latchwork's method."""
    rate = rates(problem)
    load = Counter(dict.fromkeys(rate, 0))
    gain, taken, seats, base = {}, set(), [], 0
    for job, floors, gains, count in seat_questions(problem):
        if job.workers:
            load.update(floors)
            had = held(job)
            base += len(job.items) - sum(min(had[w], floors[w]) for w in job.workers)
            gain.update({(job.job, worker): g for worker, g in gains.items()})
            seats += [job.job] * count
    scale = len(seats) + 1
    for job in seats:
        _augment(job, gain, taken, load, rate, scale)
    return sum(rate[w] * n * n for w, n in load.items()), base - sum(gain[pair] for pair in taken)


def _augment(job, gain, taken, load, rate, scale):
    """Gives one more seat of a job at the least cost, moving others on if that pays."""
    distance, via = {("job", job): 0}, {}
    changed = True
    while changed:
        changed = False
        for (other, worker), gains in gain.items():
            cost = -int(gains)
            ends = [(("job", other), ("worker", worker), cost), (("worker", worker), ("job", other), -cost)]
            source, target, price = ends[(other, worker) in taken]
            if distance.get(source, math.inf) + price < distance.get(target, math.inf):
                distance[target] = distance[source] + price
                via[target] = (source, (other, worker))
                changed = True

    def total(worker):
        return distance.get(("worker", worker), math.inf) + scale * (2 * load[worker] + 1) * rate[worker]

    last = min(load, key=total)
    load[last] += 1
    node = ("worker", last)
    while node != ("job", job):
        node, pair = via[node]
        taken ^= {pair}


# Random problems


def random_problem(rng, *, workers=8, jobs=6, items=60, weights=(1.0,), forbidden=0.3):
    """Jobs with a random share of forbidden pairs, items that nobody can run, and previous owners out of nowhere."""
    names = [f"w{n}" for n in range(1, rng.randint(1, workers) + 1)]
    weight = {name: rng.choice(weights) for name in names}
    made = []
    for number in range(rng.randint(1, jobs)):
        texts = [f"i{n:02}" for n in rng.sample(range(80), rng.randint(0, items))]
        able = {name: weight[name] for name in names if rng.random() >= forbidden}
        habits = rng.sample([*names, "gone"], rng.randint(1, len(names) + 1))
        previous = {item: rng.choice(habits) for item in [*texts, "removed"] if rng.random() < 0.8}
        made.append(JobProblem(f"job{number}", tuple(texts), able, previous))
    return Problem(tuple(made))
