"""Signing in and out, and that a browser does nothing which none of our pages asked for."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient

from latchwork_workflows.web import AttemptLimit, Role, TooManyAttempts, hash_password, matches_password
from workflows.web.seeds import HALF, PASSWORD

FORM = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def ann(seeds):
    seeds.accounts.create_account("ann", PASSWORD, by="test")
    seeds.accounts.set_role("ann", "", Role.ADMIN, by="test")
    return "ann"


@pytest.fixture
def fresh(site, seeds):
    site.state.context.accounts.tries = seeds.accounts.tries = AttemptLimit()
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
    link = seeds.accounts.create_sign_in_link("admin", by="test")
    assert fresh.get(f"/sign-in?link={link}").status_code == 200  # who fetches it ahead uses nothing up
    assert fresh.post("/sign-in", data={"link": link}).status_code == 303
    fresh.cookies.clear()
    assert fresh.post("/sign-in", data={"link": link}).status_code == 401
    late = seeds.accounts.create_sign_in_link("admin", by="test", lasts_s=-1.0)
    assert fresh.post("/sign-in", data={"link": late}).status_code == 401
    assert fresh.post("/sign-in", data={"link": seeds.tokens["admin"]}).status_code == 401


def test_signing_out_ends_the_session_and_not_the_cookie_alone(browser):
    client = browser()
    cookie = client.cookies["latchwork"]
    assert client.post("/sign-out", data={"csrf": client.csrf}).status_code == 303
    client.cookies.set("latchwork", cookie)
    assert client.get("/runs").status_code == 303


def test_a_new_password_ends_all_sessions_links_and_tokens(fresh, browser, seeds):
    seeds.accounts.create_account("bob", PASSWORD, by="test")
    token, link = seeds.token("bob"), seeds.accounts.create_sign_in_link("bob", by="test")
    one, other = browser("bob"), browser("bob")
    fields = {"csrf": one.csrf, "current": PASSWORD, "password": "another long one", "again": "another long one"}
    assert one.post("/account/password", data={**fields, "again": "differs, surely"}).status_code == 422
    assert one.post("/account/password", data=fields).status_code == 303
    assert other.get("/account").status_code == 303
    assert seeds.accounts.find_identity_by_token(token) is None
    assert seeds.accounts.sign_in_by_link(link) is None
    assert seeds.accounts.sign_in("bob", "another long one") is not None


def test_a_new_password_needs_the_current_one_of_the_person_who_asks(fresh, browser, seeds):
    for name in ("carl", "dora"):
        seeds.accounts.create_account(name, PASSWORD, by="test")
    seeds.accounts.set_role("carl", "", Role.ADMIN, by="test")
    carl = browser("carl")
    new = {"password": "another long one", "again": "another long one"}
    headers = {"X-CSRF-Token": carl.csrf}
    for name in ("carl", "dora"):
        for current in ("", "not the password"):
            given = {"password": "another long one", "current": current}
            assert carl.patch(f"/api/v1/users/{name}", json=given, headers=headers).status_code == 403
    assert carl.post("/account/password", data={"csrf": carl.csrf, **new}).status_code == 403
    assert carl.get("/account").status_code == 200
    given = {"password": "another long one", "current": PASSWORD}
    assert (
        carl.patch("/api/v1/users/dora", json=given, headers=headers).status_code == 429
    )  # the fifth guess was the last
    seeds.accounts.tries.reset("carl")
    assert carl.patch("/api/v1/users/dora", json=given, headers=headers).status_code == 204
    assert seeds.accounts.sign_in("dora", "another long one") is not None


def test_a_limited_token_changes_nothing_about_accounts(fresh, site, seeds):
    seeds.accounts.create_account("boss", PASSWORD, by="test")
    seeds.accounts.set_role("boss", "", Role.ADMIN, by="test")
    other = seeds.accounts.create_token("admin", "other", by="test")[0]
    for role in (Role.VIEWER, None):
        token_id, token = seeds.accounts.create_token("boss", "ci", by="test", role=role, lasts_s=3600)
        program = TestClient(site, follow_redirects=False, headers={"Authorization": f"Bearer {token}"})
        new = {"password": "attacker-password", "again": "attacker-password", "current": PASSWORD}
        for method, path, given in (
            ("PATCH", "/api/v1/users/boss", {"json": {"password": "attacker-password", "current": PASSWORD}}),
            ("PATCH", "/api/v1/users/pupil", {"json": {"password": "attacker-password", "current": PASSWORD}}),
            ("PATCH", "/api/v1/users/pupil", {"json": {"enabled": False}}),
            ("POST", "/api/v1/users", {"json": {"name": "accomplice"}}),
            ("PUT", "/api/v1/users/pupil/role", {"json": {"project": "", "role": "admin"}}),
            ("POST", "/api/v1/tokens", {"json": {"name": "for ever"}}),
            ("DELETE", f"/api/v1/tokens/{other}", {}),
            ("DELETE", f"/api/v1/tokens/{token_id}", {}),
            ("POST", "/account/password", {"data": new}),
            ("POST", "/account/token", {"data": {"name": "for ever"}}),
            ("POST", f"/account/token/{token_id}/revoke", {}),
            ("POST", "/users", {"data": {"name": "accomplice"}}),
            ("POST", "/users/pupil/role", {"data": {"project": "", "role": "admin"}}),
            ("POST", "/users/pupil/enabled", {"data": {"enabled": "no"}}),
            ("POST", "/users/pupil/link", {}),
        ):
            assert program.request(method, path, **given).status_code == 403, (role, method, path)
        assert seeds.accounts.find_identity_by_token(token) is not None
    assert seeds.accounts.sign_in("boss", PASSWORD) is not None
    assert "accomplice" not in {each.name for each in seeds.accounts.list_accounts()}


def test_switching_an_account_off_ends_its_sessions_and_tokens_for_good(fresh, browser, seeds):
    seeds.accounts.create_account("eve", PASSWORD, by="test")
    token, eve, admin = seeds.token("eve"), browser("eve"), browser()
    for enabled in (False, True):
        headers = {"X-CSRF-Token": admin.csrf}
        assert admin.patch("/api/v1/users/eve", json={"enabled": enabled}, headers=headers).status_code == 204
        assert seeds.accounts.find_identity_by_token(token) is None
        assert eve.get("/account").status_code == 303
        assert (seeds.accounts.sign_in("eve", PASSWORD) is not None) is enabled


def test_the_audit_names_the_person_who_made_a_link_for_another(browser, ask):
    admin = browser()
    assert admin.post("/users/pupil/link", data={"csrf": admin.csrf}).status_code == 200
    newest = ask("admin").get("/api/v1/audit?by=admin&limit=1").json()[0]
    assert (newest["kind"], newest["details"]) == ("account link", {"account": "pupil"})


def test_the_text_of_a_token_is_shown_once(browser, seeds):
    client = browser("operator-of-default")
    made = client.post("/account/token", data={"csrf": client.csrf, "name": "ci", "role": "viewer", "days": "1"})
    token = made.text.split('class="secret">')[1].split("<")[0]
    assert seeds.accounts.find_identity_by_token(token).roles["default"] is Role.VIEWER
    assert token not in client.get("/account").text
    token_id = seeds.accounts.list_tokens("operator-of-default")[0].id
    assert client.post(f"/account/token/{token_id}/revoke", data={"csrf": client.csrf}).status_code == 303
    assert seeds.accounts.find_identity_by_token(token) is None


CHANGES = [
    ("POST", "/runs/{run}/action", {"action": "pause", "key": "k"}),
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
    assert seeds.accounts.find_identity_by_cookie(client.cookies["latchwork"]) is not None


def test_the_proof_is_in_each_form_of_our_pages(browser, seeds):
    run, client = seeds.run(HALF), browser()
    for path in (f"/runs/{run}", "/account", "/users", "/edit", "/schedules", "/workflows/default/nightly"):
        text = client.get(path).text
        changes = text.count('method="post"')
        assert changes >= 2, path
        assert text.count(f'name="csrf" value="{client.csrf}"') == changes, path


def test_the_api_asks_a_browser_for_the_same_proof(browser, seeds):
    run, client = seeds.run(HALF), browser()
    assert client.post(f"/api/v1/runs/{run}:pause").status_code == 403
    assert client.post(f"/api/v1/runs/{run}:pause", headers={"X-CSRF-Token": client.csrf}).status_code == 202
    assert client.get(f"/api/v1/runs/{run}").status_code == 200


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
    assert matches_password(PASSWORD, stored)
    assert not matches_password(PASSWORD + "x", stored)
    assert not matches_password(PASSWORD, None)
    with pytest.raises(ValueError, match="10 to 200"):
        hash_password("short")


def test_guesses_of_one_name_are_limited_and_slow_down_no_other():
    now = [0.0]
    tries = AttemptLimit(lambda: now[0])
    for _ in range(5):
        tries.count_attempt("a")
    with pytest.raises(TooManyAttempts, match="10 s"):
        tries.count_attempt("A")
    tries.count_attempt("b")
    now[0] = 11.0
    tries.count_attempt("a")
    with pytest.raises(TooManyAttempts, match="20 s"):
        tries.count_attempt("a")
    tries.reset("a")
    tries.count_attempt("a")


def test_guesses_of_one_name_from_many_addresses_are_limited(site, fresh, ann):
    def guess(number):
        client = TestClient(site, follow_redirects=False, headers=FORM, client=(f"192.0.2.{number}", 50000))
        claim = {"X-Forwarded-For": f"198.51.100.{number}"}
        return client.post("/sign-in", data={"name": ann, "password": "wrong-password"}, headers=claim).status_code

    assert [guess(number) for number in range(8)] == [401] * 5 + [429] * 3


def test_guesses_at_the_same_time_are_no_more_than_guesses_in_a_row(fresh, seeds, ann):
    def guess(number):
        return fresh.post("/sign-in", data={"name": ann, "password": f"wrong-password-{number}"}).status_code

    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(guess, range(20)))
    assert (found.count(401), found.count(429)) == (5, 15)
