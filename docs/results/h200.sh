#!/bin/sh
# The commands behind docs/results/h200.db, on one NVIDIA H200 cut into slices. MNIST is the folder of its files.
# LD_PRELOAD a NCCL of 2.30 or newer, so that slices talk through the GPU's memory (docs/gpus.md).
set -u
run() {
    python3 -m paceline run --dataset mnist --data-dir "$MNIST" --train-samples 15360 --device cuda-slice --slices 4 \
        --workers 1,2,4 --epochs 3 --timeout 60s --db "$DB" "$@" | tail -2
}

# Every kind of strategy, both models.
run --workload mnist-small,mnist-large --global-batch 512 --strategy torch-ddp,torch-zero,torch-fsdp,torch-ps-sync,torch-pipeline
# The first paper's factors: batch size and data size.
run --workload mnist-large --global-batch 128,256,512 --strategy torch-dp,torch-ddp
run --workload mnist-small --global-batch 512 --dataset-copies 1,4 --strategy torch-dp,torch-ddp
# Eight slices, half as large: the later --slices and --workers hold.
run --workload mnist-large --global-batch 512 --strategy torch-ddp --slices 8 --workers 1,2,4,8
# The same over sockets: what a slow link costs.
run --workload mnist-large --global-batch 512 --strategy torch-ddp,torch-fsdp --transport socket --workers 2,4
# Where the time goes.
run --workload mnist-large --global-batch 512 --strategy torch-ddp,torch-fsdp --breakdown
# The fast path.
run --workload mnist-large --local-batch 512 --strategy torch-ddp --execution eager,graph --precision tf32
run --workload mnist-large --local-batch 512 --strategy torch-ddp --execution compiled+graph --precision bf16 --workers 1,4
# JAX beside PyTorch.
run --workload mnist-small,mnist-large --global-batch 512 --strategy jax-data
