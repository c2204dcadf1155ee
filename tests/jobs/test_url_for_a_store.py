"""A URL where a store belongs: refused with what to do, and not shown, for it may have a password."""

from __future__ import annotations

import pytest

from latchwork.jobs import Control, inspect
from latchwork.primitives import list_groups


@pytest.mark.parametrize("use", [inspect, Control, list_groups], ids=lambda use: use.__name__)
@pytest.mark.parametrize("url", ["sqlite:///store.db", "etcd://me:s3cret@h:1"])
def test_a_url_is_refused_by_name_and_not_shown(use, url):
    with pytest.raises(TypeError, match=rf"{use.__name__} needs a store, not a URL; .*connect\(url\)") as error:
        use(url)
    assert url not in str(error.value)
