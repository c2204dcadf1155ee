"""Passwords, and secrets that are stored only as what a one-way function makes of them. No I/O."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading

LEAST_LETTERS = 10
MOST_LETTERS = 200
_COST = 2**14
#: 16 MB each: so many at a time, whoever knocks.
_AT_ONCE = threading.BoundedSemaphore(2)


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
