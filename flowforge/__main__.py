"""`python -m flowforge`: the same as the `flowforge` command."""

from flowforge.cli import main

main()
