"""The order within each layer, and where in it each place is. Not exported.

Order: places go to the mean of their neighbours, row after row, down and up; the best of these pictures is kept, by its
crossings. Position: each row is moved as near to its neighbours as its order and the least distances allow, which is a
regression with a known exact answer (pool adjacent violators). Ties keep the order of the graph, so that a picture of
a graph that grows at its end changes little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from latchwork.drawing.layers import Layered, Place

_SWEEPS = 8
#: Pictures with more places than this are swept less often.
_LARGE = 4_000
_LARGE_SWEEPS = 2


def ordered(found: Layered) -> None:
    """Sort the rows so that few lines cross."""
    best = [list(row) for row in found.rows]
    fewest = crossings(found)
    for sweep in range(_sweeps(found)):
        if not fewest:
            break
        downwards = sweep % 2 == 0
        rows = range(1, len(found.rows)) if downwards else range(len(found.rows) - 2, -1, -1)
        for row in rows:
            _sort_row(found, row, downwards=downwards)
        count = crossings(found)
        if count < fewest:
            best, fewest = [list(row) for row in found.rows], count
    found.rows[:] = best


def _sweeps(found: Layered) -> int:
    return _SWEEPS if sum(map(len, found.rows)) <= _LARGE else _LARGE_SWEEPS


def _sort_row(found: Layered, row: int, *, downwards: bool) -> None:
    other = found.rows[row - 1 if downwards else row + 1]
    near = found.above if downwards else found.below
    at = {place: index for index, place in enumerate(other)}
    mean: dict[Place, float] = {}
    last = -1.0
    for place in found.rows[row]:
        beside = [at[each] for each in near[place] if each in at]
        last = mean[place] = sum(beside) / len(beside) if beside else last
    found.rows[row].sort(key=mean.__getitem__)


def crossings(found: Layered) -> int:
    """How many pairs of lines cross."""
    return sum(_crossings(found, row) for row in range(1, len(found.rows)))


def _crossings(found: Layered, row: int) -> int:
    """Pairs in a wrong order: counted in a binary indexed tree."""
    at = {place: index for index, place in enumerate(found.rows[row - 1])}
    ends = [sorted(at[each] for each in found.above[place] if each in at) for place in found.rows[row]]
    tree = [0] * (len(at) + 1)
    count = seen = 0
    for group in ends:
        for end in group:
            count += seen - _sum(tree, end + 1)
        for end in group:
            _add(tree, end + 1)
        seen += len(group)
    return count


def _sum(tree: Sequence[int], index: int) -> int:
    found = 0
    while index:
        found += tree[index]
        index &= index - 1
    return found


def _add(tree: list[int], index: int) -> None:
    while index < len(tree):
        tree[index] += 1
        index += index & -index


def centres(found: Layered, width_of: Callable[[Place], float], gap: float) -> dict[Place, float]:
    """Where the middle of each place is, from left to right; the leftmost box begins at 0."""
    x: dict[Place, float] = {}
    for row in found.rows:
        left = 0.0
        for place in row:
            x[place] = left + width_of(place) / 2
            left += width_of(place) + gap
    for sweep in range(2 * _sweeps(found)):
        near = found.above if sweep % 2 == 0 else found.below
        rows = found.rows if sweep % 2 == 0 else reversed(found.rows)
        for row in rows:
            _place_row(row, near, x, width_of, gap)
    for row in found.rows:
        _draw_near(row, found, x, width_of, gap)
    left = min((x[place] - width_of(place) / 2 for row in found.rows for place in row), default=0.0)
    return {place: at - left for place, at in x.items()}


def _place_row(
    row: Sequence[Place],
    near: dict[Place, list[Place]],
    x: dict[Place, float],
    width_of: Callable[[Place], float],
    gap: float,
) -> None:
    """As near to the means of their neighbours as order and distances allow, in the sense of least squares."""
    offsets = [0.0]
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + (width_of(left) + width_of(right)) / 2 + gap)
    wanted = [
        (sum(x[each] for each in near[place]) / len(near[place]) if near[place] else x[place]) - offset
        for place, offset in zip(row, offsets, strict=True)
    ]
    for place, at, offset in zip(row, not_falling(wanted), offsets, strict=True):
        x[place] = at + offset


def _draw_near(
    row: Sequence[Place], found: Layered, x: dict[Place, float], width_of: Callable[[Place], float], gap: float
) -> None:
    """What is alone stands beside its left neighbour: nothing drew it along when the others moved."""
    for left, place in pairwise(row):
        if not found.above[place] and not found.below[place]:
            x[place] = x[left] + (width_of(left) + width_of(place)) / 2 + gap


def not_falling(wanted: Sequence[float]) -> list[float]:
    """The sequence that never falls and is nearest to the wanted one."""
    blocks: list[tuple[float, int]] = []
    for value in wanted:
        mean, size = value, 1
        while blocks and blocks[-1][0] >= mean:
            other, count = blocks.pop()
            mean = (mean * size + other * count) / (size + count)
            size += count
        blocks.append((mean, size))
    return [mean for mean, size in blocks for _ in range(size)]
