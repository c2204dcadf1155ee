"""At the end of a month the books of each branch are closed: a run of their own, and one that fails stops no other.

mkdir books; echo 17 > books/north.txt    # a book for each branch: a number in each line
latchwork workflows deploy month_end.py
latchwork workflows start month_end -p folder=$PWD/books --follow
"""

from pathlib import Path

from latchwork_workflows import Cron, conditions, shell, task, workflow


@task
def add_up(branch: str, folder: str) -> dict:
    """The sum of a branch's book: a number in each line."""
    lines = (Path(folder) / f"{branch}.txt").read_text().split()
    return {"total": sum(int(each) for each in lines)}


@task
def seal(branch: str, folder: str, total: int) -> dict:
    """Written once, beside the book."""
    (Path(folder) / f"{branch}.closed").write_text(f"{total}\n")
    return {"total": total}


@workflow
def close_branch(branch: str = "north", folder: str = "/srv/books"):
    """The books of one branch."""
    summed = add_up(branch, folder)
    seal(branch, folder, summed["total"])


@task
def branches(folder: str) -> dict:
    """Those that have a book."""
    return {"names": sorted(path.stem for path in Path(folder).glob("*.txt"))}


@workflow(schedule=Cron("0 6 1 * *", tz="Europe/Berlin"))
def month_end(folder: str = "/srv/books"):
    """All branches, then a word to the bookkeepers, whichever it has to be."""
    found = branches(folder)
    closed = found.map(close_branch, "names", parallel=2, folder=folder)
    good = shell('echo "all closed" > "$folder/month.log"', name="good")
    bad = shell('echo "some are open" > "$folder/month.log"', name="bad")
    conditions(closed, success=good, failure=bad)
