"""The fastest plain PyTorch loop for a GPU that we know how to write by hand. It knows nothing of Paceline.

Channels-last images resident on the GPU, bfloat16, compiled, and the whole step recorded as one CUDA graph that is
replayed; the rows of a batch are copied to where the graph reads them.
"""

import time
from collections.abc import Callable

import torch
from bare_single import Data, batches, evaluate, starting_model
from torch.nn import functional

WARM_UP_STEPS = 11


def loop(path: str, batch: int) -> Callable[[int], tuple[float, float, float]]:
    """A model of its own, ready to train; the function trains an epoch: seconds, CPU seconds, mean loss."""
    data = Data(path)
    data.train_images, data.train_labels = data.train_images.cuda(), data.train_labels.cuda()
    data.test_images, data.test_labels = data.test_images.cuda(), data.test_labels.cuda()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    model = starting_model(data).cuda()
    start = [parameter.detach().clone() for parameter in model.parameters()]
    compiled = torch.compile(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, eps=1e-7, fused=True, capturable=True)
    rows = torch.zeros(batch, dtype=torch.long, device="cuda")

    def step() -> torch.Tensor:
        images, labels = data.train_images[rows].permute(0, 3, 1, 2), data.train_labels[rows]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = functional.cross_entropy(compiled(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), start, strict=True):
            parameter.copy_(value)
        for state in optimizer.state.values():
            for tensor in state.values():
                tensor.zero_()

    # The graph knows addresses and keeps nothing alive.
    held = (optimizer, compiled)

    def epoch(number: int) -> tuple[float, float, float]:
        assert held
        order = batches(len(data.train_images), batch, number).cuda()
        losses = torch.zeros(len(order), device="cuda")
        torch.cuda.synchronize()
        cpu, started = time.process_time(), time.perf_counter()
        for place, chosen in enumerate(order):
            rows.copy_(chosen)
            graph.replay()
            losses[place] = loss
        torch.cuda.synchronize()
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        evaluate(model, data)
        return seconds, cpu, float(losses.mean())

    return epoch
