"""Plans and workers for tests."""

from __future__ import annotations

import pytest

from latchwork.plans import Plans, PlanWorker
from latchwork.plans.plan_store import PlanStore
from latchwork.store import system_namespace
from plans.work import CALLS, FUNCTIONS, GATE


@pytest.fixture
def store(store):
    """The namespace of the system, in which its keys are as its modules write them."""
    return system_namespace(store, "plans")


@pytest.fixture(autouse=True)
def _calls():
    CALLS.clear()
    GATE.clear()


@pytest.fixture
def plans(store):
    return Plans(store, functions=FUNCTIONS)


@pytest.fixture
def plan_store(store):
    return PlanStore(store, "default")


@pytest.fixture
def worker(store):
    with PlanWorker(store, slots=4, functions=FUNCTIONS, context="of the node") as made:
        yield made
