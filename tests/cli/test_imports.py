import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "modules",
    [
        "cafedcl.cli.main",
        "cafedcl.report.page, cafedcl.report.table, cafedcl.report.figures",
        "cafedcl.cli.deploy, cafedcl.deploy.server, cafedcl.deploy.site",
    ],
)
def test_reports_help_and_what_only_waits_for_sites_load_no_pytorch(modules: str) -> None:
    code = f"import sys; import {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
