"""A player in a process of its own: answers on stdout, as JSON, what is asked on stdin. It can be killed and frozen."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import latchwork
from latchwork.errors import LatchworkError
from trials.primitives.players import make


def main():
    logging.disable(logging.CRITICAL)
    url, primitive, name, role, path, ttl_s = sys.argv[1:]
    with latchwork.connect(url) as store:
        player = make(primitive, store, name, role, path, float(ttl_s))
        say(ok=None)
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                say(ok=getattr(player, asked["do"])(*asked["with"]))
            except LatchworkError as error:
                say(error=type(error).__name__, why=str(error))


def say(**words):
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


main()
