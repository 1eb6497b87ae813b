#!/bin/sh
# The commands behind docs/results/h200.db, on one NVIDIA H200 cut into four slices. MNIST is the folder of its files.
set -u
run() {
    python3 -m paceline run --dataset mnist --data-dir "$MNIST" --device cuda-slice --slices 4 --workers 1,2,4 \
        --epochs 2 --timeout 60s --db "$DB" "$@"
}

# Every kind of strategy, both models.
run --workload mnist-small,mnist-large --global-batch 512 \
    --strategy torch-dp,torch-ddp,torch-zero,torch-fsdp,torch-ps-sync,torch-pipeline
# The first paper's factors: batch size and data size.
run --workload mnist-large --global-batch 128,256,512 --strategy torch-dp,torch-ddp --repeats 3
run --workload mnist-small --global-batch 512 --dataset-copies 4,8 --strategy torch-dp,torch-ddp
# Where the time goes.
run --workload mnist-small,mnist-large --global-batch 512 --strategy torch-ddp,torch-fsdp,torch-ps-sync --breakdown
# Eight slices, half as large: the later --slices and --workers hold.
run --workload mnist-large --global-batch 512 --strategy torch-ddp --slices 8 --workers 1,2,4,8
# JAX, and the fast path.
run --workload mnist-small,mnist-large --global-batch 512 --strategy jax-data
run --workload mnist-small,mnist-large --local-batch 512 --strategy torch-ddp \
    --execution eager,graph --precision fp32,tf32
run --workload mnist-small,mnist-large --local-batch 512 --strategy torch-ddp \
    --execution compiled+graph --precision bf16
