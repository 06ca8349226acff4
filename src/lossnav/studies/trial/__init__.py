"""One trial: training, its log and its result."""
