from pathlib import Path

import pytest

from cafedcl.compare.sweep import Sweep
from cafedcl.compare.tune import Search
from cafedcl.core.errors import CafedclError
from cafedcl.federation.run_folder import CONFIG


def test_a_run_with_other_options_than_proposed_is_not_scored(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    sweep = Sweep.from_plain(
        {
            "settings": {"method.name": "cafedcl", "federation.rounds": 2},
            "seeds": 1,
            "first_seed": 0,
            "score": "server.accuracy",
            "on": "test",
            "hold_out": 0.1,
            "grid": {},
            "ranges": {"train.lr": "0.001..0.9:log"},
            "choices": {"method.geo": ["batch", "cross"], "model.name": ["auto", "mlp"]},
            "prune": False,
        }
    )
    search = Search(sweep, tmp_path)
    proposed = {"train.lr": 0.05, "method.geo": "cross", "model.name": "auto"}
    (job,) = search.trial(0, proposed).jobs
    search.check_options(job, proposed)
    job.folder.mkdir(parents=True)
    same = "[train]\nlr = 0.05\n[method]\ngeo = 'cross'\n[model]\nname = 'cnn8'\n"
    (job.folder / CONFIG).write_text(same)
    search.check_options(job, proposed)
    for old, new in (("0.05", "0.06"), ("cross", "batch"), ("cnn8", "mlp")):
        (job.folder / CONFIG).write_text(same.replace(old, new))
        with pytest.raises(CafedclError, match=r"study\.db proposes .*: the file was lost"):
            search.check_options(job, proposed)
