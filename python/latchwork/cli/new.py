"""`latchwork new`: write a small project to start from, from the templates next to this module.

The name of a template ends with ``.tmpl``. ``NAME`` in it, and ``{{name}}`` in its text, stand for the project.
"""

from __future__ import annotations

import enum
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

import latchwork
from latchwork.cli.options import Json, command
from latchwork.cli.outcome import UsageError
from latchwork.cli.text import say, say_json

_TEMPLATES = Path(__file__).with_name("templates")
_SUFFIX = ".tmpl"
#: A name of a user of the system, a unit and a container.
_NAME = re.compile(r"[a-z][a-z0-9-]{0,29}")


class Kind(enum.StrEnum):
    """The system that the project uses."""

    jobs = "jobs"
    executor = "executor"
    workflows = "workflows"


class Deployment(enum.StrEnum):
    """The files for production."""

    systemd = "systemd"
    compose = "compose"


#: The command of one node. Workflows have none: their parts differ.
_NODE = {
    Kind.jobs: "run jobs:job --node-id {id} --close-timeout-s 30",
    Kind.executor: "executor run --import tasks --node-id {id} --drain-s 30",
    Kind.workflows: "",
}
_NODE_ID = {Deployment.systemd: "%i", Deployment.compose: '"$$(hostname)"'}


@command("latchwork new shop", "latchwork new shop --kind workflows --deploy compose")
def new(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="The project, and the folder to create: lowercase letters, digits and -."),
    ],
    *,
    kind: Annotated[Kind, typer.Option(help="The system that it uses: jobs, executor or workflows.")] = Kind.jobs,
    deploy: Annotated[
        Deployment, typer.Option(help="The files for production: a systemd unit, or a compose file.")
    ] = Deployment.systemd,
    as_json: Json = False,
) -> None:
    """Create a small starter project with tests and deployment files.

    Its README.md has the steps from an empty environment to a first run.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"name {name!r} must be at most 30 lowercase letters, digits and -, and begin with a letter")
    folder = Path(name)
    if folder.exists():
        raise UsageError(f"{name} exists; choose another name, or remove it")
    written = []
    for path, text in _generate_files(name, kind, deploy):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        # The files with a password are for their owner only.
        target.touch(mode=0o600 if path.endswith(".env") else 0o666)
        target.write_text(text, encoding="utf-8")
        written.append(str(target))
    if as_json:
        say_json({"project": name, "kind": kind.value, "files": written})
        return
    for each in written:
        say(each)
    say(f"next: cd {name}, and follow README.md")


def _generate_files(name: str, kind: Kind, deploy: Deployment) -> Iterator[tuple[str, str]]:
    """Generate the names and contents of a project's files, sorted by name.

    Args:
        name: Name of the project.
        kind: The system that the project uses.
        deploy: Kind of the deployment files.
    """
    part = "workflows" if kind is Kind.workflows else "node"
    unit = f"{name}.service" if kind is Kind.workflows else f"{name}@.service"
    values = {
        "name": name,
        "version": latchwork.__version__,
        "deployment": unit if deploy is Deployment.systemd else "compose.yaml",
        "command": _NODE[kind].format(id=_NODE_ID[deploy]),
        "password": secrets.token_hex(16),
    }
    found: dict[str, str] = {}
    for folder in ("common", kind.value, f"{deploy.value}/common", f"{deploy.value}/{part}"):
        for path in (_TEMPLATES / folder).rglob(f"*{_SUFFIX}"):
            target = str(path.relative_to(_TEMPLATES / folder)).removesuffix(_SUFFIX).replace("NAME", name)
            found[target] = re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], path.read_text(encoding="utf-8"))
    yield from sorted(found.items())
