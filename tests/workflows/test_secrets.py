"""Whose a secret is: a task has those of its project, and those that are shared; channels have their own."""

import pytest

from latchwork_workflows.secrets import CHANNELS, SHARED, SecretMissing, Secrets, get_env_var_name, write_secret
from latchwork_workflows.state import Outcome

from . import working
from .working import log_of, result, shell

VARIABLES = {
    "LATCHWORK_SECRET_DB": "of default",
    "LATCHWORK_SECRET_BILLING__DB": "of billing",
    "LATCHWORK_CHANNEL_SECRET_HOOK": "of channels",
    "LATCHWORK_SHARED_SECRET_TOKEN": "of all",
}


@pytest.fixture(params=["variables", "files"])
def secrets(request, tmp_path):
    if request.param == "variables":
        return Secrets(environ=VARIABLES, providers=())
    for scope, name in (("default", "db"), ("billing", "db"), (CHANNELS, "hook"), (SHARED, "token")):
        write_secret(tmp_path, name, variable_value(name, scope), scope)
    return Secrets(tmp_path, environ={}, providers=())


def variable_value(name, scope):
    return VARIABLES[get_env_var_name(name, scope)]


def test_a_secret_is_told_to_its_project_alone(secrets):
    assert (secrets.get("db", "default"), secrets.get("db", "billing")) == ("of default", "of billing")
    for scope in ("reports", CHANNELS):
        with pytest.raises(SecretMissing, match="no secret 'db'"):
            secrets.get("db", scope)


def test_secrets_of_channels_are_told_to_no_project_and_shared_ones_to_each(secrets):
    assert secrets.get("hook", CHANNELS) == "of channels"
    assert {secrets.get("token", scope) for scope in ("default", "billing", CHANNELS)} == {"of all"}
    for scope in ("default", "billing"):
        with pytest.raises(SecretMissing):
            secrets.get("hook", scope)


@pytest.mark.parametrize(
    ("name", "scope"),
    [("billing__db", "default"), ("db", "Billing"), ("db", "bil-ling"), ("db", "a__b"), ("db", "a_"), ("db", "_a")],
)
def test_no_project_finds_the_variable_of_another_by_the_choice_of_its_name(name, scope):
    assert get_env_var_name(name, scope) == ""


@pytest.mark.parametrize("scope", ["", "..", "a/b", "@else", "."])
def test_what_is_no_project_leads_to_no_file(tmp_path, scope):
    (tmp_path / "secrets").mkdir()
    (tmp_path / "db").write_text("outside")
    with pytest.raises(SecretMissing):
        Secrets(tmp_path / "secrets", environ={}, providers=()).get("db", scope)


def test_a_provider_is_told_whose_secret_is_wanted():
    asked = []
    found = Secrets(environ={}, providers=[lambda name, scope: asked.append((name, scope)) or "it"]).get(
        "db", "billing"
    )
    assert (found, asked) == ("it", [("db", "billing")])


@pytest.mark.threads
def test_a_task_has_no_secret_of_another_project(store, logs, tmp_path, request):
    made = working.worker(store, tmp_path, secrets=Secrets(environ=VARIABLES, providers=()))
    request.addfinalizer(made.close)
    script = 'test "$A" = "of billing"'
    outcomes = [
        result(store, shell(store, number, script, env={"A": "${secret:db}"}, project=project))
        for number, project in enumerate(("billing", "reports"), 1)
    ]
    assert outcomes[0].outcome is Outcome.SUCCESS, log_of(logs, outcomes[0])
    assert "no secret 'db' of project 'reports': set LATCHWORK_SECRET_REPORTS__DB" in outcomes[1].error
