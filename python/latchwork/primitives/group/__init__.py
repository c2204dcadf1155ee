"""Groups: members, and numbered views that all members see in the same order."""
