"""A planted defect: a mistake in coordination code, as a replacement of text, and the test that must fail with it.

A defect belongs here if it removes a fence, swaps two steps, trusts a stale read, or loses a wake-up, an undo callback
or a lost answer: mistakes that only show in a race. Plain logic errors are left to ordinary tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "latchwork"
#: The packages of the other distributions.
ADD_ONS = sorted(path.parent for path in ROOT.glob("python/packages/*/src/*/__init__.py"))


class DefectStale(Exception):
    """The source does not contain the text of a defect exactly once."""


@dataclass(frozen=True)
class Defect:
    """One planted defect.

    Attributes:
        system: The primitive, backend or system that it breaks.
        name: The mistake, as a phrase. Unique within its system.
        file: The source file, relative to the package ``latchwork``; of an add-on with the name of its package.
        old: The text to replace. The file contains it exactly once.
        new: The replacement.
        test: The ID of the test that must fail, relative to ``tests``. It is one that ``levels.always`` accepts.
    """

    system: str
    name: str
    file: str
    old: str
    new: str
    test: str

    def path_in(self, folder: Path | None = None) -> Path:
        """Return the path of the source file, in a folder with copies of all packages or in the checkout."""
        for package in ADD_ONS:
            if self.file.startswith(f"{package.name}/"):
                return (folder or package.parent) / self.file
        return (folder or PACKAGE.parent) / PACKAGE.name / self.file

    def planted(self, source: str) -> str:
        """Return the source with the defect.

        Raises:
            DefectStale: The source does not contain the old text exactly once.
        """
        found = source.count(self.old)
        if found != 1:
            raise DefectStale(
                f"{self.file} contains the text of {self.name!r} {found} times instead of once: "
                f"adapt the defect to the code, or delete it\n{self.old}"
            )
        return source.replace(self.old, self.new)


def id_of(file: str, name: str, on: str = "") -> str:
    """Return the pytest ID of a test.

    Args:
        file: The test file without prefix and suffix: ``store/feed`` is ``store/test_feed.py``.
        name: The function, without ``test_``.
        on: The parameters of the test.
    """
    folder, _, stem = file.rpartition("/")
    return f"{folder}/test_{stem}.py::test_{name}" + (f"[{on}]" if on else "")
