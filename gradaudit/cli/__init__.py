"""The command line: one file per command, each a thin call of one library function."""

from gradaudit.cli.app import main

__all__ = ["main"]
