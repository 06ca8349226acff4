"""Objective to EulerLagrange: the equations of the optimal path, derived symbolically (paper App. C to G)."""
