"""The assumptions: losses, metrics, drifts, beliefs, and the Objective that they make up."""
