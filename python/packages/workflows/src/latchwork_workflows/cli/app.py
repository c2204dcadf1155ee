"""Assembles the commands of `latchwork workflows`."""

from __future__ import annotations

from latchwork.spi import group
from latchwork_workflows.cli import (
    accounts,
    actions,
    alerts,
    backfills,
    grants,
    maintenance,
    nodes,
    pools,
    runs,
    serve,
    settings,
    workflows,
)

workflows_app = group(
    "Workflows: graphs of tasks that run on a schedule or on demand, and can be monitored, paused, repaired "
    "and rerun.\n\n`latchwork workflows serve` is all that one machine needs. The "
    "other commands use its folder.",
    serve=serve.serve,
    init=nodes.init,
    api=serve.api,
    master=nodes.master,
    worker=nodes.worker,
    validate=workflows.validate,
    apply=workflows.apply,
    deploy=workflows.deploy,
    list=workflows.list_,
    show=runs.show_,
    schedule=workflows.schedule,
    online=workflows.online,
    offline=workflows.offline,
    start=actions.start,
    backfill=backfills.backfill,
    backfills=backfills.backfills,
    runs=runs.runs,
    logs=runs.logs,
    why=runs.why,
    pause=actions.pause,
    resume=actions.resume,
    stop=actions.stop,
    recover=actions.recover,
    rerun=actions.rerun,
    **{"force-success": actions.force_success, "force-start": actions.force_start},
    workers=runs.workers,
    alerts=alerts.alerts,
    doctor=maintenance.doctor,
    export=maintenance.export,
    **{"import": maintenance.import_},
    upgrade=nodes.upgrade,
    **{"stop-backfill": backfills.stop_backfill, "adopt-store": nodes.adopt_store},
)
workflows_app.add_typer(alerts.channels_app, name="channels")
workflows_app.add_typer(nodes.secrets_app, name="secrets")
workflows_app.add_typer(accounts.users_app, name="users")
workflows_app.add_typer(settings.connections_app, name="connections")
workflows_app.add_typer(settings.environments_app, name="environments")
workflows_app.add_typer(settings.parameters_app, name="parameters")
workflows_app.add_typer(pools.pools_app, name="pools")
workflows_app.add_typer(grants.grants_app, name="grants")
