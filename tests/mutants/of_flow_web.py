"""Defects of pages and API: a proof that nobody asks for, a role that nobody checks, text that is more than text."""

from __future__ import annotations

from mutants.defect import Defect, of

API, SIGN_IN, HOSTILE = (f"workflows/web/{each}" for each in ("api", "sign_in", "hostile"))

DEFECTS = (
    Defect(
        "FlowWeb",
        "a change needs no proof of our page",
        "web/who.py",
        "        await _check_csrf(request, found)\n",
        "",
        of(SIGN_IN, "the_api_asks_a_browser_for_the_same_proof"),
    ),
    Defect(
        "FlowWeb",
        "a page of another origin may ask",
        "web/who.py",
        "        check_origin(request)\n        await",
        "        await",
        of(SIGN_IN, "a_change_that_none_of_our_pages_asked_for_is_refused", on="from another site-/edit"),
    ),
    Defect(
        "FlowWeb",
        "any name may lead to us",
        "web/safety.py",
        'if "*" not in self._hosts and name not in self._hosts:',
        "if not name:",
        of(SIGN_IN, "who_comes_by_another_name_is_not_looked_at"),
    ),
    Defect(
        "FlowWeb",
        "a link leads elsewhere after signing in",
        "web/sign_in.py",
        '    return path if is_plain else "/"\n',
        "    return path\n",
        of(SIGN_IN, "nobody_is_led_elsewhere", on="//evil.example"),
    ),
    Defect(
        "FlowWeb",
        "a link signs in twice",
        "workflows/database/accounts.py",
        "gone = sa.delete(web_session).where(web_session.c.digest == digest_of(link), web_session.c.kind == _LINK)",
        "gone = sa.update(web_session).values(csrf='').where(web_session.c.digest == digest_of(link))",
        of(SIGN_IN, "a_link_signs_in_once"),
    ),
    Defect(
        "FlowWeb",
        "a role is not asked for",
        "workflows/desk/parts.py",
        "    if not who.may(role, project):\n",
        "    if not who.name:\n",
        of(API, "a_token_may_do_less_than_its_account"),
    ),
    Defect(
        "FlowWeb",
        "runs of other projects are seen",
        "workflows/desk/parts.py",
        "    return None if among is None and not project else list(catalog.codes(connection, among, project))\n",
        "    return None\n",
        of(API, "nobody_sees_runs_of_a_project_that_is_not_theirs"),
    ),
    Defect(
        "FlowWeb",
        "what a state does not take is written",
        "workflows/desk/instances.py",
        "            _check_state(connection, row, kind, event)\n",
        "            pass\n",
        of(API, "a_repeated_stop_is_answered_as_the_first_although_the_run_has_ended_since"),
    ),
    Defect(
        "FlowWeb",
        "what masters tell each other is taken from anybody",
        "workflows/desk/instances.py",
        "    if action in _REFUSED:\n",
        "    if not action:\n",
        of(API, "what_masters_tell_each_other_is_refused", on="wake"),
    ),
    Defect(
        "FlowWeb",
        "a key means nothing",
        "workflows/database/commands.py",
        '"unique_key": unique_key, "by": by[:200]}',
        '"unique_key": None, "by": by[:200]}',
        of(API, "a_repeated_key_starts_nothing_more_also_after_the_run"),
    ),
    Defect(
        "FlowWeb",
        "an editor overwrites what was not seen",
        "workflows/desk/definitions.py",
        "        if base is not None and base != newest:\n",
        "        if base is None:\n",
        of(API, "an_editor_who_did_not_see_the_newest_version_overwrites_nothing"),
    ),
    Defect(
        "FlowWeb",
        "pages escape nothing",
        "web/pages.py",
        "            autoescape=True,\n",
        "            autoescape=False,\n",
        of(HOSTILE, "no_page_runs_what_people_write"),
    ),
    Defect(
        "FlowWeb",
        "text moves the cursor",
        "web/pages.py",
        "            finalize=harmless,\n",
        "",
        of(HOSTILE, "no_page_runs_what_people_write"),
    ),
    Defect(
        "FlowWeb",
        "active instances are found by a scan",
        "workflows/database/tables.py",
        'IS_ACTIVE = text("instance.active")',
        'IS_ACTIVE = text("instance.active = 1")',
        of("workflows/runs", "who_looks_for_active_instances_reads_no_others"),
    ),
)
