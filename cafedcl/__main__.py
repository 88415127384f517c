"""``python -m cafedcl``."""

from cafedcl.cli.main import main

main()
