"""The runs of a workflow by their schedule time: each task that waits for them wants the newest.

Revision 0009, of 2026-11.
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One index of all instances."""
    op.create_index("ix_instance_code_schedule_time_id", "instance", ["code", "schedule_time", "id"])
