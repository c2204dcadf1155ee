"""A site over a database of its own, and browsers and programs that ask it."""

import pytest
from fastapi.testclient import TestClient

from latchwork.workflows.database import Database
from latchwork.workflows.database.migrations import upgrade
from latchwork.workflows.site import make_site
from workflows.web.seeds import Seeds


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    database = Database(f"sqlite:///{folder}/flows.db")
    upgrade(database)
    found = Seeds(database, folder / "logs")
    found.tokens = found.people()
    yield found
    database.close()


@pytest.fixture(scope="module")
def site(seeds):
    return make_site(seeds.database, logs=seeds.logs, hosts=["testserver"])


@pytest.fixture(scope="module")
def ask(site, seeds):
    """A program: `ask("viewer-of-default")` has that account's token."""
    clients = {}

    def client(name=None):
        if name not in clients:
            headers = {"Authorization": f"Bearer {seeds.tokens[name]}"} if name else {}
            clients[name] = TestClient(site, headers=headers, follow_redirects=False)
        return clients[name]

    return client


@pytest.fixture
def browser(site, seeds):
    """A browser that is signed in; `client.csrf` is what its pages hold."""

    def client(name="admin"):
        made = TestClient(site, follow_redirects=False, headers={"Accept": "text/html"})
        answer = made.post("/sign-in", data={"link": seeds.accounts.new_link(name)})
        assert answer.status_code == 303
        made.csrf = seeds.accounts.of_cookie(made.cookies["latchwork"]).csrf
        return made

    return client
