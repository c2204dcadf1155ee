"""Workflows that tests deploy and run."""

from latchwork_workflows.model.builder import Cron, shell, task, workflow


@task(retries=3, retry_interval_s=30, timeout_s=600)
def extract(day: str) -> dict:
    return {"rows": len(day)}


@task
def load(rows: int, table: str = "facts") -> None:
    print("loaded", rows, "into", table)


@workflow(schedule=Cron("0 3 * * *", tz="Europe/Berlin"), on_failure="end", params={"day": "${logical_date}"})
def nightly(day: str):
    """Every night."""
    got = extract(day)
    load(got["rows"])
    shell('report.sh "$day"', name="report", after=[got], worker_group="reports")
