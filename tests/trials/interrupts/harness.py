"""Raises an interrupt at a given line of latchwork, in the thread that makes a call.

Lines are counted as they are executed, by a trace of this thread alone. What a second Ctrl-C does while the first is
being dealt with is not tried. A trace also sees the line of a `with` when its block has ended, just before `__exit__`
is called, and lines that do nothing, such as that of a `try`, which may stand outside what leaves a `with` around them;
no interpreter looks for signals there, so nothing is raised there.
"""

from __future__ import annotations

import dis
import sys
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import latchwork

if TYPE_CHECKING:
    from collections.abc import Callable

_OURS = str(Path(latchwork.__file__).parent)


class Interrupt(KeyboardInterrupt):
    """The one that we raised, and nobody else."""


def _raise() -> None:
    raise Interrupt


class Interrupter:
    """Makes calls, and interrupts each once.

    Args:
        act: what the interrupt does; a signal handler of a user may do something else than raise.
        also: files beside ours whose lines count.

    Attributes:
        where: file, line and function at which the last call was interrupted; None if it was over before.
        calls: how many calls were made.
    """

    def __init__(self, act: Callable[[], object] = _raise, *, also: tuple[str, ...] = ()) -> None:
        self._act = act
        self._where = (_OURS, *also)
        self.where: str | None = None
        self.calls = 0
        self._left = 0
        self._files: dict[CodeType, bool] = {}

    def call(self, fn: Callable[[], object], line: int) -> bool:
        """Call it, and interrupt it at that executed line, from 1; False if it returned before.

        An interrupt that the call takes for itself and does not raise is an error of its own.
        """
        self.where = None
        self.calls += 1
        self._left = line
        before = sys.gettrace()
        sys.settrace(self._frame)
        try:
            fn()
        except Interrupt:
            return True
        finally:
            sys.settrace(before)
        if self._act is _raise:
            assert self.where is None, f"the interrupt at {self.where} was swallowed"
        return self.where is not None

    def _frame(self, frame: FrameType, _event: str, _arg: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        ours = self._files.get(code)
        if ours is None:
            ours = self._files[code] = code.co_filename.startswith(self._where)
        return self._line if ours and self._left > 0 else None

    def _line(self, frame: FrameType, event: str, _arg: Any) -> Callable[..., Any]:
        if event == "line" and not _is_unheard(frame.f_code, frame.f_lasti):
            self._left -= 1
            if self._left == 0:
                code = frame.f_code
                file = code.co_filename.removeprefix(_OURS + "/")
                self.where = f"{file}:{frame.f_lineno} in {code.co_name}"
                self._act()
        return self._line


@cache
def _is_unheard(code: CodeType, offset: int) -> bool:
    """Whether nothing is done there, or `__exit__` is about to be called with None three times: a block has ended."""
    at = [each for each in dis.get_instructions(code) if offset <= each.offset < offset + 10]
    if at[0].opname == "NOP":
        return True
    if at[0].opname in {"SWAP", "ROT_TWO"}:  # keeps what is returned
        del at[0]
    names = [each.opname for each in at[:3]]
    nones = names in (["LOAD_CONST"] * 3, ["LOAD_CONST", "DUP_TOP", "DUP_TOP"])
    return nones and all(each.argval is None for each in at[:3])
