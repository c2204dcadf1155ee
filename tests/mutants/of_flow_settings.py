"""Defects of what workflows name: a password that is stored or told, a value that counts too much, who may do what."""

from __future__ import annotations

from mutants.defect import Defect, of

STORED, PAGE = "workflows/settings", "workflows/web/settings"
CHECKS, DESK = "workflows/definitions/settings/checks.py", "workflows/desk/settings.py"
PREPARING, PARCELS = "workflows/worker/preparing.py", "workflows/master/parcels.py"

DEFECTS = (
    Defect(
        "FlowSettings",
        "a password of a query is stored",
        CHECKS,
        "        if key.lower() in _SECRET_KEYS or any(",
        "        if any(",
        of(
            STORED,
            "a_url_that_is_none_or_has_a_password_is_refused_and_not_repeated",
            on="postgresql://u@db/x?sslpassword=pw",
        ),
    ),
    Defect(
        "FlowSettings",
        "a password of a URL is stored",
        CHECKS,
        "    if parsed.password is not None or _PASSWORD.search(url):\n",
        "    if not parsed.drivername:\n",
        of(STORED, "an_import_with_a_password_is_refused_by_its_place_and_not_repeated", on="file"),
    ),
    Defect(
        "FlowSettings",
        "a password that was refused comes back on the page",
        "workflows/ui/settings.py",
        'all(path != "url" for path, _ in refused.errors)',
        "bool(refused.errors)",
        of(PAGE, "a_password_that_is_refused_is_on_no_page_and_in_no_answer"),
    ),
    Defect(
        "FlowSettings",
        "the password of a connection is in the log",
        PREPARING,
        "        self.used.append(found)\n",
        "",
        of(STORED, "an_output_never_says_where_a_password_goes", on="file"),
    ),
    Defect(
        "FlowSettings",
        "what is deleted between the check and the write is written",
        "workflows/desk/definitions.py",
        "        wrong += naming.problems(wanted, settings.of_project(connection, wanted.project))\n",
        "",
        of(STORED, "what_was_removed_between_the_check_and_the_write_is_refused_too", on="file"),
    ),
    Defect(
        "FlowSettings",
        "what all projects have counts before what a project has",
        "workflows/database/settings.py",
        "for row in connection.execute(chosen.order_by(environment.c.project))}",
        "for row in connection.execute(chosen.order_by(environment.c.project.desc()))}",
        of(STORED, "a_task_reads_what_is_stored_when_it_is_put_and_keeps_it", on="file"),
    ),
    Defect(
        "FlowSettings",
        "the environment counts before what the start says",
        "workflows/definitions/specs.py",
        "for name, each in environment if values.get(name, each) == each}",
        "for name, each in environment}",
        of(STORED, "a_task_reads_what_is_stored_when_it_is_put_and_keeps_it", on="file"),
    ),
    Defect(
        "FlowSettings",
        "everybody sees values",
        DESK,
        "values if may_read(who, row.project) else None",
        "values",
        of(PAGE, "who_may_not_write_workflows_sees_names_and_no_values", on="viewer-of-default"),
    ),
    Defect(
        "FlowSettings",
        "an editor of everything changes what all have",
        DESK,
        "    return Role.EDITOR if project != ALL else Role.ADMIN\n",
        "    return Role.EDITOR\n",
        of(
            "workflows/web/roles", "what_is_of_all_projects_is_changed_by_administrators_of_everything", on="connection"
        ),
    ),
    Defect(
        "FlowSettings",
        "who sees no project is told what it has",
        "workflows/desk/definitions.py",
        "    if not isinstance(project, str) or not who.may(Role.VIEWER, project):\n",
        "    if not isinstance(project, str):\n",
        of(PAGE, "who_is_of_another_project_sees_what_is_of_all_and_nothing_of_this_one"),
    ),
    Defect(
        "FlowSettings",
        "the audit has values",
        DESK,
        'found["variables"] = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))[:100]',
        'found["variables"] = new',
        of(STORED, "the_audit_says_who_changed_what_and_no_value", on="file"),
    ),
    Defect(
        "FlowSettings",
        "connections of an environment are not sent",
        PARCELS,
        "    names = version.connections | named\n",
        "    names = version.connections\n",
        of(STORED, "a_connection_that_only_an_environment_names_reaches_the_task", on="file"),
    ),
)
