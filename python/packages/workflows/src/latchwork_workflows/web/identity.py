"""Who asks, and what they may do. Nothing here touches the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple, Protocol

#: The project that stands for all, and for what belongs to none.
EVERYWHERE = ""


class Role(IntEnum):
    """What somebody may do; each role may do what those before it may."""

    VIEWER = 1
    OPERATOR = 2
    EDITOR = 3
    ADMIN = 4

    @property
    def word(self) -> str:
        """As people write it."""
        return self.name.lower()

    @classmethod
    def of(cls, word: str) -> Role:
        """The role of this name.

        Raises:
            ValueError: there is none.
        """
        try:
            return cls[word.upper()]
        except KeyError:
            known = ", ".join(each.word for each in cls)
            raise ValueError(f"there is no role {word[:40]!r}; there are {known}") from None


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks.

    Attributes:
        name: of the account.
        roles: by project; that of the empty project counts in all.
        csrf: what a browser sends with each change; empty: this is no browser.
        by_token: whether a token proved it, which is less than a person who signed in.
    """

    name: str
    roles: Mapping[str, Role] = field(default_factory=dict)
    csrf: str = ""
    by_token: bool = False

    def may(self, role: Role, project: str = EVERYWHERE) -> bool:
        """Whether they have this role, or a higher one, in a project."""
        return max(self.roles.get(EVERYWHERE, 0), self.roles.get(project, 0)) >= role

    def may_somewhere(self, role: Role) -> bool:
        """Whether they have it in some project."""
        return any(each >= role for each in self.roles.values())

    def projects(self, role: Role = Role.VIEWER) -> frozenset[str] | None:
        """The projects in which they have it; None: all."""
        if self.may(role):
            return None
        return frozenset(name for name, each in self.roles.items() if each >= role)

    def at_most(self, role: Role | None) -> Identity:
        """The same with no role above this one."""
        if role is None:
            return self
        return replace(self, roles={name: min(each, role) for name, each in self.roles.items()})


class SignedIn(NamedTuple):
    """A browser that was signed in.

    Attributes:
        cookie: what it shows from now on.
        lasts_s: seconds until it is asked again.
    """

    cookie: str
    lasts_s: float


class Accounts(Protocol):
    """Where accounts are. Its methods block, and are called by several threads at once."""

    def of_cookie(self, cookie: str) -> Identity | None:
        """Whose browser this is; None: nobody's, or no more."""
        ...

    def of_token(self, token: str) -> Identity | None:
        """Whose program this is; None: nobody's, or no more."""
        ...

    def sign_in(self, name: str, password: str) -> SignedIn | None:
        """A new session of a browser; None: wrong name or password, which of the two is not told.

        Raises:
            TooManyTries: this name was tried too often.
        """
        ...

    def sign_in_by_link(self, link: str) -> SignedIn | None:
        """A new session by a link that is good once; None: it was used, or its time is over."""
        ...

    def sign_out(self, cookie: str) -> None:
        """End the session of a browser."""
        ...
