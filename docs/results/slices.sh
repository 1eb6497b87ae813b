#!/bin/sh
# The commands behind docs/results/slices.db, on one NVIDIA H200 cut into slices: models of today in bf16.
# LD_PRELOAD a NCCL of 2.30 or newer, so that slices talk through the GPU's memory (docs/gpus.md).
set -u
run() {
    timeout 120 python3 -m paceline run --precision bf16 --device cuda-slice --epochs 3 --timeout 50s --db "$DB" "$@" | tail -2
}
gpt() { run --workload gpt --slices 4 --global-batch 32 --train-samples 128 "$@"; }
gpt --strategy torch-ddp,torch-fsdp --workers 1,2,4
gpt --strategy torch-mesh --layout tensor=2 --layout tensor=4 --layout pipeline=2 --layout shard=2,tensor=2 \
    --layout shard=2,pipeline=2 --layout context=4
resnet() { run --workload resnet --slices 4 --global-batch 128 --train-samples 768 "$@"; }
resnet --strategy torch-ddp,torch-fsdp,torch-pipeline --workers 1,2,4
llama() { run --workload llama --option size=1b --option sequence=2048 --slices 4 --global-batch 8 --train-samples 32 "$@"; }
llama --strategy torch-fsdp --workers 4 --recompute none,full
llama --strategy torch-mesh --layout shard=2,tensor=2 --layout tensor=4 --layout shard=2,pipeline=2 --recompute full
gpt --strategy torch-ddp,torch-fsdp --slices 8 --workers 8
resnet --strategy torch-ddp,torch-fsdp --slices 8 --workers 8
gpt --slices 8 --strategy torch-mesh --layout shard=4,tensor=2 --layout shard=4,pipeline=2
gpt --slices 2 --strategy torch-ddp --workers 1,2
gpt --slices 2 --strategy torch-fsdp --workers 2
gpt --slices 2 --strategy torch-mesh --layout tensor=2 --layout pipeline=2
resnet --slices 2 --strategy torch-ddp,torch-fsdp,torch-pipeline --workers 2
resnet --slices 8 --strategy torch-pipeline --workers 8
