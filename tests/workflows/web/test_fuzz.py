"""The API, asked what its own description allows: schemathesis makes the questions up.

``LATCHWORK_FUZZ_EXAMPLES=200`` asks each operation so often; two unless it is said.
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


def test_the_api_answers_as_it_says_whatever_it_is_asked(site, seeds):
    seeds.run(GOOD)
    seeds.run(HALF)
    schema = schemathesis.openapi.from_dict(site.openapi())
    schema.app = site
    headers = {"Authorization": f"Bearer {seeds.tokens['admin']}", "Host": "testserver"}
    asked, wrong = set(), []
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path.endswith(LEFT_OUT):
            continue
        answers = 0

        @hypothesis.given(case=operation.as_strategy())
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

        try:
            ask()
        except Exception as error:
            wrong.append(f"{operation.method} {operation.path}: {error}")
        asked.add((operation.path, operation.method))
        assert answers
    assert wrong == []
    assert len(asked) > 25
