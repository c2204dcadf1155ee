"""``spark`` and ``mapreduce``: jobs of a cluster, submitted by programs on the worker's machine.

A job in the cluster outlives the client that submitted it. So each job is submitted with a tag of its task. Jobs with
that tag are killed when the task is stopped, and before the next attempt starts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from latchwork_workflows.types.base import Command, ParamsModel, RunInfo

_CALL = "cluster.json"
_PROGRAM = Path(__file__).with_name("programs") / "cluster_program.py"
Word = Annotated[str, StringConstraints(min_length=1, max_length=4000)]
ClassName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)*$", max_length=500)]
ConfName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=200)]


class SparkParams(ParamsModel):
    """Parameters of ``spark``.

    Attributes:
        application: A jar or a Python file: a path or a URL that ``spark-submit`` accepts.
        main_class: Main class of a jar.
        arguments: Arguments of the application.
        master: Where it runs, such as ``yarn`` or ``local[2]``. None: the default of the machine.
        deploy_mode: Whether the driver runs on the worker or in the cluster.
        name: Name shown in the cluster. None: task and run.
        conf: Settings, such as ``spark.executor.memory``.
        jars, py_files, files: Files to submit with it.
        queue: Queue of YARN.
        program: Program that submits jobs.
        yarn: Program that lists and kills jobs of YARN.
    """

    application: Word
    main_class: ClassName | None = None
    arguments: tuple[str, ...] = ()
    master: Word | None = None
    deploy_mode: Literal["client", "cluster"] = "client"
    name: Word | None = None
    conf: dict[ConfName, str] = Field(default_factory=dict)
    jars: tuple[Word, ...] = ()
    py_files: tuple[Word, ...] = ()
    files: tuple[Word, ...] = ()
    queue: Word | None = None
    program: Word = "spark-submit"
    yarn: Word = "yarn"


class MapReduceParams(ParamsModel):
    """Parameters of ``mapreduce``.

    Attributes:
        jar: Path of the jar with the job.
        main_class: Main class of the jar. None: that of its manifest.
        arguments: Arguments of the job, after its properties.
        properties: Settings, such as ``mapreduce.job.reduces``.
        queue: Queue of YARN.
        program: Program that submits jobs.
        yarn: Program that lists and kills jobs of YARN.
    """

    jar: Word
    main_class: ClassName | None = None
    arguments: tuple[str, ...] = ()
    properties: dict[ConfName, str] = Field(default_factory=dict)
    queue: Word | None = None
    program: Word = "hadoop"
    yarn: Word = "yarn"


class Spark:
    """Submits an application with ``spark-submit``, and waits for it."""

    name: ClassVar[str] = "spark"
    params: ClassVar[type[ParamsModel]] = SparkParams
    quoted: ClassVar[frozenset[str]] = frozenset()

    def command(self, params: SparkParams, run: RunInfo) -> Command:
        """Return a ``spark-submit`` command. It is started by a program that first kills earlier jobs of the same
        task.
        """
        conf = {"spark.yarn.submit.waitAppCompletion": "true", **params.conf}
        conf["spark.yarn.tags"] = ",".join(filter(None, [params.conf.get("spark.yarn.tags"), run.tag]))
        given = {
            "--master": params.master,
            "--deploy-mode": params.deploy_mode,
            "--name": params.name or f"{run.task} of {run.run_id}",
            "--class": params.main_class,
            "--queue": params.queue,
            "--jars": ",".join(params.jars) or None,
            "--py-files": ",".join(params.py_files) or None,
            "--files": ",".join(params.files) or None,
        }
        options = [part for option, value in given.items() if value is not None for part in (option, value)]
        settings = [part for name, value in sorted(conf.items()) for part in ("--conf", f"{name}={value}")]
        argv = [params.program, *options, *settings, params.application, *params.arguments]
        return _build_submit_command(argv, params.yarn if params.deploy_mode == "cluster" else None, run)


class MapReduce:
    """Submits a job with ``hadoop jar``, and waits for it."""

    name: ClassVar[str] = "mapreduce"
    params: ClassVar[type[ParamsModel]] = MapReduceParams
    quoted: ClassVar[frozenset[str]] = frozenset()

    def command(self, params: MapReduceParams, run: RunInfo) -> Command:
        """Return a ``hadoop jar`` command. It is started by a program that first kills earlier jobs of the same
        task.
        """
        properties = dict(params.properties)
        properties["mapreduce.job.tags"] = ",".join(filter(None, [properties.get("mapreduce.job.tags"), run.tag]))
        if params.queue is not None:
            properties["mapreduce.job.queuename"] = params.queue
        main = [] if params.main_class is None else [params.main_class]
        settings = [part for name, value in sorted(properties.items()) for part in ("-D", f"{name}={value}")]
        return _build_submit_command(
            [params.program, "jar", params.jar, *main, *settings, *params.arguments], params.yarn, run
        )


def _build_submit_command(argv: list[str], yarn: str | None, run: RunInfo) -> Command:
    """Return a command that submits a job to a cluster.

    Args:
        argv: Command line that submits the job.
        yarn: Program that kills jobs in the cluster. None: no job outlives the submitting process.
        run: The attempt.
    """
    call = json.dumps({"argv": argv, "tag": run.tag, "yarn": yarn})
    return Command((run.python, str(_PROGRAM), f"{run.folder}/{_CALL}"), files={_CALL: call.encode()})
