"""The API, asked what its own description allows and what it forbids: schemathesis makes the questions up.

``LATCHWORK_FUZZ_EXAMPLES=200`` asks each operation so often, as each reader and in each way; twice unless it is said.
`make check WHAT=api-fuzz` is the long form.
"""

import os

import hypothesis
import pytest

from workflows.web.seeds import GOOD, HALF

schemathesis = pytest.importorskip("schemathesis")
checks = pytest.importorskip("schemathesis.checks")
conformance = pytest.importorskip("schemathesis.specs.openapi.checks")

EXAMPLES = int(os.environ.get("LATCHWORK_FUZZ_EXAMPLES", "2"))
#: Endless: read in test_live.
LEFT_OUT = ("/stream", "/events")
CHECKS = (
    checks.not_a_server_error,
    conformance.status_code_conformance,
    conformance.content_type_conformance,
    conformance.response_schema_conformance,
)
WAYS = {"what it allows": schemathesis.GenerationMode.POSITIVE, "what it forbids": schemathesis.GenerationMode.NEGATIVE}


@pytest.fixture(scope="module")
def described(site, seeds):
    """The API by its own description, over a site with something in it."""
    seeds.run(GOOD)
    seeds.run(HALF)
    schema = schemathesis.openapi.from_dict(site.openapi())
    schema.app = site
    return [found.ok() for found in schema.get_all_operations()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["admin", "viewer-of-default"])
def test_the_api_answers_as_it_says_whatever_it_is_asked(described, seeds, name, way):
    headers = {"Authorization": f"Bearer {seeds.tokens[name]}", "Host": "testserver"}
    asked, wrong = set(), []
    for operation in described:
        if operation.path.endswith(LEFT_OUT):
            continue
        try:
            if ask_all(operation, WAYS[way], headers):
                asked.add((operation.path, operation.method))
        except Exception as error:
            wrong.append(f"{operation.method} {operation.path}: {error}")
    assert wrong == []
    assert len(asked) > 25


def ask_all(operation, way, headers):
    """Ask it as often as is wanted; how often that was."""
    answers = 0

    @hypothesis.given(case=operation.as_strategy(generation_mode=way))
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    def ask(case):
        nonlocal answers
        answers += 1
        response = case.call(headers=headers)
        if response.status_code != 503:  # there is no store here
            case.validate_response(response, checks=CHECKS)
        if response.status_code >= 400:
            is_a_problem(response)

    try:
        ask()
    except hypothesis.errors.Unsatisfiable:  # there is nothing that it forbids
        return 0
    return answers


def is_a_problem(response):
    """Whoever is refused is told what happened, as a problem document."""
    assert response.headers["content-type"][0].startswith("application/problem+json"), response.headers
    told = response.json()
    assert (told["status"], bool(told["title"]), bool(told["detail"])) == (response.status_code, True, True), told
