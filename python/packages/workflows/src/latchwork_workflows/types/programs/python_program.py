"""Process of a ``python`` task: executes the call in a file, and writes its outputs. Imports nothing of latchwork.

The returned value goes to the file named by ``LATCHWORK_OUTPUT``, as one line of JSON after ``#json``. Standard output
is the log. The exit code is 0, or 1 after an exception, whose traceback is at the end of the log.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def main(path: str) -> int:
    """Call the Python function that a file describes, and write its result as outputs of the task."""
    sys.path.pop(0)  # the folder of this file does not belong to the task
    call = json.loads(Path(path).read_text(encoding="utf-8"))  # noqa: TID251 - written by the worker for this process
    module, _, name = call["function"].partition(":")
    function: Any = import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    function = getattr(function, "__wrapped__", function)  # a decorated task is called as the plain function
    result = function(**call["args"])
    outputs = result if isinstance(result, dict) else {} if result is None else {"result": result}
    try:
        line = json.dumps(outputs)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{call['function']} returned a value that is not JSON ({error}); return plain values"
        ) from None
    with Path(os.environ["LATCHWORK_OUTPUT"]).open("a", encoding="utf-8") as file:
        file.write(f"#json {line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
