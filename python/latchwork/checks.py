"""The check of a number, for every floor: options, schedules and records take finite numbers only."""

from __future__ import annotations

import math
import sys
from typing import TypeGuard


def is_number(value: object, least: float = -math.inf) -> TypeGuard[float]:
    """True for a finite number that is not below ``least``; True and False are no numbers.

    A whole number that no float can hold counts as infinite.
    """
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    return good and -sys.float_info.max <= value <= sys.float_info.max and value >= least  # type: ignore[operator]
