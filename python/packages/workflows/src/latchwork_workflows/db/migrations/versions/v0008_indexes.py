"""The dates of a backfill by their state, which its next step and its page count; runs that are not over by age.

Revision 0008, of 2026-11.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0006"
branch_labels = None
depends_on = None

_OF_BACKFILLS = sa.text("backfill IS NOT NULL")
_ACTIVE = sa.text("active")


def upgrade() -> None:
    """Indexes of few of all instances each, so that others pay nothing for them."""
    op.create_index("ix_instance_active_id", "instance", ["id", "code"], sqlite_where=_ACTIVE, postgresql_where=_ACTIVE)
    op.create_index(
        "ix_instance_backfill_state",
        "instance",
        ["backfill", "state", "schedule_time"],
        sqlite_where=_OF_BACKFILLS,
        postgresql_where=_OF_BACKFILLS,
    )
