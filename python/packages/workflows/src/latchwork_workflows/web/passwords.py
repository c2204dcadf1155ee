"""Hashes of passwords and secrets, and a limit for password attempts.

Attempts are counted in memory, separately in each server process.
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

MIN_LETTERS = 10
MAX_LETTERS = 200
_COST = 2**14
#: The maximum number of concurrent hashes. Each takes 16 MB.
_AT_ONCE = threading.BoundedSemaphore(2)
_FREE = 5
_PER_TRY_S = 10.0
_MAX_NAMES = 10_000


def new_secret(prefix: str = "") -> str:
    """Return a random secret of 256 bits, as text for a cookie, a header or a link."""
    return prefix + secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """Return the stored hash of such a secret. Long random text needs neither salt nor a slow hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def check_length(password: str) -> None:
    """Check the length of a password.

    Raises:
        ValueError: The password is too short or too long.
    """
    if not MIN_LETTERS <= len(password) <= MAX_LETTERS:
        raise ValueError(f"a password has {MIN_LETTERS} to {MAX_LETTERS} characters, not {len(password)}")


def hash_password(password: str) -> str:
    """Return the stored hash of a password: salt, cost and the result of scrypt.

    Raises:
        ValueError: The password is too short or too long.
    """
    check_length(password)
    salt = secrets.token_bytes(16)
    return f"scrypt${_COST}${_text(salt)}${_text(_scrypt(password, salt, _COST))}"


def check_password(password: str, stored: str | None) -> bool:
    """Return whether this is the password.

    Takes the same time without a stored hash, so it does not reveal which accounts exist.
    """
    kind, cost, salt, wanted = (stored or dummy_hash()).split("$")
    if kind != "scrypt" or len(password) > MAX_LETTERS:
        return False
    found = _scrypt(password, base64.b64decode(salt), int(cost))
    return hmac.compare_digest(found, base64.b64decode(wanted)) and stored is not None


def dummy_hash() -> str:
    """Return the hash that is checked for unknown accounts."""
    return f"scrypt${_COST}${_text(bytes(16))}${_text(bytes(32))}"


def _scrypt(password: str, salt: bytes, cost: int) -> bytes:
    with _AT_ONCE:
        return hashlib.scrypt(password.encode("utf-8", "surrogatepass"), salt=salt, n=cost, r=8, p=1, dklen=32)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


class TooManyAttempts(LatchworkError):
    """There were too many password attempts for this account.

    Attributes:
        wait_s: Seconds until the next attempt is accepted.
    """

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"too many wrong passwords; try again in {wait_s:.0f} s")
        self.wait_s = wait_s


class AttemptLimit:
    """Wrong password attempts, by account.

    After five, each attempt must wait 10 s longer than the one before, up to 300 s. Client addresses do not count,
    because an attacker has many. An attempt counts as wrong until it succeeds, so concurrent attempts allow no more
    guesses than sequential ones.

    Args:
        now: A monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._mutex = mutex()
        self._now = now
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def begin(self, name: str) -> None:
        """Count an attempt for this account.

        Raises:
            TooManyAttempts: It must wait, and was not counted.
        """
        key, now = name.casefold(), self._now()
        with self._mutex:
            count, last = self._failed.get(key, (0, 0.0))
            wait_s = last + min(count - _FREE + 1, 30) * _PER_TRY_S - now
            if count >= _FREE and wait_s > 0:
                raise TooManyAttempts(wait_s)
            self._failed[key] = (count + 1, now)
            self._failed.move_to_end(key)
            if len(self._failed) > _MAX_NAMES:
                self._failed.popitem(last=False)

    def succeeded(self, name: str) -> None:
        """Forget the attempts of this account after a correct password."""
        with self._mutex:
            self._failed.pop(name.casefold(), None)
