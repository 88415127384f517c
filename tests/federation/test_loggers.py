import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cafedcl.core.errors import CafedclError
from cafedcl.federation.loggers import logging_to, parameters, scalars
from cafedcl.federation.rounds import Federation

Make = Callable[..., Federation]


def test_all_numbers_of_a_round_are_there(tiny: Make) -> None:
    record = tiny("cafedcl").step()
    found = scalars(record)
    assert found["server.accuracy"] == record.server["accuracy"]
    assert found["own.client_std"] == record.own["client_std"]
    assert found["loss.i2p"] == record.loss["i2p"]
    assert found["traffic.up_bytes"] == record.traffic["up_bytes"]
    assert found["seconds.round"] == sum(record.seconds.values())
    assert found["clients.participants"] == 3
    assert "server.few" in found or record.server["few"] is None
    assert "server.accuracy" not in scalars(tiny("fedproto").step()), "there is no server model"


def test_a_config_becomes_parameters(tiny: Make) -> None:
    found = parameters(tiny("fedavg").config.to_plain())
    assert found["method.name"] == "fedavg"
    assert found["train.epochs"] == "1"
    assert found["evaluate.shots"] == "[100, 20]"
    assert found["train.flip"] == "false"


def read_back(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


@pytest.mark.filterwarnings("default")
def test_tensorboard_has_the_numbers_of_the_records_even_after_a_resume(
    tiny: Make, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    first = tiny("fedavg", federation__rounds=4)
    with logging_to(["tensorboard"], tmp_path / "run") as first.callbacks:
        first.step()
        saved = first.snapshot()
        first.step()
        first.step()
    second = tiny("fedavg", federation__rounds=4)
    second.restore(*saved)
    with logging_to(["tensorboard"], tmp_path / "run") as second.callbacks:
        second.run()
    history = [first.history[0], *second.history]
    found = read_back(tmp_path / "run" / "tensorboard")
    for name in ("server.accuracy", "own.client_mean", "loss.ce", "traffic.down_bytes", "lr"):
        expected = [(record.round, pytest.approx(scalars(record)[name])) for record in history]
        assert found[name.replace(".", "/")] == expected, name


class Store:
    """As much of MLflow as is used, in memory."""

    def __init__(self) -> None:
        self.experiments: dict[str, Any] = {}
        self.runs: dict[str, Any] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.broken = False
        self.exceptions = SimpleNamespace(MlflowException=type("MlflowException", (Exception,), {}))
        pair = SimpleNamespace
        self.entities = SimpleNamespace(
            Metric=lambda key, value, now, step: pair(key=key, value=value, step=step),
            Param=lambda key, value: pair(key=key, value=value),
        )

    def MlflowClient(self) -> "Store":  # noqa: N802
        return self

    def get_experiment_by_name(self, name: str) -> Any:
        if self.broken:
            raise self.exceptions.MlflowException("no answer\nand more")
        return self.experiments.get(name)

    def create_experiment(self, name: str) -> str:
        self.experiments[name] = SimpleNamespace(experiment_id="1")
        return "1"

    def create_run(self, experiment: str, run_name: str) -> Any:
        self.runs["7"] = SimpleNamespace(
            name=run_name, params={}, steps=[], data=SimpleNamespace(metrics={})
        )
        return SimpleNamespace(info=SimpleNamespace(run_id="7"))

    def get_run(self, run_id: str) -> Any:
        return self.runs[run_id]

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        if self.broken:
            raise self.exceptions.MlflowException("no answer\nand more")
        self.runs[run_id].params |= {one.key: one.value for one in params}
        self.runs[run_id].data.metrics |= {one.key: one.value for one in metrics}
        self.runs[run_id].steps += [
            (one.step, one.value) for one in metrics if one.key == "server.accuracy"
        ]

    def update_run(self, run_id: str, status: str) -> None:
        self.calls.append((run_id, status))

    set_terminated = update_run


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.setitem(sys.modules, "mlflow", store)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return store


def test_mlflow_has_the_numbers_of_the_records_even_after_a_resume(
    tiny: Make, tmp_path: Path, mlflow: Store
) -> None:
    first = tiny("fedavg", federation__rounds=3)
    with suppress(KeyboardInterrupt), logging_to(["mlflow"], tmp_path) as first.callbacks:
        first.step()
        saved = first.snapshot()
        first.step()
        raise KeyboardInterrupt
    second = tiny("fedavg", federation__rounds=3)
    second.restore(*saved)
    with logging_to(["mlflow"], tmp_path) as second.callbacks:
        second.run()
    assert list(mlflow.experiments) == ["cafedcl"]
    (run,) = mlflow.runs.values()
    assert run.name == tmp_path.name
    assert run.params["train.epochs"] == "1"
    history = [first.history[0], *second.history]
    assert run.steps == [(record.round, record.server["accuracy"]) for record in history]
    assert mlflow.calls == [("7", "KILLED"), ("7", "RUNNING"), ("7", "FINISHED")]


def test_a_run_goes_on_when_mlflow_does_not(
    tiny: Make, tmp_path: Path, mlflow: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = tiny("fedavg", federation__rounds=3)
    with logging_to(["mlflow"], tmp_path) as federation.callbacks:
        federation.step()
        mlflow.broken = True
        federation.run()
    assert len(federation.history) == 3
    assert (
        capsys.readouterr().err
        == "warning: mlflow: no answer; the run continues without it from round 2\n"
    )


def test_mistakes_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow: Store
) -> None:
    def ask(name: str) -> None:
        with logging_to([name], tmp_path):
            pass

    with pytest.raises(
        CafedclError, match="--log tensorbord: there is no such log; did you mean 'tensorboard'"
    ):
        ask("tensorbord")
    mlflow.broken = True
    with pytest.raises(
        CafedclError, match="--log mlflow: no answer; fix it, or set MLFLOW_TRACKING_URI"
    ):
        ask("mlflow")
    for name in ("tensorboard", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(CafedclError, match=f"--log {name}: {name} is not installed"):
            ask(name)
    assert list(tmp_path.iterdir()) == []
