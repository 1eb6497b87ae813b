#!/bin/sh
# The commands behind docs/results/slices.db, on one NVIDIA H200 cut into slices: models of today in bf16.
# LD_PRELOAD a NCCL of 2.30 or newer, so that slices talk through the GPU's memory (docs/gpus.md).
set -u
run() {
    timeout "$LIMIT" python3 -m paceline run --precision bf16 --device cuda-slice --epochs 3 --timeout 60s --db "$DB" \
        "$@" | tail -4
}
LIMIT=150
resnet() { run --workload resnet --slices 4 --global-batch 128 --train-samples 1024 "$@"; }
resnet --strategy torch-ddp --workers 1,2,4
resnet --strategy torch-fsdp,torch-pipeline,jax-data --workers 2,4
resnet --strategy torch-ddp,torch-fsdp --slices 8 --workers 4,8
gpt() { run --workload gpt --slices 4 --global-batch 32 --train-samples 256 "$@"; }
gpt --strategy torch-single --workers 1
gpt --strategy torch-ddp,torch-fsdp --workers 2,4
gpt --strategy torch-mesh --layout tensor=2 --layout tensor=4 --layout pipeline=2 --layout shard=2,tensor=2 \
    --layout shard=2,pipeline=2
gpt --strategy torch-ddp,torch-fsdp --slices 8 --workers 8
gpt --strategy jax-data --workers 4
llama() { run --workload llama --option size=1b --option sequence=2048 --slices 4 --global-batch 8 --train-samples 64 "$@"; }
llama --strategy torch-fsdp --workers 4 --recompute none,full
llama --strategy torch-mesh --layout shard=2,tensor=2 --layout tensor=4 --layout shard=2,pipeline=2 --recompute full
