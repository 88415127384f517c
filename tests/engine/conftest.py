from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cafedcl.engine.cuda.engine import CudaEngine


@pytest.fixture
def plain_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread and no oneDNN: small tensors are faster, and bf16 is no warning on older
    processors.
    """
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_engine_outlives_its_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close every engine, which frees its slots, and check that it can be closed twice."""
    made: list[CudaEngine] = []
    begin = CudaEngine.__init__

    def noted(self: CudaEngine, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        made.append(self)

    monkeypatch.setattr(CudaEngine, "__init__", noted)
    yield
    for engine in made:
        engine.close()
        engine.close()
        assert engine.slots == []
