"""One file for each step; files that were released do not change."""
