"""latchwork next to other clients of etcd in one process, in both orders of import: each keeps working.

By default this tests python-etcd3 alone, as it is installed here. `make check WHAT=clients` also tests its fork, which
installs the same module, and aetcd, each in a separate environment.
"""

from __future__ import annotations

import re
import uuid

import pytest

from environments import LONG, ROOT, Environment, wheels_if_long

pytestmark = pytest.mark.timeout(1800 if LONG else 120)

PURE = 'import os\nos.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"\n'
OURS = """
import latchwork
with latchwork.connect("{url}") as store:
    print(store.put("ours", b"1").value)
"""
ETCD3 = """
import etcd3
client = etcd3.client("{host}", {port})
client.put("/{root}/theirs", "2")
print(client.get("/{root}/theirs")[0])
"""
SHARED = """
with latchwork.connect(client=client, root="{root}") as store, store.watch("seen") as watch:
    print(store.get("ours").value, store.get("theirs").value, len(watch.next(10)))
    store.put("seen", b"3", session=store.session)
    print([change.entry.value for change in watch.next(10)])
print(client.get("/{root}/seen"), client.get("/{root}/ours")[0])
client.close()
"""
AETCD = """
import asyncio
import aetcd
async def use():
    async with aetcd.Client("{host}", {port}) as client:
        await client.put(b"/{root}/theirs", b"2")
        print((await client.get(b"/{root}/theirs")).value)
asyncio.run(use())
"""
#: By name: extras of latchwork, what else is installed, what comes first in the program, and what uses the client.
CLIENTS = {
    "python-etcd3": ("etcd3", (), PURE, ETCD3),
    **({"cslab-etcd3": ("etcd", ("cslab-etcd3==0.12.1",), "", ETCD3)} if LONG else {}),
    **({"aetcd": ("etcd", ("aetcd",), "", AETCD)} if LONG else {}),
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Return a function that makes the environment with latchwork and one of the clients, once for each client."""
    wheels = wheels_if_long(tmp_path_factory.mktemp("wheels"))
    environments = {}

    def make(name):
        if name not in environments:
            extras, more, _, _ = CLIENTS[name]
            environments[name] = Environment(tmp_path_factory.mktemp("environment"), extras, more, wheels)
        return environments[name]

    return make


@pytest.mark.parametrize("ours_first", [True, False], ids=["ours-first", "theirs-first"])
@pytest.mark.parametrize("name", CLIENTS)
def test_both_clients_work_in_one_process(environment, name, ours_first, etcd35):
    _, _, first, theirs = CLIENTS[name]
    parts, printed = [OURS, theirs], ["b'1'", "b'2'"]
    if not ours_first:
        parts.reverse()
        printed.reverse()
    if theirs is ETCD3:
        parts.append(SHARED)
        printed += ["b'1' b'2' 0", "[b'3']", "(None, None) b'1'"]
    root = f"clients-{uuid.uuid4().hex}"
    host, _, port = etcd35.endpoint.rpartition(":")
    program = first + "".join(parts).format(url=etcd35.url(root), host=host, port=port, root=root)
    done = environment(name).run("python", "-W", "error::ResourceWarning", "-c", program)
    assert (done.returncode, done.stdout.splitlines()) == (0, printed), done.stderr


@pytest.mark.parametrize("before", ["", "import latchwork.backends.etcd.backend\n"], ids=["alone", "ours-first"])
def test_python_etcd3_without_the_variable_ends_with_an_error_that_names_it(environment, before):
    done = environment("python-etcd3").run("python", "-c", f"{before}import etcd3")
    assert done.returncode == 1
    assert "Set PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python" in done.stderr


def test_the_example_of_the_reference_runs(environment, etcd35):
    page = (ROOT / "docs" / "reference" / "urls.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?client=client.*?)```", page, re.DOTALL)
    host, _, port = etcd35.endpoint.rpartition(":")
    done = environment("python-etcd3").run(
        "python", "-c", example.replace("127.0.0.1", host).replace("port=2379", f"port={port}")
    )
    assert (done.returncode, done.stdout) == (0, "b'1'\n"), done.stderr
