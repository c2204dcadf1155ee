"""Pages over HTTPS, by the server itself and behind a proxy, and the warning of those that have neither."""

import logging
import re
import socket
import ssl
import subprocess
import time
from pathlib import Path

import httpx
import pytest
import trustme

from latchwork.errors import LatchworkError
from latchwork_testkit.nginx import find_nginx
from latchwork_testkit.ports import reserve_port
from latchwork_workflows.db import Database
from latchwork_workflows.db.accounts import DatabaseAccounts
from latchwork_workflows.db.migrations import upgrade_schema
from latchwork_workflows.home import Home
from latchwork_workflows.serve import Serve, ServeOptions
from latchwork_workflows.web import Role
from missing import found_or_skipped
from patience import eventually
from workflows.test_command_line import flows

assert flows  # a fixture: a command in this process
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "serve-pages-over-https.md"
NAME = "flows.example.org"


class Certificate:
    def __init__(self, folder):
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", "localhost", NAME)
        self.pem, self.key = folder / "chain.pem", folder / "key.pem"
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.pem.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        self.client = ssl.create_default_context()
        authority.configure_trust(self.client)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return Certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def serve(tmp_path, request):
    """Start pages alone: `serve(host="0.0.0.0")`."""

    def start(**fields):
        options = ServeOptions(**{"port": 0, "worker": None, "has_master": False, **fields})
        made = Serve(Home.of(tmp_path / "home", environ={}), options).start()
        request.addfinalizer(made.close)
        return made

    return start


@pytest.fixture
def served(tmp_path):
    """A home, for the fixture of commands."""
    home = Home.of(tmp_path / "home", environ={})
    with Serve(home, ServeOptions(has_pages=False, has_master=False)) as made:
        yield made


@pytest.fixture
def with_password(tmp_path):
    """An account that has a password: without one, pages are for this machine alone."""
    home = Home.of(tmp_path / "home", environ={})
    home.create_folder()
    database = Database(home.database)
    upgrade_schema(database)
    accounts = DatabaseAccounts(database)
    accounts.create_account("ann", "correct horse battery", by="test")
    accounts.set_role("ann", "", Role.ADMIN, by="test")
    database.close()


def sign_in(client, link):
    """Follow a sign-in link, as the button of its page does."""
    url = httpx.URL(link)
    data = {"link": url.params["link"]}
    return client.post("/sign-in", data=data, headers={"Origin": f"{url.scheme}://{url.netloc.decode()}"})


def test_cookie_over_tls_is_secure_and_the_sign_in_link_begins_with_https(serve, certificate):
    served = serve(tls_cert=certificate.pem, tls_key=certificate.key)
    link = served.admin_link()
    assert link.startswith(f"{served.url}/sign-in?link=")
    assert served.url.startswith("https://127.0.0.1:")
    with httpx.Client(base_url=served.url, verify=certificate.client) as client:
        answer = sign_in(client, link)
        assert answer.status_code == 303
        assert "; Secure" in answer.headers["set-cookie"]
        assert "strict-transport-security" not in answer.headers
        assert client.get("/users").status_code == 200


def test_addresses_have_a_name_that_browsers_may_use(serve, certificate):
    tls = {"tls_cert": certificate.pem, "tls_key": certificate.key}
    assert re.fullmatch(rf"https://{NAME}:\d+", serve(names=(NAME,), **tls).url)


def test_address_behind_a_proxy_is_the_one_of_the_proxy(serve):
    assert serve(names=(NAME,), proxy_headers=True).url == f"https://{NAME}"


@pytest.mark.parametrize("command", ["serve", "api"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tls-cert", "c.pem"], "give both --tls-cert and --tls-key for HTTPS, or none of them"),
        (["--tls-key", "k.pem"], "give both --tls-cert and --tls-key for HTTPS, or none of them"),
        (["--trusted-proxy", "10.0.0.7"], "--trusted-proxy needs --proxy-headers"),
        (["--proxy-headers", "--trusted-proxy", "*"], "--trusted-proxy '*' is not an address or network"),
        (["--proxy-headers", "--trusted-proxy", "10.0.0.7/8"], "--trusted-proxy '10.0.0.7/8' is not an address"),
    ],
    ids=["no key", "no certificate", "not believed", "any", "host bits"],
)
def test_options_that_do_not_fit_are_one_clear_error(flows, command, arguments, message):
    flows(command, *arguments).refused(2, message)


def test_certificate_that_is_not_there_is_an_error_before_anything_is_made(tmp_path):
    options = ServeOptions(tls_cert=tmp_path / "c.pem", tls_key=tmp_path / "k.pem")
    with pytest.raises(LatchworkError, match="there is no file"):
        Serve(Home.of(tmp_path / "home", environ={}), options).start()
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("how", "warnings"),
    [
        ({"host": "0.0.0.0"}, 1),
        ({"host": "127.0.0.1"}, 0),
        ({"host": "0.0.0.0", "proxy_headers": True}, 0),
        ({"host": "0.0.0.0", "tls": True}, 0),
    ],
    ids=["plain", "loopback", "proxy", "tls"],
)
def test_plain_pages_for_other_machines_are_warned_of_once(serve, with_password, certificate, caplog, how, warnings):
    if how.pop("tls", False):
        how |= {"tls_cert": certificate.pem, "tls_key": certificate.key}
    with caplog.at_level(logging.WARNING, "latchwork_workflows.serve"):
        serve(**how)
    told = [each.getMessage() for each in caplog.records if each.name == "latchwork_workflows.serve"]
    assert len(told) == warnings
    assert all("Give --tls-cert and --tls-key, or listen on 127.0.0.1 behind a proxy" in each for each in told)


# A real proxy with the documented configuration


@pytest.fixture
def proxied(serve, certificate, tmp_path):
    """Pages behind nginx: the server, and the port of nginx."""
    program = found_or_skipped(find_nginx)
    reserved = [reserve_port() for _ in range(2)]
    behind, port = (each.port for each in reserved)
    served = serve(port=behind, names=(NAME,), proxy_headers=True)
    (text,) = re.findall(r"^```nginx\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for old, new in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("127.0.0.1:8770", f"127.0.0.1:{behind}"),
        ("/etc/ssl/flows", str(certificate.pem.parent)),
    ):
        assert text.count(old) >= 1, old
        text = text.replace(old, new)
    temporary = "".join(f"{each}_temp_path {tmp_path}/{each};\n" for each in KINDS)
    config = tmp_path / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; pid {tmp_path}/pid; error_log {tmp_path}/errors;\n"
        f"events {{}}\nhttp {{ access_log off;\n{temporary}{text}}}\n"
    )
    given = [program, "-p", str(tmp_path), "-e", str(tmp_path / "errors"), "-c", str(config)]
    checked = subprocess.run([*given, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    running = subprocess.Popen(given)

    eventually(lambda: _listens(port))
    yield served, port
    running.terminate()
    running.wait(30)
    for each in reserved:
        each.release()


KINDS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def _listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def browser(port, certificate):
    """One that finds the name at the port of nginx."""
    origin = f"https://{NAME}:{port}"
    transport = httpx.HTTPTransport(verify=certificate.client)
    return Named(origin, port, transport)


class Named(httpx.Client):
    def __init__(self, origin, port, transport):
        super().__init__(base_url=f"https://127.0.0.1:{port}", transport=transport, timeout=30)
        self.origin = origin
        self.headers["Host"] = origin.removeprefix("https://")


def test_browser_signs_in_through_the_documented_proxy_and_its_live_stream_is_not_buffered(proxied, certificate):
    served, port = proxied
    with browser(port, certificate) as client:
        data = {"link": httpx.URL(served.admin_link()).params["link"]}
        assert client.post("/sign-in", data=data, headers={"Origin": "https://elsewhere.example"}).status_code == 403
        answer = client.post("/sign-in", data=data, headers={"Origin": client.origin})
        assert (answer.status_code, "; Secure" in answer.headers["set-cookie"]) == (303, True)
        cookie = answer.headers["set-cookie"].partition(";")[0]
        assert client.get("/users", headers={"Cookie": cookie}).status_code == 200
        began = time.monotonic()
        with client.stream("GET", "/api/v1/events", headers={"Cookie": cookie}) as stream:
            assert next(stream.iter_lines())
        assert time.monotonic() - began < 10


def test_links_for_others_have_scheme_and_name_of_the_proxy(proxied, certificate):
    served, port = proxied
    with browser(port, certificate) as client:
        data = {"link": httpx.URL(served.admin_link()).params["link"]}
        answer = client.post("/sign-in", data=data, headers={"Origin": client.origin})
        mine = {"Cookie": answer.headers["set-cookie"].partition(";")[0], "Origin": client.origin}
        csrf = re.search(r'name="csrf" value="([^"]+)"', client.get("/users", headers=mine).text)[1]
        page = client.post("/users/admin/link", data={"csrf": csrf}, headers=mine)
        assert f"{client.origin}/sign-in?link=" in page.text


def test_host_names_that_the_server_does_not_have_are_refused_through_the_proxy(proxied, certificate):
    _, port = proxied
    with browser(port, certificate) as client:
        client.headers["Host"] = "elsewhere.example"
        answer = client.get("/sign-in")
        assert (answer.status_code, "is not a host name of this server" in answer.text) == (400, True)
