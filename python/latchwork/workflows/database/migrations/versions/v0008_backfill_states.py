"""The dates of a backfill by their state: what its next step, and its page, count.

Revision 0008, of 2026-11.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0006"
branch_labels = None
depends_on = None

_OF_BACKFILLS = sa.text("backfill IS NOT NULL")


def upgrade() -> None:
    """An index of the instances that are of a backfill: few of all, so others pay nothing for it."""
    op.create_index(
        "ix_instance_backfill_state",
        "instance",
        ["backfill", "state", "schedule_time"],
        sqlite_where=_OF_BACKFILLS,
        postgresql_where=_OF_BACKFILLS,
    )
