"""Passwords and secrets, stored only as what a one-way function makes of them, and how often one may guess.

Guesses are counted in memory: each server process counts for itself.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from latchwork.errors import LatchworkError
from latchwork.spi import mutex

LEAST_LETTERS = 10
MOST_LETTERS = 200
_COST = 2**14
#: 16 MB each: so many at a time, whoever knocks.
_AT_ONCE = threading.BoundedSemaphore(2)
_FREE = 5
_PER_TRY_S = 10.0
_MOST_NAMES = 10_000


def new_secret(prefix: str = "") -> str:
    """256 bits that nobody guesses, as text for a cookie, a header or a link."""
    return prefix + secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """What is stored of such a secret; a long random text needs no salt and no slow function."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def check_length(password: str) -> None:
    """Refuse a password that is too short, or absurd.

    Raises:
        ValueError: it is.
    """
    if not LEAST_LETTERS <= len(password) <= MOST_LETTERS:
        raise ValueError(f"a password has {LEAST_LETTERS} to {MOST_LETTERS} characters, not {len(password)}")


def hash_password(password: str) -> str:
    """What is stored of a password: salt, cost and the result of scrypt.

    Raises:
        ValueError: it is too short or too long.
    """
    check_length(password)
    salt = secrets.token_bytes(16)
    return f"scrypt${_COST}${_text(salt)}${_text(_scrypt(password, salt, _COST))}"


def check_password(password: str, stored: str | None) -> bool:
    """Whether this is the password. Takes as long when there is none, so that nobody learns which accounts exist."""
    kind, cost, salt, wanted = (stored or hash_of_nothing()).split("$")
    if kind != "scrypt" or len(password) > MOST_LETTERS:
        return False
    found = _scrypt(password, base64.b64decode(salt), int(cost))
    return hmac.compare_digest(found, base64.b64decode(wanted)) and stored is not None


def hash_of_nothing() -> str:
    """Stands for the password of an account that is not there."""
    return f"scrypt${_COST}${_text(bytes(16))}${_text(bytes(32))}"


def _scrypt(password: str, salt: bytes, cost: int) -> bytes:
    with _AT_ONCE:
        return hashlib.scrypt(password.encode("utf-8", "surrogatepass"), salt=salt, n=cost, r=8, p=1, dklen=32)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


class TooManyTries(LatchworkError):
    """The password of this account was guessed too often.

    Attributes:
        wait_s: seconds until the next try is looked at.
    """

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"too many wrong passwords; try again in {wait_s:.0f} s")
        self.wait_s = wait_s


class Tries:
    """Wrong passwords by account: after five, each further try waits 10 s longer than the one before, up to 300 s.

    The address of the client does not count: an attacker has many. A try counts as wrong from its start until it is
    right, so tries at the same time get no more guesses than tries in a row.

    Args:
        now: a monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._mutex = mutex()
        self._now = now
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def begin(self, name: str) -> None:
        """Count a try of this account.

        Raises:
            TooManyTries: it has to wait, and was not counted.
        """
        key, now = name.casefold(), self._now()
        with self._mutex:
            count, last = self._failed.get(key, (0, 0.0))
            wait_s = last + min(count - _FREE + 1, 30) * _PER_TRY_S - now
            if count >= _FREE and wait_s > 0:
                raise TooManyTries(wait_s)
            self._failed[key] = (count + 1, now)
            self._failed.move_to_end(key)
            if len(self._failed) > _MOST_NAMES:
                self._failed.popitem(last=False)

    def succeeded(self, name: str) -> None:
        """Forget the tries of this account: the password was right."""
        with self._mutex:
            self._failed.pop(name.casefold(), None)
