"""What a site's worker refuses before its site is online."""

from pathlib import Path

import pytest

from cafedcl.core.errors import CafedclError
from cafedcl.deploy.flower import worker
from cafedcl.deploy.site import READY


@pytest.mark.parametrize("device", ["cuda:99", "gpu"])
def test_a_site_whose_device_is_missing_never_goes_online(device: str, tmp_path: Path) -> None:
    place, runtime = tmp_path / "site", tmp_path / "runtime"
    place.mkdir()
    runtime.mkdir()
    text = f'[site]\nname = "north"\nhost = "127.0.0.1"\ndata = "images"\ndevice = "{device}"\n'
    (place / "site.toml").write_text(text, encoding="utf-8")
    with pytest.raises(CafedclError, match=rf"site\.toml: device = {device}: .*; set another one"):
        worker.main(place, runtime)
    assert not (runtime / READY).exists()
