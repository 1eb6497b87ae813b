"""The pieces of a PyTorch run that strategies put together: module, resident data, loss, and the step itself."""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.contract.context import Context
from paceline.contract.job import Evaluation, InputTimes
from paceline.data.tree import Tree, call, chunks, length, take
from paceline.errors import ModelError
from paceline.frameworks.torch.checkpoint import TorchCheckpoint
from paceline.frameworks.torch.equality.batch_norm import synchronise
from paceline.frameworks.torch.equality.dropout import Samples, sample_draws
from paceline.frameworks.torch.evaluation import TestPart, evaluate, loss_function
from paceline.frameworks.torch.found_blocks import find_blocks
from paceline.frameworks.torch.group import leave_group
from paceline.frameworks.torch.loaded_data import LoadedBatches
from paceline.frameworks.torch.model import build_module, neutral_weights, placed, torch_state
from paceline.frameworks.torch.optimizer import make_optimizer, user_optimizer, with_schedule
from paceline.frameworks.torch.precision import HALVES, loss_scale, set_precision
from paceline.frameworks.torch.resident_data import ResidentData
from paceline.spans import SpanRecorder
from paceline.workloads.base import Weights
from paceline.workloads.user_model import build_user_model


def torch_device(context: Context) -> torch.device:
    """The device of this process."""
    if context.spec.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", context.process.device if context.spec.device == "cuda" else 0)
    torch.cuda.set_device(device)
    if context.recorder is not None:
        from paceline.frameworks.torch.instrumentation.steps import profile_gpu

        profile_gpu(context.recorder)
    return device


def build(context: Context, device: torch.device) -> nn.Module:
    """The model with the run's starting weights, on the device."""
    channels_last = context.spec.memory_format == "channels_last"
    user_model, layers = context.model.user_model, context.model.layers
    if user_model is not None:
        torch.manual_seed(context.spec.seed)
        module = build_user_model(user_model)
        if not isinstance(module, nn.Module):
            raise ModelError(
                f"{user_model.label} returned {type(module).__name__}, not a torch.nn.Module; return the model itself"
            )
        if (blocks := find_blocks(module)) is not None:
            context.notes["blocks"] = blocks.text
    else:
        module, weights = build_module(layers, context.data.input_shape, channels_last), context.starting_weights()
        module.load_state_dict(torch_state(layers, context.data.input_shape, weights, channels_last))
    if context.spec.batch_norm == "synchronised" and dist.is_initialized():
        module = synchronise(module, device)
    return placed(module, device, channels_last)


def optimizer_for(context: Context, module: nn.Module) -> torch.optim.Optimizer:
    """The user's optimizer, or the run's settings; its steps also step what changes its learning rate."""
    user_model, spec = context.model.user_model, context.spec
    # What is frozen has no gradient and gets no state; ZeRO would deal it out and send it round all the same.
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if user_model is not None and user_model.optimizer is not None:
        returned = user_model.optimizer(trained)
        return user_optimizer(user_model.label, returned, lambda: context.order.steps_per_epoch)
    optimizer = make_optimizer(
        spec.optimizer, trained, eager=spec.execution == "eager", graphed="graph" in spec.execution
    )
    return with_schedule(context, optimizer)


class TorchJob:
    """Training as every data-parallel PyTorch strategy does it: one process, one module, one share of each batch."""

    stride = 1
    clock = staticmethod(perf_counter_ns)
    # Whether passes are made under autocast where the precision is a mixed one; FSDP casts by itself.
    autocasts = True
    # Whether ranks have parts of the gradients, so that they must ask each other before a step in fp16.
    has_parts = False
    # Whom they ask, where not every process of the run.
    group: dist.ProcessGroup | None = None

    def __init__(
        self,
        context: Context,
        model: nn.Module,
        device: torch.device,
        optimizer: torch.optim.Optimizer,
        barrier: Callable[[], Any] | None = None,
        leave: Callable[[], None] | None = None,
        share: tuple[int, int] | None = None,
        compiled: bool | None = None,
    ) -> None:
        # `share` is (which, of how many equal parts) of each global batch and of the test set; the usual one is the
        # worker's own. `compiled` is whether to compile the whole of the model; usually as the run's execution says.
        # `barrier` and `leave` are usually those of the process group, where one has been joined.
        spec = context.spec
        self._context, self._device, self._on_cpu = context, device, device.type == "cpu"
        self._module, self._optimizer = model, optimizer
        compiled = "compiled" in spec.execution if compiled is None else compiled
        self._model = torch.compile(model) if compiled else model
        self._loss = loss_function(context)
        in_group = dist.is_initialized()
        self._barrier = barrier or (dist.barrier if in_group else lambda: None)
        self._leave = leave or (leave_group if in_group else lambda: None)
        self._precision = set_precision(spec, self.autocasts)
        self._scale = loss_scale(spec, device, self.has_parts and in_group, self.group)
        self._replica, self._replicas = share or (context.process.index, spec.workers)
        self._loaded = self._open_loaded()
        self._data: Any = self._resident_data() if self._loaded is None else self._loaded
        self._draws = sample_draws(spec, device)
        self._batches = 0
        if self._replica:
            # All have built the model from the run's seed; what they drop is to be as different as their samples.
            torch.manual_seed(spec.seed + self._replica)
        self._needs_closure = isinstance(optimizer, torch.optim.LBFGS)
        if self._needs_closure and self._scale is not None:
            raise ModelError("precision fp16 may skip a step, which L-BFGS cannot take back; use bf16")
        self._order = torch.empty(0)
        self._losses: list[Tensor | float] = []
        if context.recorder is not None:
            self._instrument(context.recorder)

    def _open_loaded(self) -> LoadedBatches | None:
        """The data that are read while it trains; None where all lie on the device."""
        loaded = self._context.loaded
        if loaded is None:
            return None
        return LoadedBatches(self._context, loaded, self._device, (self._replica, self._replicas))

    def _resident_data(self) -> ResidentData:
        return ResidentData.load(self._context.data, self._device, self._context.spec.memory_format == "channels_last")

    def _instrument(self, recorder: SpanRecorder) -> None:
        from paceline.frameworks.torch.instrumentation import steps

        steps.record_forward(self._model, recorder)
        steps.record_backward(recorder)
        steps.record_updates(self._optimizer, recorder)
        self._data = steps.InstrumentedData(self._data, recorder)

    def align(self) -> None:
        """All processes of the run."""
        self._barrier()

    def start_epoch(self, epoch: int) -> None:
        """The epoch's indices go to the device once; of data that are read they stay with those who read."""
        loaded, order = self._loaded, self._context.order
        self._losses = []
        if loaded is None:
            self._order = torch.from_numpy(order.share(epoch, self._replica, self._replicas)).to(self._device)
            return
        rows = None if loaded.is_stream else order.share(epoch, self._replica, self._replicas)
        # A stream takes no notice of them.
        self._order = torch.empty(order.steps_per_epoch, 0) if rows is None else torch.from_numpy(rows)
        loaded.start_epoch(epoch, rows)

    @property
    def input_times(self) -> InputTimes | None:
        """What reading batches costs; None where the data lie on the device."""
        return None if self._loaded is None else self._loaded.times

    def step(self, first: int, count: int) -> None:
        """Forward, backward, update."""
        # Between two steps the caches hold tensors and no code: each call that is left out saves microseconds.
        order, is_stream = self._order, self._loaded is not None and self._loaded.is_stream
        for number in range(first, first + count):
            self._keep(self.train_on(order if is_stream else order[number]))

    def _keep(self, loss: Tensor) -> None:
        """Keeps a loss; on the CPU as a plain number, because a tensor kept from each step would fragment the heap."""
        self._losses.append(loss.item() if self._on_cpu else loss)

    def train_on(self, rows: Tensor) -> Tensor:
        """One optimizer step on some samples; gives their loss."""
        inputs, targets = self._data.batch(self._data.train, rows)
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._backward(inputs, targets)
        self._update(loss)
        return loss

    def _part_of_batch(self, rows: Tensor, takes_inputs: bool, gives_outputs: bool) -> tuple[Tree | None, Tree | None]:
        """Inputs for the process that has the first stage, targets for the one that has the last; else None."""
        data = self._data
        if self._loaded is None:
            inputs = data.batch(data.train, rows)[0] if takes_inputs else None
            return inputs, take(data.train[1], rows) if gives_outputs else None
        inputs, targets = data.batch(data.train, rows) if takes_inputs or gives_outputs else (None, None)
        return inputs if takes_inputs else None, targets if gives_outputs else None

    @property
    def order(self) -> Tensor:
        """The samples of each step of this epoch."""
        return self._order

    @property
    def optimizer_state(self) -> list[dict[str, Any]]:
        """The optimizer's state of each parameter."""
        return list(self._optimizer.state.values())

    @property
    def graphed(self) -> bool:
        """Whether the run asks for its steps as a CUDA graph."""
        return "graph" in self._context.spec.execution

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """A context after which weights and optimizer are as before, whatever was trained inside."""
        kept = list(self._bare_module().state_dict().values())
        copies = [tensor.detach().clone() for tensor in kept]
        yield
        with torch.no_grad():
            for tensor, copy in zip(kept, copies, strict=True):
                tensor.copy_(copy)
            # The state of Adam and SGD starts from zeros.
            for held in self._optimizer.state.values():
                for tensor in _kept(held):
                    tensor.zero_()

    def _backward(self, inputs: Tree, targets: Tree) -> Tensor:
        """Leaves the gradients of the mean loss in the parameters and gives that loss."""
        passes = self._context.spec.accumulation
        self._batches += 1
        if passes == 1:
            if self._draws is None:
                return self._pass(inputs, targets, 1)
            with self._drawing(0, length(targets)):
                return self._pass(inputs, targets, 1)
        shares = []
        for number, (part, aims) in enumerate(zip(chunks(inputs, passes), chunks(targets, passes), strict=True), 1):
            with self._sending(last=number == passes), self._drawing(number - 1, length(aims)):
                shares.append(self._pass(part, aims, passes))
        return torch.stack(shares).sum()

    def _drawing(self, part: int, samples: int) -> AbstractContextManager[Any]:
        """Around one of the passes over this worker's share of a batch: what its dropout draws."""
        if self._draws is None:
            return nullcontext()
        local = samples * self._context.spec.accumulation
        first = self._replica * local + part * samples
        return self._draws.of(self._batches, Samples(first, samples, self._replicas * local))

    def _pass(self, inputs: Tree, targets: Tree, passes: int) -> Tensor:
        """Adds the gradients of one of several equal parts of the batch, and gives its share of the mean loss."""
        with self._precision():
            loss = self._loss_of(inputs, targets)
            if passes > 1:
                loss = loss / passes
        (loss if self._scale is None else loss * self._scale.factor).backward()
        return loss.detach()

    def _loss_of(self, inputs: Tree, targets: Tree) -> Tensor:
        return self._loss(call(self._model, inputs), targets)

    def _sending(self, last: bool) -> AbstractContextManager[Any]:
        """Around a pass of several; gradients are sent in the last of them."""
        return nullcontext()

    def _update(self, loss: Tensor) -> None:
        if self._scale is not None and not self._scale.unscale(self._bare_module().parameters()):
            return
        if self._context.spec.clip is not None:
            nn.utils.clip_grad_norm_(self._bare_module().parameters(), self._context.spec.clip)
        if self._needs_closure:
            # With one iteration per step the closure is called once, for the gradients that are there already.
            self._optimizer.step(lambda: loss)
        else:
            self._optimizer.step()

    def wait(self) -> None:
        """Waits for the GPU; the CPU works in the caller's thread."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def losses(self) -> list[float]:
        """Losses of this process's share of each batch."""
        if self._device.type == "cpu" or not self._losses:
            return list(map(float, self._losses))
        losses: list[float] = torch.stack(self._losses).float().cpu().tolist()
        return losses

    def latest_loss(self) -> float | None:
        """The loss of the last step on cores; a GPU would have to be waited for."""
        return float(self._losses[-1]) if self._losses and self._device.type == "cpu" else None

    def evaluate(self) -> Evaluation:
        """The part of the test set that falls to this process."""
        return self._evaluate(self._bare_module())

    def _evaluate(self, model: nn.Module) -> Evaluation:
        test = TestPart(self._loaded or self._data, self._replica, self._replicas, self._all_have)
        return evaluate(model, self._loss, self._context.model.user_model, test)

    def _all_have(self, has_more: bool) -> bool:
        """Whether every process has another batch, where a pass through the model needs them all."""
        if not self.has_parts or not dist.is_initialized():
            return has_more
        everywhere = torch.tensor(int(has_more), device=self._device)
        dist.all_reduce(everywhere, dist.ReduceOp.MIN, self.group)
        return bool(everywhere)

    def weights(self) -> Weights:
        """All weights in the neutral layout."""
        return export_weights(self._context, self._bare_module().state_dict())

    def checkpoint(self) -> TorchCheckpoint | None:
        """The whole state, saved by the first process: all others hold the same."""
        return None if self._context.process.index else self.whole_checkpoint()

    def whole_checkpoint(self) -> TorchCheckpoint:
        """Everything, under a name that every process finds."""
        return self._checkpoint_of(self._bare_module(), name="whole")

    def _checkpoint_of(
        self, module: nn.Module | None, beside: dict[str, Tensor] | None = None, name: str | None = None
    ) -> TorchCheckpoint:
        """A checkpoint of what this process holds, with the loss scale of fp16."""
        numbers = [] if self._scale is None else [(self._scale, "factor"), (self._scale, "good_steps")]
        name = name or f"rank-{self._context.process.rank}"
        return TorchCheckpoint(name, module, self._optimizer, beside, numbers)

    def details(self) -> dict[str, Any]:
        """Thread pools as PyTorch has them, and the bytes that its tensors hold."""
        held = held_bytes(list(self._bare_module().parameters()), self._optimizer)
        threads, version = torch.get_num_threads(), torch.__version__
        scale = {} if self._scale is None else {"skipped_steps": self._scale.skipped_steps}
        return {"intra_threads": threads, "torch": version, "held_bytes": held, **scale} | device_peak(self._device)

    def close(self) -> None:
        """A wrapper that is still alive when its process group goes aborts about one exit in ten."""
        if self._loaded is not None:
            self._loaded.close()
        del self._model, self._module, self._optimizer
        gc.collect()
        self._leave()

    def _bare_module(self) -> nn.Module:
        wrapped = isinstance(self._module, nn.DataParallel | nn.parallel.DistributedDataParallel)
        return self._module.module if wrapped else self._module


def device_peak(device: torch.device) -> dict[str, int]:
    """The GPU allocator's peak; None on the CPU."""
    return {"device_peak_bytes": torch.cuda.max_memory_allocated(device)} if device.type == "cuda" else {}


def held_bytes(parameters: list[Tensor], optimizer: torch.optim.Optimizer | None) -> dict[str, int]:
    """Bytes of the tensors that this process holds; for a sharded tensor, its own shard."""
    # An optimizer that shares its work among ranks keeps its state in the one within it.
    local = getattr(optimizer, "optim", optimizer)
    return {
        "parameters": sum(_bytes(parameter) for parameter in parameters),
        "optimizer": sum(_bytes(tensor) for held in (local.state.values() if local else ()) for tensor in _kept(held)),
    }


def _kept(held: dict[str, Any]) -> Iterator[Tensor]:
    """Tensors of one optimizer state; L-BFGS keeps its history in lists."""
    for value in held.values():
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, Tensor):
                yield item


def _bytes(tensor: Tensor) -> int:
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return int(local.numel() * local.element_size())


def export_weights(context: Context, state: dict[str, Tensor]) -> Weights:
    """A state dict in the neutral layout, or under the user's own names; shards are gathered from all ranks."""
    whole = {name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for name, tensor in state.items()}
    # NumPy has no bfloat16.
    whole = {name: tensor.float() if tensor.dtype in HALVES.values() else tensor for name, tensor in whole.items()}
    if context.model.user_model is not None:
        return {name: tensor.detach().cpu().numpy() for name, tensor in whole.items()}
    channels_last = context.spec.memory_format == "channels_last"
    return neutral_weights(context.model.layers, context.data.input_shape, whole, channels_last)
