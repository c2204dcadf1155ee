"""The API: what it answers, to whom, and what a wrong question is told."""

import pytest

from workflows.web.seeds import BAD, GOOD, HALF


@pytest.fixture(scope="module")
def made(seeds):
    return {"good": seeds.run(GOOD), "bad": seeds.run(BAD), "half": seeds.run(HALF)}


def test_smoke(ask, made):
    admin = ask("admin")
    for path in ("workflows", "instances", f"instances/{made['half']}", "schedules", "users", "tokens", "audit"):
        answer = admin.get(f"/api/v1/{path}")
        assert answer.status_code == 200, (path, answer.text)
    print(admin.get(f"/api/v1/instances/{made['half']}").json())
