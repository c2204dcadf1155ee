"""The pytest fixtures, in runs of pytest of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture
def run(pytester, monkeypatch):
    """Run a test file, in a process of its own if need be; what it printed and how many tests ended how."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run_file(source, *arguments, ini="", alone=False):
        pytester.makeini(f"[pytest]\n{ini}")
        pytester.makepyfile(test_it=source)
        start = pytester.runpytest_subprocess if alone else pytester.runpytest_inprocess
        return start("-p", "no:cacheprovider", *arguments)

    return run_file


USES_THE_STORE = """
    import latchwork

    def test_first(latchwork_store):
        latchwork_store.put("a", b"1")
        assert latchwork_store.get("a").value == b"1"

    def test_second(latchwork_store):
        assert latchwork_store.list("") == []
        print("url:", latchwork_store.url)
"""


def test_a_store_is_empty_in_each_test_and_in_memory_unless_asked_otherwise(run):
    result = run(USES_THE_STORE, "-s")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*url: memory://test-*"])


def test_the_backend_is_chosen_by_option(run):
    result = run(USES_THE_STORE, "-s", "--latchwork-backend=sqlite")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*url: sqlite:///*"])


def test_the_backend_is_chosen_by_ini_file_and_the_option_wins(run):
    result = run(USES_THE_STORE, "-s", ini="latchwork_backend = sqlite")
    result.stdout.fnmatch_lines(["*url: sqlite:///*"])
    result = run(USES_THE_STORE, "-s", "--latchwork-backend=memory", ini="latchwork_backend = sqlite")
    result.stdout.fnmatch_lines(["*url: memory://*"])


def test_the_backend_and_the_options_of_its_url_are_chosen_by_marker(run):
    result = run(
        """
        import pytest

        @pytest.mark.latchwork("sqlite", session_ttl_s=3)
        def test_marked(latchwork_store):
            assert latchwork_store.capabilities.name == "sqlite"
            assert latchwork_store.session.ttl_s == 3

        @pytest.mark.latchwork(backend="memory")
        def test_named(latchwork_store):
            assert latchwork_store.capabilities.name == "memory"
        """,
        "--strict-markers",
    )
    result.assert_outcomes(passed=2)


def test_a_test_can_run_on_several_backends(run):
    result = run(
        """
        import latchwork, pytest

        @pytest.mark.parametrize("latchwork_backend", ["sqlite"], indirect=True)
        def test_empty(latchwork_store):
            assert latchwork_store.list("") == []

        @pytest.mark.parametrize("latchwork_backend", ["memory", "sqlite", "etcd", "zookeeper"], indirect=True)
        def test_everywhere(latchwork_store, latchwork_url, latchwork_backend):
            assert latchwork_url.startswith(latchwork_backend.replace("zookeeper", "zk"))
            latchwork_store.put("a", b"1")
            with latchwork.connect(latchwork_url) as other:
                assert other.get("a").value == b"1"
        """
    )
    result.assert_outcomes(passed=5)


def test_real_servers_are_started_once_for_the_whole_run(run):
    result = run(
        """
        def test_first(latchwork_etcd, latchwork_zookeeper):
            print("pids", latchwork_etcd.endpoint, latchwork_zookeeper.endpoint)

        def test_second(latchwork_etcd, latchwork_zookeeper):
            print("pids", latchwork_etcd.endpoint, latchwork_zookeeper.endpoint)
            assert latchwork_etcd.version == "3.4"
        """,
        "-s",
        "--latchwork-etcd-version=3.4",
    )
    result.assert_outcomes(passed=2)
    lines = [line.partition("pids")[2] for line in result.outlines if "pids" in line]
    assert len(lines) == 2
    assert lines[0] == lines[1]


def test_a_running_server_is_used_by_its_address(run, etcd35):
    result = run(
        """
        def test_it(latchwork_store, latchwork_etcd):
            latchwork_store.put("a", b"1")
            print("url:", latchwork_store.url)
        """,
        "-s",
        "--latchwork-backend=etcd",
        f"--latchwork-etcd=etcd://{etcd35.endpoint}",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"*url: etcd://{etcd35.endpoint}/test-*"])


@pytest.mark.parametrize(
    ("variable", "value", "backend"),
    [("LATCHWORK_ETCD35", "/nowhere/etcd", "etcd"), ("PATH", "/nowhere", "zookeeper")],
)
def test_a_missing_server_is_a_skip_that_says_what_to_install(run, monkeypatch, variable, value, backend):
    monkeypatch.setenv(variable, value)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    result = run(USES_THE_STORE, "-rs", f"--latchwork-backend={backend}")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*needs a real * is not installed*"])


def test_an_unknown_backend_is_an_error_that_lists_the_known_ones(run):
    result = run(USES_THE_STORE, "--latchwork-backend=redis")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*'redis' is unknown; use one of memory, sqlite, etcd, zookeeper*"])


def test_a_store_lives_by_the_virtual_clock_of_its_test(run):
    result = run(
        """
        def test_it(latchwork_store, latchwork_virtual_clock):
            assert latchwork_store.clock is latchwork_virtual_clock
            session = latchwork_store.session
            latchwork_virtual_clock.advance(100)
            assert session.state == "active"
        """
    )
    result.assert_outcomes(passed=1)


def test_a_store_lives_in_the_simulation_of_its_test_and_the_seed_decides_the_turns(run):
    source = """
        def test_it(latchwork_store, latchwork_simulation):
            order = []
            threads = [
                latchwork_simulation.spawn(lambda n=n: (latchwork_store.get("a"), order.append(n)), name=str(n))
                for n in range(8)
            ]
            for thread in threads:
                thread.join()
            latchwork_simulation.sleep(3600)
            print("order:", order)
        """
    orders = set()
    for seed in (1, 2, 1):
        result = run(source, "-s", f"--latchwork-seed={seed}")
        result.assert_outcomes(passed=1)
        orders.add(next(line for line in result.outlines if "order:" in line))
    assert len(orders) == 2


def test_virtual_time_on_a_real_server_is_refused(run):
    result = run(
        "def test_it(latchwork_store, latchwork_virtual_clock): pass",
        "--latchwork-backend=sqlite",
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*latchwork_virtual_clock needs the memory backend*"])


@pytest.mark.slow
def test_fixtures_work_in_processes_side_by_side(run):
    result = run(USES_THE_STORE, "-n", "2", "--latchwork-backend=etcd", alone=True)
    result.assert_outcomes(passed=2)


@pytest.mark.slow
def test_a_run_that_uses_no_fixture_imports_nothing_of_latchwork(run):
    result = run(
        """
        import sys

        def test_it():
            loaded = [name for name in sys.modules if name.split(".")[0] in {"latchwork", "kazoo", "grpc", "sqlite3"}]
            assert loaded == []
        """,
        alone=True,
    )
    result.assert_outcomes(passed=1)


def test_the_plugin_itself_is_loaded_in_no_time():
    script = (
        "import pytest, time\nbefore = time.perf_counter()\nimport latchwork_testkit.pytest_plugin\n"
        "print(time.perf_counter() - before)"
    )
    took = [
        float(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(took) < 0.05
