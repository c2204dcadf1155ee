"""Every Sunday: files that are there twice. One task lists them, one for each part reads them, one says what it found.

latchwork workflows deploy duplicates.py
latchwork workflows start duplicates -p folder=/srv/photos --follow
"""

import hashlib
import os
from pathlib import Path

from latchwork_workflows import Cron, task, workflow

PARTS = 8


@task
def split(folder: str) -> dict:
    """The files by size, in parts: only those of one size can be the same."""
    sizes: dict[int, list[str]] = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file() and not path.is_symlink():
            sizes.setdefault(path.stat().st_size, []).append(str(path))
    alike = [paths for paths in sizes.values() if len(paths) > 1]
    return {"parts": [part for part in (alike[each::PARTS] for each in range(PARTS)) if part]}


@task(retries=2, retry_interval_s=60, timeout_s=3600)
def compare(part: list) -> dict:
    """The files of a part that have the same bytes."""
    same = []
    for paths in part:
        digests: dict[str, list[str]] = {}
        for path in filter(os.path.exists, paths):
            digests.setdefault(hashlib.sha256(Path(path).read_bytes()).hexdigest(), []).append(path)
        same += [each for each in digests.values() if len(each) > 1]
    print(f"{len(same)} files are there more than once")
    return {"same": same}


@task
def tell(found: list, report: str) -> dict:
    """A line for each file, with all its places."""
    lines = sorted(" = ".join(paths) for same in found for paths in same)
    Path(report).write_text("".join(f"{line}\n" for line in lines))
    return {"count": len(lines)}


@workflow(schedule=Cron("0 5 * * 0"))
def duplicates(folder: str = "/srv/files", report: str = "/tmp/duplicates.txt"):
    """Files that are there twice."""
    listed = split(folder)
    compared = listed.map(compare, "parts", parallel=4)
    tell(compared["same"], report)
