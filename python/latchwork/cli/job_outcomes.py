"""The outcomes of a job's runs, as text and as JSON, for `status`, `jobs list` and probes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from latchwork._base.text import counted, utc_text
from latchwork.jobs import JobState, RunError


def describe_outcome(job: JobState | None) -> str:
    """Describe in a few words whether the last runs of a job succeeded, for a table.

    Args:
        job: State of the job; None if it is unknown.
    """
    if job is None or (job.last_success_s is None and job.last_error is None):
        return "-"
    return f"failing, {job.consecutive_failures} in a row" if job.consecutive_failures else "well"


def format_outcomes(job: JobState, now_s: float) -> list[str]:
    """Describe the runs of a job in at most two lines: the times of its runs, and its failures. Unknown facts are left
    out.

    Args:
        job: State of the job.
        now_s: Current time in seconds since the epoch.
    """
    moments = {"start": job.last_start_s, "success": job.last_success_s}
    known = [f"last {what} {utc_text(at_s)}" for what, at_s in moments.items() if at_s is not None]
    if job.next_start_s is not None and job.next_start_s > now_s:  # otherwise it was reported before the last start
        known.append(f"next start {utc_text(job.next_start_s)}")
    return [", ".join(known)] * bool(known) + [line for line in [describe_failure(job)] if line]


def describe_failure(job: JobState) -> str:
    """Describe the current or last failure of a job in one line. Return an empty text if no failure is known."""
    error = job.failing[0] if job.failing else job.last_error
    if error is None:
        return ""
    where = f"item {error.item}" + (f" and {error.items - 1} more of its run" if error.items > 1 else "")
    what = f"{where} on {error.node} at {utc_text(error.at_s)}: {error.text}"
    if not job.consecutive_failures:
        return f"last failure: {what}"
    return f"failing: {counted(job.failing_items, 'item')}, {error.consecutive_failures} in a row: {what}"


def to_json(job: JobState) -> dict[str, Any]:
    """Return the times and failures of a job's runs as a JSON document."""
    return {
        "last_start": _format_time(job.last_start_s),
        "last_success": _format_time(job.last_success_s),
        "last_error": None if job.last_error is None else convert_error(job.last_error),
        "failing_items": job.failing_items,
        "consecutive_failures": job.consecutive_failures,
        "failing": [convert_error(each) for each in job.failing],
        "next_start": _format_time(job.next_start_s),
    }


def convert_error(error: RunError) -> dict[str, Any]:
    """Convert a failed run to a JSON document."""
    found = asdict(error)
    at_s = found.pop("at_s")
    return {**found, "at": utc_text(at_s)}


def _format_time(at_s: float | None) -> str | None:
    return None if at_s is None else utc_text(at_s)
