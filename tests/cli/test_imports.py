import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "modules",
    ["cafedcl.cli.main", "cafedcl.report.page, cafedcl.report.table, cafedcl.report.figures"],
)
def test_reports_and_help_load_no_pytorch(modules: str) -> None:
    code = f"import sys; import {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
