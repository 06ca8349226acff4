"""The command line: one module for each command, `commands` for the program as a whole."""
