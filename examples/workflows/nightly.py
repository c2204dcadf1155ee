"""Every night: orders of the day before are read, checked and summed up, and a report is written.

python nightly.py                        # the whole run in this process, for yesterday
latchwork workflows serve                # in another terminal
latchwork workflows deploy nightly.py
latchwork workflows start nightly -p day=2026-11-21 --follow
"""

import csv
import random
import sqlite3
import tempfile
from pathlib import Path

from latchwork_workflows import Cron, shell, task, workflow


@task(retries=3, retry_interval_s=30, timeout_s=600)
def extract(day: str, folder: str) -> dict:
    """A file of orders, as a shop would export it."""
    orders = random.Random(day)
    path = Path(folder) / f"orders-{day}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerows([number, orders.choice(["tea", "coffee"]), orders.randint(1, 90)] for number in range(200))
    print("read 200 orders of", day)
    return {"path": str(path), "rows": 200}


@task
def check(path: str, rows: int) -> None:
    """Fails, and with it the run, where orders are missing."""
    with Path(path).open(newline="") as file:
        found = len(list(csv.reader(file)))
    if found != rows:
        raise ValueError(f"{path} has {found} orders, and should have {rows}")


@task
def load(path: str, day: str, folder: str) -> dict:
    """Sums by product. Run twice for a day it writes the same: a task may run again when a machine dies."""
    with Path(path).open(newline="") as file, sqlite3.connect(Path(folder) / "shop.db") as database:
        database.execute("CREATE TABLE IF NOT EXISTS sums (day, product, amount, PRIMARY KEY (day, product))")
        sums = {}
        for _, product, amount in csv.reader(file):
            sums[product] = sums.get(product, 0) + int(amount)
        for product, amount in sums.items():
            database.execute("INSERT OR REPLACE INTO sums VALUES (?, ?, ?)", (day, product, amount))
    return {"total": sum(sums.values())}


@workflow(schedule=Cron("0 3 * * *", tz="Europe/Berlin"), on_failure="end", params={"day": "${logical_date}"})
def nightly(day: str, folder: str = str(Path(tempfile.gettempdir()) / "latchwork-nightly")):
    """Orders of the day before, summed up by product."""
    got = extract(day, folder)
    checked = check(got["path"], got["rows"])
    loaded = load.options(after=[checked])(got["path"], day, folder)
    shell('echo "$day: $total" >> "$folder/report.txt"', name="report", after=[loaded])


if __name__ == "__main__":
    run = nightly.test().check()
    for name, each in run.tasks.items():
        print(f"{name}: {each.state}", dict(each.outputs) or "")
