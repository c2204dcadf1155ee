"""What installing and importing latchwork brings: with each extra what it is for, and no more."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from environments import EXTRAS, LONG, PROJECT, ROOT, Environment, needed, wheels_if_long

pytestmark = pytest.mark.timeout(1800 if LONG else 120)

#: What the command line is made of.
COMMAND_LINE = {"rich", "typer", "click", "shellingham", "pydantic", "pydantic-core", "markdown-it-py"}
REMEDY = 'pip install "latchwork[cli]"'
NAMED = re.compile(r"latchwork\[([a-z,-]+)\]")
#: Works on any store, and looks what it took.
USES_A_STORE = """
import sys
import latchwork, latchwork.jobs, latchwork.testing
from latchwork.primitives import PersistentLock

with latchwork.connect({url!r}) as store, PersistentLock(store, "lock") as fence:
    store.commit([fence], [latchwork.Put("key", b"value")])
    print(store.get("key").value)
print(sorted({{"rich", "typer", "click", "pydantic"}} & set(sys.modules)))
"""


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Gives the environment with some extras, which tests share and leave as it is, or one of a test's own."""
    wheels = wheels_if_long(tmp_path_factory.mktemp("wheels"))
    shared = {}

    def make(extras, *more, own=False):
        if not own and extras in shared:
            return shared[extras]
        one = Environment(tmp_path_factory.mktemp("environment"), extras, more, wheels)
        return one if own else shared.setdefault(extras, one)

    return make


def test_cronsim_and_msgspec_are_all_that_latchwork_itself_needs(made):
    assert made("").distributions() == {"cronsim", "msgspec"}


@pytest.mark.parametrize(
    ("extra", "libraries"),
    [
        ("etcd", {"grpcio", "protobuf"}),
        ("etcd3", {"etcd3", "grpcio", "protobuf"}),
        ("zookeeper", {"kazoo"}),
        ("metrics", {"prometheus-client"}),
        ("pickle", {"cloudpickle"}),
    ],
)
def test_an_extra_brings_its_libraries_and_nothing_of_the_command_line(made, extra, libraries):
    found = made(extra).distributions()
    assert found >= libraries | {"cronsim"}
    assert not found & COMMAND_LINE


def test_the_extra_of_the_command_line_brings_no_client_library(made):
    found = made("cli").distributions()
    assert found >= {"rich", "typer", "cronsim"}
    assert not found & {"grpcio", "kazoo", "prometheus-client", "opentelemetry-api"}


def test_the_messages_of_etcd_are_generated_for_the_oldest_protobuf_of_the_extra():
    generated = (ROOT / "python/latchwork/backends/etcd/rpc_pb2.py").read_text()
    version = re.search(r"# Protobuf Python Version: (\S+)", generated)[1]
    (least,) = [Requirement(each).specifier for each in EXTRAS["etcd"] if each.startswith("protobuf")]
    (oldest,) = [Version(each.version) for each in least if each.operator == ">="]
    assert Version(version) <= oldest
    assert Version(version).major == oldest.major, "protobuf runs code of its own major version and of the one before"


def test_all_has_every_extra_but_those_whose_libraries_are_unmaintained():
    (text,) = EXTRAS["all"]
    assert sorted(NAMED.fullmatch(text)[1].split(",")) == sorted(EXTRAS.keys() - {"all", "etcd3", "zookeeper-sasl"})


def test_no_extra_brings_the_command_line_but_its_own_and_all():
    bring = {extra for extra in EXTRAS if COMMAND_LINE & needed([f"latchwork[{extra}]"])}
    assert bring == {"alerts", "cli", "workflows", "workflows-postgres", "all"}  # that of workflows is theirs, too


@pytest.mark.parametrize("command", [(), ("--version",), ("status", "--url", "sqlite:///app.db")])
def test_without_the_extra_the_command_line_names_it_in_one_line_and_exits_with_1(made, command):
    done = made("").run("latchwork", *command)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: the command line needs rich and typer; run: {REMEDY}\n"


def test_with_the_extra_the_command_line_works(made):
    installed = made("cli")
    assert installed.run("latchwork", "--version").stdout == f"latchwork {PROJECT['version']}\n"
    done = installed.run("latchwork", "status", "--url", "sqlite:///app.db")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "app.db does not exist" in done.stderr


def test_a_command_on_a_server_without_its_extra_names_that_extra(made):
    done = made("cli").run("latchwork", "status", "--url", "etcd://127.0.0.1:2379")
    assert done.returncode == 2
    assert 'pip install "latchwork[etcd]"' in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "broken", ["raise ImportError('built for another Python')", "import a_library_that_typer_needs"]
)
def test_a_library_of_the_extra_that_is_there_but_broken_is_not_taken_for_a_missing_extra(made, broken):
    installed = made("", own=True)
    installed.write("rich", "")
    installed.write("typer", broken)
    done = installed.run("latchwork", "--help")
    assert done.returncode == 1
    assert REMEDY not in done.stderr
    assert broken in done.stderr, "the traceback shows where"


@pytest.mark.parametrize(("extra", "server"), [("", None), ("etcd", "etcd35"), ("zookeeper", "zookeeper")])
def test_a_store_needs_its_own_extra_and_never_the_command_line(made, extra, server, request):
    url = request.getfixturevalue(server).url("extras") if server else "sqlite:///app.db"
    done = made(extra).run("python", "-W", "error", "-c", USES_A_STORE.format(url=url))
    assert (done.returncode, done.stdout) == (0, "b'value'\n[]\n"), done.stderr


def test_the_fixtures_for_pytest_do_not_need_the_command_line(made):
    installed = made("", "latchwork-testkit", own=True)
    installed.write("test_it", "def test_it(latchwork_store):\n    latchwork_store.put('k', b'v')\n")
    done = installed.run("python", "-m", "pytest", "-q", str(installed.site / "test_it.py"))
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert not installed.distributions() & (COMMAND_LINE - {"pygments"})


@pytest.mark.parametrize(
    ("words", "others"),
    [
        (
            "status",
            {
                "latchwork.executor",
                "latchwork.tasks",
                "latchwork.plans",
                "latchwork.worker_group",
                "latchwork_workflows",
            },
        ),
        ("--debug workers status", {"latchwork.executor", "latchwork.plans", "latchwork_workflows"}),
        ("plans list", {"latchwork.worker_group", "latchwork_workflows"}),
    ],
)
def test_a_command_loads_its_own_part_of_the_command_line(words, others):
    script = (
        "import sys; from latchwork.cli.main import main\n"
        f"sys.argv = ['latchwork', *{words.split()!r}, '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "latchwork.cli.main" in loaded
    assert not others & loaded


def test_importing_latchwork_loads_no_client_library_and_nothing_of_the_command_line():
    names = "[getattr(latchwork, name) for name in latchwork.__all__ if name != 'forget']"  # a part of the primitives
    script = f"import sys; before = set(sys.modules); import latchwork; {names}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "latchwork.store" in loaded
    slow = {"asyncio", "ssl", "http.client", "sqlite3", "importlib.metadata", "multiprocessing", "unittest", "numpy"}
    libraries = {
        "etcd3",
        "grpc",
        "google",
        "kazoo",
        "cronsim",
        "rich",
        "typer",
        "click",
        "pydantic",
        "prometheus_client",
    }
    assert not loaded & slow
    assert not {name.partition(".")[0] for name in loaded} & libraries
    own = {name.split(".")[1] for name in loaded if name.startswith("latchwork.")}
    assert own == {"_base", "backends", "clock", "errors", "store", "types"}


@pytest.mark.serial
def test_importing_latchwork_takes_at_most_30_ms_of_processor_time_and_loads_none_of_its_requirements():
    script = (
        "import sys, time; before = time.process_time(); import latchwork; took = time.process_time() - before\n"
        "print(took, sorted({'msgspec', 'cronsim'} & set(sys.modules)))"
    )
    runs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(20)
    ]
    assert {loaded for _, loaded in runs} == {"[]"}
    assert statistics.median(float(took) for took, _ in runs) <= 0.03


def sources():
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    return [*pages, *(ROOT / "python").rglob("*.py")]


def test_every_extra_that_a_message_or_a_page_names_exists():
    named = {extra for path in sources() for found in NAMED.findall(path.read_text()) for extra in found.split(",")}
    assert named <= EXTRAS.keys()
    assert named >= {"cli", "etcd", "zookeeper", "zookeeper-sasl", "metrics", "tracing"}


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "docs/tutorial-crawler.md", "docs/reference/cli.md"])
def test_a_page_that_types_commands_installs_the_command_line(page):
    installed = re.findall(r'pip install "(latchwork[^"]*)"', (ROOT / page).read_text())
    assert installed
    assert all({"cli", "workflows"} & set(NAMED.fullmatch(each)[1].split(",")) for each in installed)  # both have it


@pytest.mark.parametrize(
    ("command", "distribution"), [("bench assign", "latchwork-testkit"), ("workflows list", "latchwork[workflows]")]
)
def test_a_command_whose_add_on_is_missing_names_it_in_one_line(made, command, distribution):
    done = made("cli").run("latchwork", *command.split())
    assert (done.returncode, done.stdout) == (1, "")
    name = command.split()[0]
    assert done.stderr == f'error: the command {name} is not installed; run: pip install "{distribution}"\n'


def test_the_extra_workflows_installs_the_scheduler_and_its_commands(made):
    installed = made("workflows")
    assert installed.run("latchwork", "workflows", "--help").returncode == 0
    assert "  workflows " in installed.run("latchwork", "--help").stdout
    assert not installed.distributions() & {"psycopg", "apprise", "grpcio", "kazoo"}
