"""Options of the benchmarks."""

from __future__ import annotations

import pytest


def pytest_addoption(parser):
    parser.addoption("--pairs", type=int, default=20, help="rounds of the raw client and of ours, in turns")


@pytest.fixture(scope="session")
def rounds(request):
    return request.config.getoption("--pairs")
