"""No argument ends the process: each case has a process of its own, and gives a result or an exception."""

from __future__ import annotations

import os
import textwrap

import pytest

from native import run

LIES = "class Lies(list):\n    def __len__(self): return 2**61\n"
CASES = {
    "assign 10**18 keys": ("c.RendezvousHasher(['a']).assign(range(10**18))", "TypeError"),
    "assign 2**62 keys": ("c.RendezvousHasher(['a']).assign(range(2**62))", "TypeError"),
    "assign a list that lies about its length": (LIES + "c.RendezvousHasher(['a']).assign(Lies(['x']))", None),
    "items that lie about their length": (LIES + "c.ItemSet(Lies(['x']))", None),
    "10**18 items": ("c.ItemSet(range(10**18))", "TypeError"),
    "2**62 workers": ("c.RendezvousHasher(range(2**62))", "TypeError"),
    "2**62 moves": ("c.choose_moves(range(2**62), 1)", "TypeError"),
    "2**62 jobs": ("c.place('balanced', range(2**62))", "TypeError"),
    "2**62 items with replicas": ("c.place_replicas(1, [0], [1.0], range(2**62))", "TypeError"),
    "2**62 previous owners": ("c.place_replicas(1, [0], [1.0], [range(2**62)])", "ValueError"),
    "2**62 weights": ("c.place_replicas(1, [0], range(2**62), [[0]])", "ValueError"),
    "too many owners": (
        "c.RendezvousHasher(map(str, range(30000))).owners(c.ItemSet(map(str, range(300000))), 30000)",
        "ValueError: 300000 items x 30000 owners are more than 268435456; ask for fewer at a time",
    ),
    "too many replicas": (
        "c.place_replicas(3, [0] * 20000, [1.0] * 20000, [[] for _ in range(60000)])",
        "ValueError: 60000 items x 20000 workers are more than 33554432 pairs; place fewer items at a time",
    ),
    "extreme weights and zones": ("c.place_replicas(2**32-1, [2,2,2], [1e308,5e-324,1.0], [[0,0,0],[2]])", None),
    "replicas of nothing": ("c.place_replicas(3, [], [], [[],[]]); c.place_replicas(0, [0], [1.0], [[0]])", None),
    "2**62 threads": (
        (
            "h = c.RendezvousHasher(map(str, range(100)), mode='compat')\n"
            "h.assign(c.ItemSet(map(str, range(20000))), threads=2**62)"
        ),
        None,
    ),
    "records with a base that has data": (
        (
            "bad = type('Bad', (dict,), {'__slots__': 'key value version token created owner'.split()})\n"
            "c.ZooKeeperCodec('/r', entry=bad, version=bad)"
        ),
        "TypeError",
    ),
    "records without slots": ("c.ZooKeeperCodec('/r', entry=int, version=int)", "TypeError"),
}


@pytest.mark.parametrize("case", CASES)
def test_hostile_input_gives_a_result_or_an_exception(case):
    code, error = CASES[case]
    done = run(code)
    assert done.returncode == (1 if error else 0), done
    assert (error or "") in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can take the identity of a user without processes")
@pytest.mark.parametrize("threads", ["None", "4"])
def test_threads_that_the_system_does_not_start_are_done_without(threads):
    done = run(
        textwrap.dedent(f"""\
        import os, resource
        s = c.ItemSet([str(i) for i in range(100000)])
        h = c.RendezvousHasher([str(i) for i in range(1000)])
        alone = h.assign(s, threads=1)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        os.setuid(65534)
        assert h.assign(s, threads={threads}).indices == alone.indices
        """)
    )
    assert done.returncode == 0, done


@pytest.mark.parametrize("call", ["h.assign(s, threads=1)", "h.owners(s, 9)", "h.assign_evenly(s, threads=1)"])
def test_results_that_do_not_fit_into_memory_are_a_memory_error(call):
    done = run(
        textwrap.dedent(f"""\
        import resource
        s = c.ItemSet([str(i) for i in range(1000000)])
        h = c.RendezvousHasher([str(i) for i in range(10)])
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + 4_000_000, used + 4_000_000))
        {call}
        """)
    )
    assert done.returncode == 1, done
    assert "MemoryError" in done.stderr
