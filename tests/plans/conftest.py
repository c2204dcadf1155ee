"""Plans and workers for tests."""

from __future__ import annotations

import pytest

from latchwork.plans import Plans, PlanWorker
from latchwork.plans.place import Place
from plans.work import CALLS, FUNCTIONS, GATE


@pytest.fixture(autouse=True)
def _calls():
    CALLS.clear()
    GATE.clear()


@pytest.fixture
def plans(store):
    return Plans(store, functions=FUNCTIONS)


@pytest.fixture
def place(store):
    return Place(store, "plans")


@pytest.fixture
def worker(store):
    with PlanWorker(store, slots=4, functions=FUNCTIONS, context="of the node") as made:
        yield made
