"""`python -m gradaudit.cli`."""

from gradaudit.cli.app import main

main()
