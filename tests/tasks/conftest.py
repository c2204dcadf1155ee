"""Several clients of one root."""

from __future__ import annotations

import pytest

import latchwork


@pytest.fixture
def connect(backend_url):
    """Open another client of the test's root; closed after the test."""
    opened = []

    def open_store(**options):
        opened.append(latchwork.connect(backend_url, **options))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()
