"""Accounts with their roles, tokens and sessions. Secrets are stored as hashes only."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from latchwork.errors import LatchworkError
from latchwork_workflows.db.database import Database, DatabaseUnavailable
from latchwork_workflows.db.history import record_event
from latchwork_workflows.db.tables import account, account_role, api_token, web_session
from latchwork_workflows.errors import NotFound
from latchwork_workflows.schemas.accounts import Account, ApiToken
from latchwork_workflows.web import (
    AttemptLimit,
    Identity,
    Role,
    SignedIn,
    create_secret,
    hash_password,
    hash_secret,
    matches_password,
)

#: The lifetime of a session, in seconds.
_SESSION_S = 14 * 86_400.0
_LINK_S = 3600.0
#: The last use of a token is stored at most once in so many seconds.
_USED_S = 300.0
TOKEN_PREFIX = "lw_"  # noqa: S105 - what every token begins with
_SESSION, _LINK = "session", "link"


class DatabaseAccounts:
    """The accounts of a database. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.tries = AttemptLimit()

    # Identities

    def find_identity_by_cookie(self, cookie: str) -> Identity | None:
        """Return the identity of a session cookie, or None if there is no such session or it has expired."""
        return self._identity(
            sa.select(web_session.c.account, web_session.c.csrf)
            .where(web_session.c.digest == hash_secret(cookie), web_session.c.kind == _SESSION)
            .where(web_session.c.expires_at > time.time())
        )

    def find_identity_by_token(self, token: str) -> Identity | None:
        """Return the identity of an API token, or None if there is no such token or it has expired."""
        now = time.time()
        row = sa.select(api_token.c.account, api_token.c.id, api_token.c.role, api_token.c.used_at).where(
            api_token.c.digest == hash_secret(token),
            sa.or_(api_token.c.expires_at.is_(None), api_token.c.expires_at > now),
        )
        with self._database.read() as connection:
            found = connection.execute(row).first()
            identity = None if found is None else _identity(connection, found.account)
        if found is None or identity is None:
            return None
        if found.used_at is None or found.used_at < now - _USED_S:
            self._record_use(found.id, now)
        return replace(identity, by_token=True).limit_to(Role.from_label(found.role) if found.role else None)

    def _record_use(self, token_id: int, now: float) -> None:
        try:
            with self._database.write() as connection:
                connection.execute(sa.update(api_token).where(api_token.c.id == token_id).values(used_at=now))
        except DatabaseUnavailable:
            return  # reading must work on a read-only database

    def _identity(self, row: sa.Select[Any]) -> Identity | None:
        with self._database.read() as connection:
            found = connection.execute(row).first()
            return None if found is None else _identity(connection, found.account, found.csrf)

    # Sign in and out

    def sign_in(self, name: str, password: str) -> SignedIn | None:
        """Create a session for a browser, or return None if the name or the password is wrong.

        Raises:
            TooManyAttempts: There were too many attempts for this name.
        """
        if not self._check_password(name, password):
            return None
        with self._database.write() as connection:
            record_event(connection, "sign in", by=name)
            return _new_session(connection, name)

    def _check_password(self, name: str, password: str) -> bool:
        """Return whether an enabled account has this password. Every wrong guess is counted."""
        self.tries.count_attempt(name)
        with self._database.read() as connection:
            row = connection.execute(
                sa.select(account.c.password).where(account.c.name == name, account.c.enabled)
            ).first()
        if not matches_password(password, row.password if row else None):
            return False
        self.tries.reset(name)
        return True

    def is_own_password(self, name: str, password: str) -> bool:
        """Return whether a signed-in user has entered the right password. True for an account without a password.

        Raises:
            TooManyAttempts: There were too many attempts for this account.
        """
        return not self.has_own_password(name) or self._check_password(name, password)

    def has_own_password(self, name: str) -> bool:
        """Return whether an account has a password. True for unknown accounts."""
        with self._database.read() as connection:
            row = connection.execute(sa.select(account.c.password).where(account.c.name == name)).first()
        return row is None or row.password is not None

    def sign_in_by_link(self, link: str) -> SignedIn | None:
        """Create a session from a one-time link, or return None if the link was used or has expired."""
        gone = sa.delete(web_session).where(web_session.c.digest == hash_secret(link), web_session.c.kind == _LINK)
        with self._database.write() as connection:
            row = connection.execute(gone.returning(web_session.c.account, web_session.c.expires_at)).first()
            if row is None or row.expires_at < time.time() or _identity(connection, row.account) is None:
                return None
            record_event(connection, "sign in", by=row.account, details={"by": "link"})
            return _new_session(connection, row.account)

    def sign_out(self, cookie: str) -> None:
        """End the session of a browser."""
        with self._database.write() as connection:
            connection.execute(sa.delete(web_session).where(web_session.c.digest == hash_secret(cookie)))

    def create_sign_in_link(self, name: str, *, by: str, lasts_s: float = _LINK_S) -> str:
        """Create the secret of a one-time sign-in link, ``/sign-in?link=SECRET``.

        Args:
            name: The account.
            by: The account that creates the link.
            lasts_s: Seconds until the link expires.
        Raises:
            NotFound: There is no account of this name.
        """
        link, now = create_secret(), time.time()
        row = {"digest": hash_secret(link), "account": name, "kind": _LINK, "csrf": ""}
        with self._database.write() as connection:
            _require_account(connection, name)
            connection.execute(sa.insert(web_session).values(**row, created_at=now, expires_at=now + lasts_s))
            record_event(connection, "account link", by=by, details={"account": name})
        return link

    # For administrators

    def ensure_account(self, name: str, role: Role) -> None:
        """Create an account unless it exists, with this role in all projects."""
        with self._database.write() as connection:
            if connection.execute(sa.select(account.c.name).where(account.c.name == name)).first() is None:
                connection.execute(sa.insert(account).values(name=name, created_at=time.time()))
                connection.execute(sa.insert(account_role).values(account=name, project="", role=role.label))

    def create_account(self, name: str, password: str | None, *, by: str) -> None:
        """Create an account without roles.

        Raises:
            LatchworkError: An account of this name exists.
            ValueError: The password is too short or too long.
        """
        stored = hash_password(password) if password else None
        try:
            with self._database.write() as connection:
                connection.execute(sa.insert(account).values(name=name, password=stored, created_at=time.time()))
                record_event(connection, "account create", by=by, details={"account": name})
        except sa.exc.IntegrityError:
            raise LatchworkError(f"there is already an account {name!r}") from None

    def set_password(self, name: str, password: str, *, by: str) -> None:
        """Set a new password. Ends all sessions, links and tokens of the account.

        Raises:
            NotFound: There is no account of this name.
            ValueError: The password is too short or too long.
        """
        stored = hash_password(password)
        with self._database.write() as connection:
            _require_account(connection, name)
            connection.execute(sa.update(account).where(account.c.name == name).values(password=stored))
            end_all_sessions(connection, name)
            record_event(connection, "account password", by=by, details={"account": name})

    def set_enabled(self, name: str, enabled: bool, *, by: str) -> None:
        """Enable or disable an account. Disabling it ends all its sessions, links and tokens.

        Raises:
            NotFound: There is no account of this name.
        """
        with self._database.write() as connection:
            _require_account(connection, name)
            connection.execute(sa.update(account).where(account.c.name == name).values(enabled=enabled))
            if not enabled:
                end_all_sessions(connection, name)
            record_event(
                connection, "account enable" if enabled else "account disable", by=by, details={"account": name}
            )

    def set_role(self, name: str, project: str, role: Role | None, *, by: str) -> None:
        """Set or remove the role of an account in a project.

        Args:
            name: The account.
            project: The project. Empty: all projects.
            role: The role. None: remove it.
            by: The account that makes the change.
        Raises:
            NotFound: There is no account of this name.
        """
        there = sa.and_(account_role.c.account == name, account_role.c.project == project)
        with self._database.write() as connection:
            _require_account(connection, name)
            connection.execute(sa.delete(account_role).where(there))
            if role is not None:
                connection.execute(sa.insert(account_role).values(account=name, project=project, role=role.label))
            details = {"account": name, "role": role.label if role else "none"}
            record_event(connection, "account role", by=by, project=project, details=details)

    def list_accounts(self) -> list[Account]:
        """Return all accounts with their roles, sorted by name. At most 1,000."""
        with self._database.read() as connection:
            rows = connection.execute(sa.select(account).order_by(account.c.name).limit(1000)).all()
            roles = connection.execute(sa.select(account_role)).all()
        by_name: dict[str, dict[str, str]] = {}
        for each in roles:
            by_name.setdefault(each.account, {})[each.project] = each.role
        return [
            Account.from_row(row, has_password=row.password is not None, roles=by_name.get(row.name, {}))
            for row in rows
        ]

    def has_password(self) -> bool:
        """Return whether any enabled account has a password. Without one, the server must only be reachable locally."""
        with self._database.read() as connection:
            some = sa.select(account.c.name).where(account.c.password.is_not(None), account.c.enabled)
            return connection.execute(some.limit(1)).first() is not None

    # Tokens

    def create_token(
        self, name: str, title: str, *, by: str, role: Role | None = None, lasts_s: float | None = None
    ) -> tuple[int, str]:
        """Create an API token and return its ID and its text. The text is not stored, so it cannot be read again.

        Args:
            name: The account of the token.
            title: A description for users.
            by: The account that creates the token.
            role: The highest role that the token has. None: the roles of the account.
            lasts_s: Seconds until the token expires. None: never.
        Raises:
            NotFound: There is no account of this name.
        """
        token, now = create_secret(TOKEN_PREFIX), time.time()
        row = {"account": name, "name": title, "digest": hash_secret(token), "role": role.label if role else None}
        made = sa.insert(api_token).values(**row, created_at=now, expires_at=None if lasts_s is None else now + lasts_s)
        with self._database.write() as connection:
            _require_account(connection, name)
            token_id = int(connection.execute(made.returning(api_token.c.id)).scalar_one())
            record_event(connection, "token create", by=by, details={"account": name, "token": token_id, "name": title})
        return token_id, token

    def list_tokens(self, name: str | None = None) -> list[ApiToken]:
        """Return the API tokens of one account or of all accounts, newest first. At most 1,000."""
        columns = [api_token.c[each] for each in ApiToken.model_fields]
        chosen = sa.select(*columns).order_by(api_token.c.id.desc()).limit(1000)
        with self._database.read() as connection:
            rows = connection.execute(chosen if name is None else chosen.where(api_token.c.account == name)).all()
        return [ApiToken.model_validate(row) for row in rows]

    def revoke_token(self, token_id: int, *, by: str, only_of: str | None = None) -> None:
        """Delete an API token, so that it can no longer be used.

        Args:
            token_id: The ID of the token.
            by: The account that revokes it.
            only_of: The account that the token must belong to. None: any account.
        Raises:
            NotFound: There is no such token.
        """
        gone = sa.delete(api_token).where(api_token.c.id == token_id)
        if only_of is not None:
            gone = gone.where(api_token.c.account == only_of)
        with self._database.write() as connection:
            row = connection.execute(gone.returning(api_token.c.account)).first()
            if row is None:
                raise NotFound(f"there is no token {token_id}")
            record_event(connection, "token revoke", by=by, details={"account": row.account, "token": token_id})


def _identity(connection: sa.Connection, name: str, csrf: str = "") -> Identity | None:
    if connection.execute(sa.select(account.c.name).where(account.c.name == name, account.c.enabled)).first() is None:
        return None
    roles = connection.execute(
        sa.select(account_role.c.project, account_role.c.role).where(account_role.c.account == name)
    )
    return Identity(name, {row.project: Role.from_label(row.role) for row in roles}, csrf)


def _new_session(connection: sa.Connection, name: str) -> SignedIn:
    cookie, now = create_secret(), time.time()
    connection.execute(sa.delete(web_session).where(web_session.c.expires_at < now))
    row = {"digest": hash_secret(cookie), "account": name, "kind": _SESSION, "csrf": create_secret()}
    connection.execute(sa.insert(web_session).values(**row, created_at=now, expires_at=now + _SESSION_S))
    return SignedIn(cookie, _SESSION_S)


def end_all_sessions(connection: sa.Connection, name: str) -> None:
    """Delete all sessions, sign-in links and API tokens of an account. The account keeps its password."""
    connection.execute(sa.delete(web_session).where(web_session.c.account == name))
    connection.execute(sa.delete(api_token).where(api_token.c.account == name))


def _require_account(connection: sa.Connection, name: str) -> None:
    if connection.execute(sa.select(account.c.name).where(account.c.name == name)).first() is None:
        raise NotFound(f"there is no account {name!r}")
