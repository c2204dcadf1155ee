"""Schedules whose primitives are driven by event loops: each node has one of its own, which dies and freezes with it.

The loops are the simulation's, so they wait in virtual time and take turns like all threads.
"""

from __future__ import annotations

import contextlib
import sys

import pytest

import through_loop
from latchwork.store.driving import background_loop

#: Whether schedules run so; the fixture `driver` sets it.
is_on = False


class NodeLoop(through_loop.Loop):
    """The loop of a node. Properties are read where they are asked for: observers must not wait."""

    def read(self, twin, name):
        return self.face(getattr(twin, name))


class OfNode:
    """Something that each node has for itself, made when its first thread asks."""

    def __init__(self, sim, make):
        self._sim = sim
        self._make = make
        self._made = {}

    @property
    def here(self):
        node = self._sim.current_task().node
        if node not in self._made:
            self._made[node] = self._make()
        return self._made[node]

    def __getattr__(self, name):
        return getattr(self.here, name)

    def close_here(self):
        made = self._made.pop(self._sim.current_task().node, None)
        if made is not None:
            made.close()


@contextlib.contextmanager
def driving(sim, model_class):
    """Have the model's module and `latchwork.connect` use twins; gives what ends the loop of the calling node."""
    if not is_on or model_class.is_about_threads:
        yield lambda: None
        return
    with pytest.MonkeyPatch.context() as patch:
        loops = OfNode(sim, NodeLoop)
        patch.setattr(background_loop, "_loop_thread", OfNode(sim, background_loop._LoopThread))
        modules = {sys.modules[kind.__module__] for kind in model_class.__mro__ if kind is not object}
        through_loop.install(modules, patch, loops)
        yield loops.close_here
