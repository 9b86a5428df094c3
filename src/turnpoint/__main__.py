"""`python -m turnpoint` is the command `turnpoint`."""

from turnpoint.cli import main

main()
