"""`python -m sitewise` is the command line."""

from sitewise.cli import main

main()
