"""Tokens that run out: signed ones die at their hour, simple ones when nobody has used them for a while."""

from __future__ import annotations

import subprocess
import time
from contextlib import closing

import pytest

import latchwork
from backends_table import BY_NAME, ETCD
from latchwork import PermissionDenied
from security.accounts import Accounts

PASSWORD = "app-secret"
TOKEN_LIFE_S = 1


@pytest.fixture(scope="module")
def signing_key(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jwt")
    private, public = folder / "private.pem", folder / "public.pem"
    for command in (["genrsa", "-out", private, "2048"], ["rsa", "-in", private, "-pubout", "-out", public]):
        subprocess.run(["openssl", *command], check=True, capture_output=True, timeout=60)
    return f"pub-key={public},priv-key={private},sign-method=RS256"


@pytest.fixture(scope="module", params=[f"{name}-{kind}" for name in ETCD for kind in ("simple", "jwt")])
def server(request, signing_key):
    """With accounts, and tokens that live for a second."""
    name, _, kind = request.param.partition("-")
    extra = [f"--auth-token=jwt,{signing_key},ttl={TOKEN_LIFE_S}s"]
    if kind == "simple":
        extra = ["--auth-token=simple", f"--auth-token-ttl={TOKEN_LIFE_S}"]
    with BY_NAME[name].launch(extra_args=extra) as started, closing(Accounts(started, PASSWORD)) as accounts:
        started.accounts = accounts
        yield started


def url(server, root="app", **options):
    return server.url(root, **options).replace("://", f"://app:{PASSWORD}@")


def test_a_store_that_was_idle_for_longer_than_its_token_lives_goes_on(server):
    with latchwork.connect(url(server), session_ttl_s=3.0) as store, latchwork.connect(url(server)) as other:
        mine = store.create("idle/mine", b"", session=store.session)
        mirror = store.mirror("idle")
        with store.watch("idle") as watch:
            time.sleep(2.5 * TOKEN_LIFE_S)  # nobody asks for anything but the session's renewals
            other.put("idle/k", b"1")
            while "idle/k" not in [change.key for change in watch.next(10.0)]:
                pass
        mirror.wait_until(lambda it: "idle/k" in it, timeout_s=10.0)
        assert store.session.remaining_s() > 0.0
        assert store.get("idle/mine").version == mine.version
        time.sleep(1.5 * TOKEN_LIFE_S)
        assert store.commit([], [latchwork.Put("idle/k", b"2")]).token > mine.created
        with store.watch("idle") as new:
            assert new.next(10.0)


def test_many_threads_that_meet_an_expired_token_fail_no_call(server):
    with latchwork.connect(url(server)) as store:
        store.put("many/k", b"0")
        time.sleep(1.5 * TOKEN_LIFE_S)
        with store.pipeline() as pipeline:
            pending = [pipeline.put(f"many/k{number}", b"") for number in range(200)]
            pending += [pipeline.get("many/k") for _ in range(200)]
        assert all(each.result(20.0) is not None for each in pending)


def test_rights_taken_away_are_missed_at_once_and_given_back_are_had_at_once(server):
    with latchwork.connect(url(server)) as store:
        store.put("rights/k", b"1")
        server.accounts.log_in()
        server.accounts.revoke()
        try:
            started = time.monotonic()
            with pytest.raises(PermissionDenied, match="'rights/k'"):
                store.get("rights/k")
            with pytest.raises(PermissionDenied, match="'rights/k'"):
                store.put("rights/k", b"2")
            with store.watch("rights/k") as watch, pytest.raises(PermissionDenied, match="'rights/k'"):
                watch.next(10.0)
            with pytest.raises(PermissionDenied, match="rights"):
                store.mirror("rights").wait_until(lambda it: False, timeout_s=10.0)
            assert time.monotonic() - started < 8.0
        finally:
            server.accounts.log_in()
            server.accounts.grant()
        store.put("rights/k", b"3")
        with store.watch("rights/k") as watch:
            assert watch.next(10.0)[-1].entry.value == b"3"
