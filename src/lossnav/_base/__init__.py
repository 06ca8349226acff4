"""Shared by all layers: checks of values, atomic files, formulas and their derivatives."""
