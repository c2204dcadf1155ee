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
    serve=serve.serve_all,
    init=nodes.initialize_database,
    api=serve.serve_api,
    master=nodes.run_master,
    worker=nodes.run_worker,
    validate=workflows.validate_file,
    apply=workflows.apply_file,
    deploy=workflows.deploy_module,
    list=workflows.list_workflows,
    show=runs.show_workflow_or_run,
    schedule=workflows.show_schedule,
    online=workflows.set_online,
    offline=workflows.set_offline,
    start=actions.start_run,
    backfill=backfills.start_backfill,
    backfills=backfills.list_backfills,
    runs=runs.list_runs,
    logs=runs.show_log,
    why=runs.explain_states,
    pause=actions.pause,
    resume=actions.resume,
    stop=actions.stop,
    recover=actions.recover,
    rerun=actions.rerun,
    **{"force-success": actions.force_success, "force-start": actions.force_start},
    workers=runs.list_workers,
    alerts=alerts.list_alerts,
    doctor=maintenance.run_doctor,
    export=maintenance.export_all,
    **{"import": maintenance.import_file},
    upgrade=nodes.upgrade_database,
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
