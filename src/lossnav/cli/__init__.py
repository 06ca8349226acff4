"""The command line: one module for each command."""

from lossnav.cli.commands import main as main
