"""``python``: a function by module and name, in a separate process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, StringConstraints

from latchwork_workflows.types.base import Command, ParamsModel, RunInfo

_CALL = "call.json"
#: Started by its path. As a module it would import our packages first, which takes 250 ms for each task.
_PROGRAM = Path(__file__).with_name("programs") / "python_program.py"
FunctionName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$", max_length=500)
]


class PythonParams(ParamsModel):
    """Parameters of ``python``.

    Attributes:
        function: ``module:name``, from the code bundle of the version, or installed on the workers.
        args: Its keyword arguments.
        bundle: SHA-256 of the bundle, as ``deploy`` wrote it. None: the function is installed.
    """

    function: FunctionName
    args: dict[str, Any] = Field(default_factory=dict)
    bundle: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")] | None = None


class Python:
    """Calls a function with JSON values. Outputs are the mapping that it returns, or its result as ``result``."""

    name: ClassVar[str] = "python"
    params: ClassVar[type[ParamsModel]] = PythonParams
    quoted: ClassVar[frozenset[str]] = frozenset()
    ignores_variables: ClassVar[bool] = True

    def command(self, params: PythonParams, run: RunInfo) -> Command:
        """Return a command that calls the function. It reads the call from a file, so that no argument appears in a
        command line.
        """
        call = {"function": params.function, "args": params.args}
        path = {"PYTHONPATH": run.bundle} if run.bundle else {}
        return Command(
            (run.python, str(_PROGRAM), f"{run.folder}/{_CALL}"),
            env={"PYTHONUNBUFFERED": "1", **path},
            files={_CALL: json.dumps(call).encode()},
        )
