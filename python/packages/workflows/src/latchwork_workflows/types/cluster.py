"""``spark`` and ``mapreduce``: jobs of a cluster, submitted by the programs that the worker's machine has.

A job that runs in the cluster outlives the client that submitted it. So each is submitted with a tag of its task; what
has that tag is killed when the task is stopped, and before the next attempt starts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from latchwork_workflows.types.base import Command, ParamsModel, RunInfo

_CALL = "cluster.json"
_BODY = Path(__file__).with_name("bodies") / "cluster_body.py"
Word = Annotated[str, StringConstraints(min_length=1, max_length=4000)]
ClassName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)*$", max_length=500)]
ConfName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=200)]


class SparkParams(ParamsModel):
    """Attributes:
    application: a jar, or a Python file; a path or a URL that ``spark-submit`` takes.
    main_class: of a jar.
    arguments: of the application.
    master: where it runs, such as ``yarn`` or ``local[2]``; None: as the machine is set up.
    deploy_mode: whether the driver runs here or in the cluster.
    name: what the cluster shows; None: workflow and task.
    conf: settings, such as ``spark.executor.memory``.
    jars, py_files, files: what goes along.
    queue: of YARN.
    program: the program that submits.
    yarn: the program that lists and kills jobs of YARN.
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
    """Attributes:
    jar: with the job; a path.
    main_class: of the jar; None: as its manifest says.
    arguments: of the job, behind its properties.
    properties: settings, such as ``mapreduce.job.reduces``.
    queue: of YARN.
    program: the program that submits.
    yarn: the program that lists and kills jobs of YARN.
    """

    jar: Word
    main_class: ClassName | None = None
    arguments: tuple[str, ...] = ()
    properties: dict[ConfName, str] = Field(default_factory=dict)
    queue: Word | None = None
    program: Word = "hadoop"
    yarn: Word = "yarn"


class Spark:
    """Submits an application by ``spark-submit``, and waits for it."""

    name: ClassVar[str] = "spark"
    params: ClassVar[type[ParamsModel]] = SparkParams
    quoted: ClassVar[frozenset[str]] = frozenset()

    def command(self, params: SparkParams, run: RunInfo) -> Command:
        """``spark-submit``, under a body that kills what has the tag."""
        conf = {"spark.yarn.submit.waitAppCompletion": "true", **params.conf}
        conf["spark.yarn.tags"] = ",".join(filter(None, [params.conf.get("spark.yarn.tags"), run.tag]))
        given = {
            "--master": params.master,
            "--deploy-mode": params.deploy_mode,
            "--name": params.name or f"{run.task} of {run.instance}",
            "--class": params.main_class,
            "--queue": params.queue,
            "--jars": ",".join(params.jars) or None,
            "--py-files": ",".join(params.py_files) or None,
            "--files": ",".join(params.files) or None,
        }
        options = [part for option, value in given.items() if value is not None for part in (option, value)]
        settings = [part for name, value in sorted(conf.items()) for part in ("--conf", f"{name}={value}")]
        argv = [params.program, *options, *settings, params.application, *params.arguments]
        return _command(argv, params.yarn if params.deploy_mode == "cluster" else None, run)


class MapReduce:
    """Submits a job by ``hadoop jar``, and waits for it."""

    name: ClassVar[str] = "mapreduce"
    params: ClassVar[type[ParamsModel]] = MapReduceParams
    quoted: ClassVar[frozenset[str]] = frozenset()

    def command(self, params: MapReduceParams, run: RunInfo) -> Command:
        """``hadoop jar``, under a body that kills what has the tag."""
        properties = dict(params.properties)
        properties["mapreduce.job.tags"] = ",".join(filter(None, [properties.get("mapreduce.job.tags"), run.tag]))
        if params.queue is not None:
            properties["mapreduce.job.queuename"] = params.queue
        main = [] if params.main_class is None else [params.main_class]
        settings = [part for name, value in sorted(properties.items()) for part in ("-D", f"{name}={value}")]
        return _command([params.program, "jar", params.jar, *main, *settings, *params.arguments], params.yarn, run)


def _command(argv: list[str], yarn: str | None, run: RunInfo) -> Command:
    """Args:
    argv: what submits.
    yarn: what kills jobs that run in the cluster; None where none outlives its client.
    run: the attempt.
    """
    call = json.dumps({"argv": argv, "tag": run.tag, "yarn": yarn})
    return Command((run.python, str(_BODY), f"{run.folder}/{_CALL}"), files={_CALL: call.encode()})
