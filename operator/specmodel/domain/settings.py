"""What an operator release or its chart decides, as opposed to what a user writes.

These defaults change with a release; that is why they are no schema defaults, which the API server would apply anew on
every read.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Exact values of `nvidia.com/gpu.product` that real H100 cards report. Never matched by prefix: H200, H20, GH200,
#: `-SHARED` and `-MIG-` names are other things.
H100_PRODUCTS = ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-NVL", "NVIDIA-H100-PCIe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Operator-wide settings."""

    engine_image: str = "vllm/vllm-openai:v0.25.1"
    benchmark_image: str = "specmodel/benchmark:0.1.0"
    image_pull_policy: str = "IfNotPresent"
    gpu_resource: str = "nvidia.com/gpu"
    gpu_products: tuple[str, ...] = H100_PRODUCTS
