"""Run the command line with `python -m sitewise`."""

from sitewise.cli import main

main()
