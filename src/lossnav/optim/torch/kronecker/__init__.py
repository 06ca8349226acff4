"""The diagonal family in a basis that is learned for each matrix."""
