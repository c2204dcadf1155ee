"""The outcomes of a job's runs, as text and as JSON, for `status`, `jobs list` and probes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from latchwork._base.text import counted, utc_text
from latchwork.jobs import JobState, RunError


def outcome_word(job: JobState | None) -> str:
    """Describe the outcome of a job's runs in one word."""
    if job is None or (job.last_success_s is None and job.last_error is None):
        return "-"
    return f"failing, {job.consecutive_failures} in a row" if job.consecutive_failures else "well"


def outcome_lines(job: JobState, now_s: float) -> list[str]:
    """Return a line with the times of a job's runs and a line with its failures. Unknown facts are left out."""
    moments = {"start": job.last_start_s, "success": job.last_success_s}
    known = [f"last {what} {utc_text(at_s)}" for what, at_s in moments.items() if at_s is not None]
    if job.next_start_s is not None and job.next_start_s > now_s:  # otherwise it was reported before the last start
        known.append(f"next start {utc_text(job.next_start_s)}")
    return [", ".join(known)] * bool(known) + [line for line in [describe_failure(job)] if line]


def describe_failure(job: JobState) -> str:
    """Describe how a job's runs fail or last failed. Empty if no failure is known."""
    error = job.failing[0] if job.failing else job.last_error
    if error is None:
        return ""
    where = f"item {error.item}" + (f" and {error.items - 1} more of its run" if error.items > 1 else "")
    what = f"{where} on {error.node} at {utc_text(error.at_s)}: {error.text}"
    if not job.consecutive_failures:
        return f"last failure: {what}"
    return f"failing: {counted(job.failing_items, 'item')}, {error.consecutive_failures} in a row: {what}"


def to_json(job: JobState) -> dict[str, Any]:
    """Return the outcomes of a job's runs as a JSON document."""
    return {
        "last_start": _moment(job.last_start_s),
        "last_success": _moment(job.last_success_s),
        "last_error": None if job.last_error is None else error_json(job.last_error),
        "failing_items": job.failing_items,
        "consecutive_failures": job.consecutive_failures,
        "failing": [error_json(each) for each in job.failing],
        "next_start": _moment(job.next_start_s),
    }


def error_json(error: RunError) -> dict[str, Any]:
    """Return a failed run as a JSON document."""
    found = asdict(error)
    at_s = found.pop("at_s")
    return {**found, "at": utc_text(at_s)}


def _moment(at_s: float | None) -> str | None:
    return None if at_s is None else utc_text(at_s)
