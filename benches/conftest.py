"""pytest options of the benchmarks."""

from __future__ import annotations

import pytest
from store_storage import STORAGES, in_memory


def pytest_addoption(parser):
    parser.addoption("--pairs", type=int, default=20, help="rounds of the raw client and of ours, in turns")
    parser.addoption(
        "--storage",
        choices=STORAGES,
        default="disk",
        help="where servers keep their data; memory: a sync costs nothing",
    )


def pytest_configure(config):
    if config.getoption("--storage") == "memory":
        in_memory()


@pytest.fixture(scope="session")
def rounds(request):
    return request.config.getoption("--pairs")


@pytest.fixture(scope="session")
def storage(request):
    return request.config.getoption("--storage")
