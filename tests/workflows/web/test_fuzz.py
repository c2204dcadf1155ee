"""The API, asked what its own description allows and what it forbids: schemathesis makes the questions up.

Each operation is asked twice, as each reader and in each way. ``LATCHWORK_FUZZ_S=280`` goes on with other questions for
so many seconds, as each reader and in each way; `make check WHAT=api-fuzz` does so, and ends within 20 minutes.
"""

import itertools
import os
import time
from collections import Counter

import hypothesis
import pytest

from workflows.web.seeds import GOOD, HALF

schemathesis = pytest.importorskip("schemathesis")
checks = pytest.importorskip("schemathesis.checks")
conformance = pytest.importorskip("schemathesis.specs.openapi.checks")

FOR_S = float(os.environ.get("LATCHWORK_FUZZ_S", "0"))
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
    operations = [each for each in described if not each.path.endswith(LEFT_OUT)]
    asked, wrong = Counter(), []
    until = time.monotonic() + FOR_S
    for turn in itertools.count():
        for operation in operations:
            if turn and time.monotonic() >= until:
                break
            called = f"{operation.method} {operation.path}"
            try:
                asked[called] += ask_all(operation, WAYS[way], headers, turn)
            except Exception as error:
                wrong.append(f"{called}: {error}")
        if wrong or time.monotonic() >= until:
            break
    print(f"{asked.total():,} questions, {turn + 1} turns")
    assert wrong == []
    assert sum(count > 0 for count in asked.values()) > 25


def ask_all(operation, way, headers, turn):
    """Ask it as often as is wanted, other questions in each turn; how often that was."""
    answers = 0

    @hypothesis.seed(turn)
    @hypothesis.given(case=operation.as_strategy(generation_mode=way))
    @hypothesis.settings(
        max_examples=10 if turn else 2,
        deadline=None,
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
