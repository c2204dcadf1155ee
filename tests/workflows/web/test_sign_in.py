"""Signing in and out, and that a browser does nothing which none of our pages asked for."""

import pytest
from fastapi.testclient import TestClient

from latchwork.web import Role, check_password, hash_password
from latchwork.web.tries import Tries
from workflows.web.seeds import HALF, PASSWORD

FORM = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def ann(seeds):
    seeds.accounts.create("ann", PASSWORD, by="test")
    seeds.accounts.set_role("ann", "", Role.ADMIN, by="test")
    return "ann"


@pytest.fixture
def fresh(site):
    site.state.site.tries = Tries()
    return TestClient(site, follow_redirects=False, headers=FORM)


def test_a_password_signs_in_and_leads_back_to_where_one_was(fresh, ann):
    asked = fresh.get("/runs?state=failure")
    assert asked.headers["location"] == "/sign-in?next=/runs%3Fstate%3Dfailure"
    answer = fresh.post("/sign-in", data={"name": ann, "password": PASSWORD, "next": "/runs?state=failure"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs?state=failure")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert fresh.get("/runs").status_code == 200


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/a\nb"]
)
def test_nobody_is_led_elsewhere(fresh, ann, target):
    answer = fresh.post("/sign-in", data={"name": ann, "password": PASSWORD, "next": target})
    assert answer.headers["location"] == "/"


def test_wrong_name_and_wrong_password_look_the_same_and_are_slowed_down(fresh, ann):
    texts = set()
    for number in range(5):
        answer = fresh.post("/sign-in", data={"name": ann if number % 2 else "nobody-here", "password": "x" * 12})
        assert answer.status_code == 401
        texts.add(answer.text.replace("nobody-here", ann))
    assert len(texts) == 1
    for _ in range(3):
        fresh.post("/sign-in", data={"name": ann, "password": "x" * 12})
    slowed = fresh.post("/sign-in", data={"name": ann, "password": PASSWORD})
    assert slowed.status_code == 429
    assert int(slowed.headers["retry-after"]) > 0


def test_a_link_signs_in_once(fresh, seeds):
    link = seeds.accounts.new_link("admin")
    assert fresh.get(f"/sign-in?link={link}").status_code == 200  # who fetches it ahead uses nothing up
    assert fresh.post("/sign-in", data={"link": link}).status_code == 303
    fresh.cookies.clear()
    assert fresh.post("/sign-in", data={"link": link}).status_code == 401
    late = seeds.accounts.new_link("admin", lasts_s=-1.0)
    assert fresh.post("/sign-in", data={"link": late}).status_code == 401
    assert fresh.post("/sign-in", data={"link": seeds.tokens["admin"]}).status_code == 401


def test_signing_out_ends_the_session_and_not_the_cookie_alone(browser):
    client = browser()
    cookie = client.cookies["latchwork"]
    assert client.post("/sign-out", data={"csrf": client.csrf}).status_code == 303
    client.cookies.set("latchwork", cookie)
    assert client.get("/runs").status_code == 303


def test_a_new_password_ends_all_sessions_and_switching_off_ends_everything(browser, seeds, ask):
    seeds.accounts.create("bob", PASSWORD, by="test")
    token = seeds.token("bob")
    one, other = browser("bob"), browser("bob")
    fields = {"csrf": one.csrf, "password": "another long one", "again": "another long one"}
    assert one.post("/account/password", data={**fields, "again": "differs, surely"}).status_code == 422
    assert one.post("/account/password", data=fields).status_code == 303
    assert other.get("/account").status_code == 303
    assert seeds.accounts.of_token(token).name == "bob"
    assert ask("admin").patch("/api/v1/users/bob", json={"enabled": False}).status_code == 204
    assert seeds.accounts.of_token(token) is None
    assert seeds.accounts.sign_in("bob", "another long one") is None


def test_the_text_of_a_token_is_shown_once(browser, seeds):
    client = browser("operator-of-default")
    made = client.post("/account/token", data={"csrf": client.csrf, "name": "ci", "role": "viewer", "days": "1"})
    token = made.text.split('class="secret">')[1].split("<")[0]
    assert seeds.accounts.of_token(token).roles["default"] is Role.VIEWER
    assert token not in client.get("/account").text
    token_id = seeds.accounts.tokens("operator-of-default")[0].id
    assert client.post(f"/account/token/{token_id}/revoke", data={"csrf": client.csrf}).status_code == 303
    assert seeds.accounts.of_token(token) is None


CHANGES = [
    ("POST", "/runs/{run}/ask", {"action": "pause", "key": "k"}),
    ("POST", "/workflows/default/nightly/online", {"online": "no"}),
    ("POST", "/users", {"name": "evil"}),
    ("POST", "/account/token", {"name": "evil"}),
    ("POST", "/edit", {"do": "apply", "yaml": "x"}),
    ("POST", "/sign-out", {}),
]


@pytest.mark.parametrize(("method", "path", "fields"), CHANGES, ids=[path for _, path, _ in CHANGES])
@pytest.mark.parametrize("proof", ["none", "wrong", "of another session", "from another site", "of another origin"])
def test_a_change_that_none_of_our_pages_asked_for_is_refused(browser, seeds, method, path, fields, proof):
    client = browser()
    csrf = {"none": "", "wrong": "x" * 43, "of another session": browser().csrf}.get(proof, client.csrf)
    headers = {
        "from another site": {"Sec-Fetch-Site": "cross-site"},
        "of another origin": {"Origin": "http://evil.example"},
    }
    where = path.replace("{run}", "1")
    answer = client.request(method, where, data={**fields, "csrf": csrf}, headers=headers.get(proof, {}))
    assert answer.status_code == 403, answer.text
    assert seeds.accounts.of_cookie(client.cookies["latchwork"]) is not None


def test_the_proof_is_in_each_form_of_our_pages(browser, seeds):
    run, client = seeds.run(HALF), browser()
    for path in (f"/runs/{run}", "/account", "/users", "/edit", "/schedules", "/workflows/default/nightly"):
        text = client.get(path).text
        changes = text.count('method="post"')
        assert changes >= 2, path
        assert text.count(f'name="csrf" value="{client.csrf}"') == changes, path


def test_the_api_asks_a_browser_for_the_same_proof(browser, seeds):
    run, client = seeds.run(HALF), browser()
    assert client.post(f"/api/v1/instances/{run}:pause").status_code == 403
    assert client.post(f"/api/v1/instances/{run}:pause", headers={"X-CSRF-Token": client.csrf}).status_code == 202
    assert client.get(f"/api/v1/instances/{run}").status_code == 200


def test_who_comes_by_another_name_is_not_looked_at(site):
    """A page of somebody else's, whose name was made to lead to us, would ask with the browser's cookie."""
    for host, status in (
        ("evil.example", 400),
        ("testserver:80", 200),
        ("TESTSERVER", 200),
        ("", 400),
        ("[::1]:1", 400),
    ):
        assert TestClient(site, headers={"Host": host}).get("/healthz").status_code == status, host


def test_every_answer_has_the_headers_that_keep_scripts_out(site, browser):
    for path in ("/", "/nowhere", "/static/latchwork.css", "/api/v1/workflows", "/sign-in"):
        headers = browser().get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
    assert browser().get("/runs").headers["cache-control"] == "no-store"


def test_a_password_is_stored_as_what_scrypt_makes_of_it():
    stored = hash_password(PASSWORD)
    assert PASSWORD not in stored
    assert stored != hash_password(PASSWORD)
    assert check_password(PASSWORD, stored)
    assert not check_password(PASSWORD + "x", stored)
    assert not check_password(PASSWORD, None)
    with pytest.raises(ValueError, match="10 to 200"):
        hash_password("short")


def test_tries_of_one_name_slow_down_no_other():
    tries = Tries()
    for _ in range(6):
        tries.failed("a")
    assert tries.wait_s("a") > 5
    assert tries.wait_s("b") == 0
    tries.right("a")
    assert tries.wait_s("a") == 0
