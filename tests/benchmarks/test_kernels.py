import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "kernels.py"
SEEN = {
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x64x64": (
        "convolutions, forward"
    ),
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816dgrad_optimized_bf16>": (
        "convolutions, gradient of images"
    ),
    "sm90_xmma_wgrad_indexed_implicit_gemm_bf16bf16_bf16f32": "convolutions, gradient of filters",
    "xmma__5x_cudnn::init_device_workspace_kernel<xmma__5x_cudnn::implicit_gemm::wgrad_indexed": (
        "convolutions, gradient of filters"
    ),
    "differentiate": "normalisation, shortcut, ReLU",
    "triton_red_fused_add_clone_native_group_norm_backward_threshold_backward_46": (
        "normalisation, shortcut, ReLU"
    ),
    "triton_poi_fused_add_copy__linalg_vector_norm_mul_reciprocal_sub_18": "clipping and update",
    "nvjet_sm90_tst_64x512_64x2_1x2_h_bz_coopB_TNT": "other",
    "Memset (Unknown)": "other",
}
"""Names of kernels in a step of ResNet-18-GN on an H200."""


@pytest.mark.parametrize("kernel", SEEN)
def test_a_kernel_is_known_by_its_name(kernel: str) -> None:
    assert runpy.run_path(str(FILE))["kind_of"](kernel) == SEEN[kernel]


def test_the_kinds_add_up_and_the_command_stands_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "kernels.json"
    words = ["kernels.py", "--device", "cpu", "--tasks", "digits", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    main: Any = runpy.run_path(str(FILE))["main"]
    main()
    result = json.loads(out.read_text(encoding="utf-8"))
    assert result["command"] == ["python", *words]
    found = result["tasks"]["digits"]
    times = found["kernels_ms"]
    assert times["convolutions, forward"] > 0
    assert times["normalisation, shortcut, ReLU"] == 0
    assert found["together_ms"] > 0
    others = list(found["largest_other_ms"].values())
    assert 0 < sum(others) <= times["other"] * 1.000001
    assert others == sorted(others, reverse=True)
    total = f"digits: one client's kernels take {sum(times.values()):.2f} ms a step"
    assert total in capfd.readouterr().out
