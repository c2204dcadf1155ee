"""As which user of the machine a task runs."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from latchwork.errors import LatchworkError

#: Variables that say how text and time look; the only ones that a tenant gets of the worker's.
_COMMON = ("PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR")
_PATH = "/usr/local/bin:/usr/bin:/bin"


class NoTenant(LatchworkError):
    """This worker cannot run tasks as that user."""


def own_user() -> str:
    """The user of this process; its number where it has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def may_become(tenant: str | None) -> bool:
    """Whether tasks of this user can run here: root may be anybody, others are themselves."""
    return tenant is None or tenant == own_user() or os.geteuid() == 0


def user_of(tenant: str | None) -> str | None:
    """The user to change to; None for none.

    Raises:
        NoTenant: there is no such user here, or we may not become it.
    """
    if tenant is None or tenant == own_user():
        return None
    if not may_become(tenant):
        raise NoTenant(f"this worker runs as {own_user()}, not as root, so it cannot run tasks as {tenant!r}")
    try:
        pwd.getpwnam(tenant)
    except KeyError:
        raise NoTenant(f"there is no user {tenant!r} on this machine; add it, or name another tenant") from None
    return tenant


def environment(user: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a task begins with: ours, without any of latchwork's; for another user hardly any of ours."""
    if user is None:
        return {name: value for name, value in environ.items() if not name.startswith("LATCHWORK_")}
    about = pwd.getpwnam(user)
    kept = {name: environ[name] for name in environ if name in _COMMON or name.startswith("LC_")}
    mine = {"HOME": about.pw_dir, "USER": user, "LOGNAME": user, "SHELL": about.pw_shell or "/bin/sh"}
    return {"PATH": _PATH, **kept, **mine}


def hand_over(path: Path, user: str | None) -> None:
    """Give a file or a folder to the user."""
    if user is not None:
        about = pwd.getpwnam(user)
        os.chown(path, about.pw_uid, about.pw_gid)
