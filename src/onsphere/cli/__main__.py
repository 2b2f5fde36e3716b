"""`python -m onsphere.cli`."""

from onsphere.cli import main

main()
