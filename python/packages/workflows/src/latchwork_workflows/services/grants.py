"""Which projects may use the workflows of a project: who sees that, and who says so."""

from __future__ import annotations

from latchwork_workflows.db import grants
from latchwork_workflows.db.grants import ALL, ROLES, Grant
from latchwork_workflows.db.history import told
from latchwork_workflows.looking import Looks
from latchwork_workflows.looking import told as raised
from latchwork_workflows.services.parts import Parts, check_name, need
from latchwork_workflows.services.people import need_session
from latchwork_workflows.web import Identity, Problem, Role


def listed(parts: Parts, who: Identity, project: str = "") -> list[Grant]:
    """The grants of the projects that somebody may see, by project and grantee; of one project if it is given."""
    with parts.database.read() as connection:
        found = grants.every(connection)
    return [each for each in found if project in {"", each.project} and who.may(Role.VIEWER, each.project)]


def put(parts: Parts, who: Identity, project: str, grantee: str, role: Role) -> None:
    """Let a project use another. As with roles of accounts, a person has to say so.

    Args:
        parts: of the desk.
        who: does it; needs to be an administrator of the project that is used.
        project: whose workflows are used.
        grantee: the project whose tasks use them; empty: all projects.
        role: viewer or operator.
    Raises:
        Problem: 403; 422, naming the field.
    """
    need_session(who)
    need(who, Role.ADMIN, project)
    check_name("project", project)
    if grantee != ALL:
        check_name("grantee", grantee)
    if role not in ROLES:
        why = f"a project is {' or '.join(each.word for each in ROLES)} of another, not {role.word}"
        raise Problem(422, f"role: {why}", errors=[("role", why)])
    with parts.database.write() as connection:
        grants.put(connection, Grant(project, grantee, role))
        told(connection, "grant", by=who.name, project=project, details={"grantee": grantee or "*", "role": role.word})


def remove(parts: Parts, who: Identity, project: str, grantee: str) -> None:
    """Let a project use another no more: its tasks that do so fail from now on.

    Raises:
        Problem: 403, 404.
    """
    need_session(who)
    need(who, Role.ADMIN, project)
    with parts.database.write() as connection:
        if not grants.remove(connection, project, grantee):
            whom = f"project {grantee!r}" if grantee else "all projects"
            raise Problem(404, f"there is no grant of project {project!r} to {whom}")
        told(connection, "grant end", by=who.name, project=project, details={"grantee": grantee or "*"})


class Granting(Looks):
    """What programs ask of grants; a part of ``WorkflowClient``. Thread-safe."""

    def grants(self, project: str = "") -> list[Grant]:
        """Return which projects may use which, by project and grantee; of one project if it is given."""
        with raised():
            return listed(self._parts, self._who, project)

    def set_grant(self, project: str, grantee: str, role: str) -> None:
        """Let the tasks of a project use the workflows of another.

        Args:
            project: whose workflows are used.
            grantee: the project whose tasks use them; empty: all projects.
            role: ``viewer``, they may wait for its runs and get their outputs; ``operator``, they may also start them.
        Raises:
            BadRequest: a value is none.
        """
        with raised():
            put(self._parts, self._who, project, grantee, Role.of(role))

    def remove_grant(self, project: str, grantee: str) -> None:
        """Let a project use another no more: its tasks that do so fail from now on.

        Raises:
            UnknownWorkflow: there is no such grant.
        """
        with raised():
            remove(self._parts, self._who, project, grantee)
