"""What any layer may use: checks of values, files, formulas and their derivatives."""
