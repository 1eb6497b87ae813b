"""The values for the template of scripts with a composed layout."""

from collections.abc import Mapping
from typing import Any

from paceline.contract.context import spec_layers
from paceline.costs.layouts import SPLIT_BACKWARD, V_SHAPED, MeshPlan, is_causal_transformer
from paceline.costs.recompute import recomputes_around
from paceline.errors import SpecError
from paceline.layout import DIMENSIONS
from paceline.recommend.scripts.base import Source
from paceline.recommend.scripts.torch_parts import SCHEDULES, cut_built_in
from paceline.recommend.scripts.torch_text import on_several_machines, optimizer_text
from paceline.spec import RunSpec
from paceline.workloads.base import model_facts

# Dimensions that the template divides a model along.
SCRIPTED = ("pipeline", "replicate", "shard", "context", "tensor")
# What selective recomputation keeps: products, attention on cores and GPUs, and what came from other workers.
KEPT = (
    "aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.convolution",
    "aten._scaled_dot_product_flash_attention_for_cpu", "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_efficient_attention", "aten._scaled_dot_product_cudnn_attention",
    "_c10d_functional.all_gather_into_tensor", "_c10d_functional.reduce_scatter_tensor",
    "_c10d_functional.all_reduce", "_c10d_functional.wait_tensor",
)  # fmt: skip


def mesh_values(source: Source) -> Mapping[str, Any]:
    """The mesh, its schedule, and the cut of a built-in model; a user's is cut when the script runs."""
    spec, plan = source.spec, MeshPlan.of(source.spec, source.knobs)
    _check(source, plan)
    in_stages = plan.layout.pipeline > 1
    edges, bare = cut_built_in(source, plan.stages) if in_stages and spec.model is None else ([], False)
    passes = [" * ACCUMULATION"] * (plan.accumulation > 1) + [" * MICROBATCHES"] * in_stages
    return {
        "sizes": {name: getattr(plan.layout, name) for name in SCRIPTED},
        "has_stretches": plan.layout.context > 1,
        "in_stages": in_stages,
        "microbatches": plan.microbatches,
        "stages_each": plan.stages_per_worker,
        "is_v_shaped": plan.schedule in V_SHAPED,
        "schedule": SCHEDULES[plan.schedule],
        "edges": edges,
        "may_lack_parameters": bare or (in_stages and "stages" in source.user_functions),
        "passes_text": "".join(passes),
        "kept": KEPT,
        "reduces_each": plan.reduce == "each",
        "recomputes_around": recomputes_around(spec, plan.layout.tensor),
        "goes_back_twice": in_stages and plan.schedule in SPLIT_BACKWARD,
        "casts": spec.precision == "bf16",
        # The fused form of SGD does not know divided tensors, and FSDP wants those in their plain order.
        "optimizer": optimizer_text(spec.optimizer, "parameters", fused=False),
        "channels_last": False,
    }


def _check(source: Source, plan: MeshPlan) -> None:
    """Refuses runs that the template cannot express."""
    spec = source.spec
    others = [name for name in DIMENSIONS if name not in SCRIPTED and getattr(plan.layout, name) > 1]
    if others:
        raise SpecError(
            f"a script cannot be written for {others[0]}={getattr(plan.layout, others[0])}; use a layout of "
            f"{', '.join(SCRIPTED)}, or train it with paceline run"
        )
    if plan.layout.pipeline > 1 and spec.model is None and any(layer.tied for layer in spec_layers(spec)[0]):
        raise SpecError(
            f"a script cannot be written for pipeline={plan.layout.pipeline}: the head of {spec.workload} is tied to "
            f"its table of tokens, which would be on another stage; use a layout without pipeline, or an untied head "
            f"(option tied)"
        )
    if plan.layout.tensor > 1 and spec.model is None and not is_causal_transformer(model_facts(*source.built_in)):
        raise SpecError(
            f"a script cannot be written: with tensor it splits causal transformers, and {spec.workload} is none; "
            f"use torch-tensor, or a layout without tensor"
        )


def mesh_notes(spec: RunSpec) -> str:
    """How workers lie on machines, and what the script does not do."""
    within = "Keep workers that differ only in their last place, tensor, on one machine. "
    has_parts = spec.layout is not None and spec.layout.tensor > 1
    return (
        f"{within if has_parts else ''}It tells the loss of training; the checkpoint is that of the whole model. "
        f"{on_several_machines(spec)}"
    )
