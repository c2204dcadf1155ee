"""A fixture for a second client. Every test of the contract runs unchanged on every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import latchwork

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def other(backend_url: str, store: latchwork.Store) -> Iterator[latchwork.Store]:
    """A second store with the same root. It has separate connections and sessions."""
    with latchwork.connect(backend_url) as opened:
        yield opened
