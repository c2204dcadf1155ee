"""What a planted defect is: a place in the package, what stands there, what stands there instead, who must notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "latchwork"


class DefectStale(Exception):
    """The text that a defect replaces is not there exactly once: the code has changed, so must the defect."""


@dataclass(frozen=True)
class Defect:
    """One planted defect.

    Attributes:
        subject: whose promise it breaks: a primitive, a part of the store, a backend, a part of the job manager.
        breaks: what goes wrong, as a phrase; unique, and its name everywhere.
        file: below the package.
        old: the text to replace: there exactly once.
        new: what stands there instead.
        tests: which tests must catch it, below ``tests``; each as pytest selects it. One at least is run by every
            `make test`, see ``levels.always``.
    """

    subject: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted(self, source: str) -> str:
        """The source with the defect.

        Raises:
            DefectStale: the text is not there exactly once.
        """
        found = source.count(self.old)
        if found != 1:
            raise DefectStale(
                f"{self.file} has the text of {self.breaks!r} {found} times, it must be there once: change the defect "
                f"with the code it breaks\n{self.old}"
            )
        return source.replace(self.old, self.new)


def of(file: str, *names: str, on: str = "") -> tuple[str, ...]:
    """Tests of one file, which is given below ``tests`` as in ``store/feed``; with the same parameters, if any."""
    folder, _, stem = file.rpartition("/")
    where = f"[{on}]" if on else ""
    return tuple(f"{folder}/test_{stem}.py::test_{name}{where}" for name in names)


def at(file: str, *names: str, on: str = "memory") -> tuple[str, ...]:
    """Tests of one file below ``tests/primitives``, on one backend; none for those that have no backend."""
    return of(f"primitives/{file}", *names, on=on)


def play(*what: str) -> tuple[str, ...]:
    """One play of the sample of faults: backend, fault and primitive."""
    name = "-".join(part.replace(" ", "-") for part in what)
    return (f"trials/primitives/test_primitive_faults.py::test_its_rules_hold_through[{name}]",)


def schedules(file: str, primitive: str) -> tuple[str, ...]:
    """The random schedules of one primitive."""
    return (f"trials/schedules/test_{file}.py::test_{primitive}_keeps_its_rules_under_random_schedules",)
