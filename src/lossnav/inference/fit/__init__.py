"""Fit members of the family to observed steps, and name the nearest known optimizer."""
