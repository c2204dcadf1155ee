"""`latchwork demo workflows`: a run whose worker is killed halfway, and completes with the right result."""
