"""Objective to EulerLagrange: the equations of the optimal path, derived symbolically."""
