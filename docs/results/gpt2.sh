#!/bin/sh
# The commands behind docs/results/gpt2.db, on one NVIDIA H200: GPT-2 124M in bf16, sequences of 1,024 tokens.
# LD_PRELOAD a NCCL of 2.30 or newer, so that slices talk through the GPU's memory (docs/gpus.md).
set -u
run() {
    timeout "$LIMIT" python3 -m paceline run --workload gpt --precision bf16 --train-samples 256 --epochs 3 \
        --timeout 60s --db "$DB" "$@" | tail -4
}

# The whole GPU: what the mesh costs where there is nothing to divide.
LIMIT=200
run --device cuda --local-batch 16 --strategy torch-single,torch-mesh --execution eager,compiled --workers 1 --repeats 2
# Four slices, one global batch: every way to divide the model, with and without recomputation.
LIMIT=330
slices() { run --device cuda-slice --slices 4 --global-batch 32 "$@"; }
slices --strategy torch-single --workers 1
slices --strategy torch-ddp,torch-fsdp --workers 4 --recompute none,full
slices --strategy torch-mesh --recompute none,full --layout shard=4 --layout tensor=4 --layout pipeline=4 \
    --layout context=4 --layout shard=2,tensor=2 --layout shard=2,pipeline=2 --layout shard=2,context=2
