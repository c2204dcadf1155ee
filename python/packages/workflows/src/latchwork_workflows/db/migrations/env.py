"""The Alembic environment: runs the migrations on the connection from ``upgrade``, without opening or committing."""

from alembic import context

from latchwork_workflows.db.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite cannot change a column in place
    transactional_ddl=False,
)
context.run_migrations()
