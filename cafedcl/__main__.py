"""``python -m cafedcl``."""

from cafedcl.cli import main

main()
