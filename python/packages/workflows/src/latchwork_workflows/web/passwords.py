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


def create_secret(prefix: str = "") -> str:
    """Return a random secret of 256 bits, as text for a cookie, a header or a link."""
    return prefix + secrets.token_urlsafe(32)


def hash_secret(secret: str) -> str:
    """Return the hash of a random secret, to be stored. Long random text needs neither salt nor a slow hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def check_password_length(password: str) -> None:
    """Check that a password has an acceptable length.

    Raises:
        ValueError: The password is too short or too long.
    """
    if not MIN_LETTERS <= len(password) <= MAX_LETTERS:
        raise ValueError(f"a password has {MIN_LETTERS} to {MAX_LETTERS} characters, not {len(password)}")


def hash_password(password: str) -> str:
    """Return the hash of a password to be stored: salt, cost and the result of scrypt.

    Raises:
        ValueError: The password is too short or too long.
    """
    check_password_length(password)
    salt = secrets.token_bytes(16)
    return f"scrypt${_COST}${_text(salt)}${_text(_scrypt(password, salt, _COST))}"


def matches_password(password: str, stored: str | None) -> bool:
    """Return whether a password matches a stored hash.

    Args:
        password: The password.
        stored: The stored hash. None: the account is unknown, and the check takes as long as usual so that this stays
            hidden.
    """
    kind, cost, salt, wanted = (stored or get_dummy_hash()).split("$")
    if kind != "scrypt" or len(password) > MAX_LETTERS:
        return False
    found = _scrypt(password, base64.b64decode(salt), int(cost))
    return hmac.compare_digest(found, base64.b64decode(wanted)) and stored is not None


def get_dummy_hash() -> str:
    """Return a hash to compare with for unknown accounts, so that the check takes the usual time."""
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
    """Limits wrong password attempts for each account."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._mutex = mutex()
        self._now = now
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def count_attempt(self, name: str) -> None:
        """Count a password attempt for an account. Call this before checking the password.

        Raises:
            TooManyAttempts: The account must wait. The attempt was not counted.
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

    def reset(self, name: str) -> None:
        """Reset the count of an account after a correct password."""
        with self._mutex:
            self._failed.pop(name.casefold(), None)
