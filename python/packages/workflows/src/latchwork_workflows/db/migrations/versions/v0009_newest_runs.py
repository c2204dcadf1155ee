"""The runs of a workflow by their schedule time: each task that waits for them wants the newest.

And the runs of which workers may have tasks, a few of all: who counts tasks reads those, and not a history of tasks.

Revision 0009, of 2026-11.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_GOING = sa.text("state IN ('running', 'ready_pause', 'ready_stop')")


def upgrade() -> None:
    """One index of all instances, and one of few."""
    op.create_index("ix_instance_code_schedule_time_id", "instance", ["code", "schedule_time", "id"])
    op.create_index(
        "ix_instance_going", "instance", ["id", "run", "code"], sqlite_where=_GOING, postgresql_where=_GOING
    )
