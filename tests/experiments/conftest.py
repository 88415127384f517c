"""Scripts of experiments/ are importable here, as they are for one another."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
