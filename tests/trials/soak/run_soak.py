"""The long form of the soak: half an hour of churn on every backend, each with a server of its own.

    make check WHAT=soak ARGS="--backends etcd35,sqlite --seconds 600 --out /tmp/soak"

Prints the table of each backend. The exit code is 0 only if nothing grew above its bound and no call failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from backends_table import BACKENDS, BY_NAME, is_there
from trials.soak.soak import judge, soak

_SAMPLES = 90
_LEAST_S = 1.0
#: etcd frees the pages of its history and its logs within minutes, so that its files can be judged after half an hour.
#: The files of ZooKeeper are not judged: it purges them once an hour at most.
_SHORT_HISTORY = ("--auto-compaction-retention=1m", "--max-wals=1", "--snapshot-count=5000")


def main() -> int:
    options = _options()
    if options.url:
        return _one(options)
    names = (
        options.backends.split(",") if options.backends else [b.name for b in BACKENDS if b.shared and is_there(b.name)]
    )
    unknown = sorted(set(names) - {backend.name for backend in BACKENDS if backend.shared})
    if unknown:
        print(f"unknown backends: {', '.join(unknown)}", file=sys.stderr)
        return 2
    failed = [name for name in names if _backend(name, options)]
    print(f"these failed: {', '.join(failed)}" if failed else "nothing grew")
    return int(bool(failed))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", help="names with commas; default: all that several processes can share")
    parser.add_argument("--seconds", type=float, default=1800.0, help="of each backend")
    parser.add_argument("--url", help="of a store, instead of servers of our own")
    parser.add_argument("--files", type=Path, help="with --url: the folder whose files are measured")
    parser.add_argument("--out", type=Path, help="folder for the samples, as JSON")
    return parser.parse_args()


def _backend(name: str, options: argparse.Namespace) -> int:
    """Soak one backend in a process of its own, whose memory is judged."""
    backend = BY_NAME[name]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="latchwork-soak-")))
        if backend.url is not None:
            url, files = backend.url("soak", folder), folder
        else:
            options_of_server = {"extra_args": _SHORT_HISTORY} if name.startswith("etcd") else {}
            server = stack.enter_context(backend.launch(**options_of_server))
            url, files = server.url("soak"), None if name.startswith("zookeeper") else server.data_dir
        print(f"== {name}, {options.seconds:g} s", flush=True)
        command = [sys.executable, __file__, "--url", url, "--seconds", str(options.seconds)]
        command += ["--files", str(files)] if files else []
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            command += ["--out", str(options.out / f"{name}.json")]
        return subprocess.run(command, check=False).returncode


def _one(options: argparse.Namespace) -> int:
    result = soak(options.url, options.seconds, every_s=max(_LEAST_S, options.seconds / _SAMPLES), files=options.files)
    if options.out:
        options.out.write_text(json.dumps([asdict(each) for each in result.samples], indent=1) + "\n")
    wrong = [*judge(result.samples), *(f"a call failed: {error}" for error in result.errors[:5])]
    print(result.table())
    print("\n".join(f"WRONG: {each}" for each in wrong), flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
