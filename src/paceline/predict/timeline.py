"""A strategy's footprint ─► where the seconds of one step go: the tasks of a step, put together and simulated."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from paceline.costs.footprint import FLOAT_BYTES, Footprint, Message, ModelFacts, RankFootprint, Stages
from paceline.predict.compute import Passes
from paceline.predict.simulate import Served, Task, largest_of, overlap, pipeline_order, serve, simulate
from paceline.predict.transfers import Costs
from paceline.systems.hardware import Hardware, StrategyOverhead

# A socket takes about so much at once (Linux: tcp_wmem starts at 16 kB and grows as it is used); the rest of a message
# waits for the threads of both ends, which computation keeps from their cores, more than once.
LONG_BYTES = 100e3


@dataclass(frozen=True)
class Parts:
    """Seconds of one step: they add up to it. `transfers` is all communication, hidden or not."""

    compute: float
    exposed: float
    bubble: float
    waiting: float
    transfers: float
    staleness: float = 0.0
    # Of all processes together, where cores also move the bytes.
    cpu_seconds: float = 0.0

    @property
    def step(self) -> float:
        """The whole."""
        return self.compute + self.exposed + self.bubble + self.waiting


@dataclass(frozen=True)
class Scene:
    """What a step is simulated with: the work of one worker, the costs of transfers, and who shares what."""

    hardware: Hardware
    costs: Costs
    model: ModelFacts
    passes: Passes
    # How much longer computation takes because other workers compute too.
    crowding: float
    synchronous: bool
    workers: int
    # Operations that the passes stand for: a worker that holds a part of each layer has fewer.
    flops: float
    state_bytes_per_parameter: float = 0.0
    # Backward passes before the one that gradients are sent with; each has a forward pass of its own.
    earlier_passes: int = 0
    # What the strategy's own software takes of a rank, and whether it works on parts of layers.
    overhead: StrategyOverhead | None = None
    splits_layers: bool = False
    # Pieces of the model's gradients by their sizes, worked out once.
    filled: dict[tuple[float, float], list[tuple[int, float]]] = field(default_factory=dict)

    def software(self, group: RankFootprint, parameter_bytes: float) -> float:
        """Seconds of a rank that go into handling its messages and these parameters, not into sending."""
        if self.overhead is None or self.workers < 2:
            return 0.0
        own = self.overhead.seconds_per_parameter_byte * parameter_bytes
        # Who splits layers goes through its own software for every operation on their parts, not for every message.
        handled = self.model.tensors if self.splits_layers else _count(group)
        return own + self.overhead.seconds_per_message * handled

    def waking(self, group: RankFootprint) -> float:
        """Seconds in which a rank waits for the other ends of its messages to wake up."""
        if self.overhead is None or self.workers < 2:
            return 0.0
        long = sum(message.count for message in group.messages if message.payload_bytes > LONG_BYTES)
        return self.overhead.waiting_per_message * _count(group) + self.overhead.waiting_per_long_message * long

    def share(self, group: RankFootprint) -> float:
        """Of the whole model's operations on the rank's samples."""
        return group.flops / (1 + self.earlier_passes) / self.flops if self.flops else 1.0

    @property
    def interference(self) -> float:
        """Computation lost in each second of a transfer that is hidden behind it."""
        return self.hardware.interference.value

    def scale(self, group: RankFootprint) -> float:
        """What a rank's passes take of those of the whole model: by its operations, but no less than asking takes."""
        least = self.passes.least / self.passes.total if self.passes.total else 0.0
        return self.crowding * max(self.share(group), least)

    def update_seconds(self, group: RankFootprint) -> float:
        """Of the parameters that a rank updates: those that it holds optimizer state for, or all of its own."""
        held = group.parameter_bytes / FLOAT_BYTES
        if self.state_bytes_per_parameter:
            held = min(held, group.optimizer_bytes / self.state_bytes_per_parameter)
        return held * self.passes.update_per_parameter * self.crowding

    def cost(self, message: Message) -> float:
        """Seconds of one of these messages."""
        return self.costs.seconds(message.kind, message.payload_bytes, message.ranks, message.apart)


def _count(group: RankFootprint) -> float:
    return sum(message.count for message in group.messages)


def time_step(footprint: Footprint, scene: Scene) -> Parts:
    """The step of the whole run."""
    workers = [group for group in footprint.groups if group.role == "worker"]
    servers = [group for group in footprint.groups if group.role == "server"]
    if footprint.stages is not None and footprint.stages.workers > 1:
        parts = _in_stages(workers, footprint.stages, scene)
    elif servers:
        parts = _with_servers(workers[0], servers, scene)
    else:
        busiest = workers[0] if len(workers) == 1 else max(workers, key=lambda group: (group.flops, group.sent_bytes))
        parts = _side_by_side(busiest, scene)
    return _within_cores(_with_stragglers(parts, scene), scene)


def _within_cores(parts: Parts, scene: Scene) -> Parts:
    """A machine's cores cannot do more at a time than there are: what is left over is waiting for one."""
    if scene.hardware.kind != "cpu":
        return parts
    late = parts.cpu_seconds / scene.hardware.node_devices - parts.step
    return replace(parts, waiting=parts.waiting + late) if late > 0 else parts


def _with_stragglers(parts: Parts, scene: Scene) -> Parts:
    """Whoever goes on together waits for the slowest; unlike devices make some slower for good."""
    if not scene.synchronous or scene.workers < 2:
        return parts
    late = largest_of(scene.workers, scene.hardware.straggling.value)
    speeds = [scene.hardware.speed(rank) for rank in range(min(scene.workers, len(scene.hardware.speeds)))]
    slow = 1 / min(speeds) - 1 if speeds else 0.0
    waiting = parts.waiting + parts.compute * (late + slow)
    return Parts(
        parts.compute, parts.exposed, parts.bubble, waiting, parts.transfers, parts.staleness, parts.cpu_seconds
    )


def _side_by_side(group: RankFootprint, scene: Scene) -> Parts:
    """Workers that do the same on their own share of the batch."""
    scale = scene.scale(group)
    passes = scene.passes.total * scale
    beside = scene.passes.overhead * scene.crowding + scene.update_seconds(group)
    beside += scene.earlier_passes * passes
    blocking = sum(scene.cost(one) * one.count for one in group.messages if not one.hidden)
    blocking += scene.software(group, scene.model.parameter_bytes * min(1.0, scene.share(group)))
    hidden = [message for message in group.messages if message.hidden]
    compute = passes + beside
    sent = _gathering if any(message.phase == "forward" for message in hidden) else _sending_back
    span, transfers = sent(scale, hidden, scene)
    # What hidden transfers take from the computation counts as exposed: it would not be there without them.
    exposed = blocking + max(0.0, span + beside - compute)
    moved = blocking + transfers
    return Parts(compute, exposed, 0.0, scene.waking(group), moved, cpu_seconds=scene.workers * (compute + moved))


def _sending_back(scale: float, hidden: Sequence[Message], scene: Scene) -> tuple[float, float]:
    """Gradients leave in pieces as the backward pass fills them: the end of both, and all seconds of transfer.

    `scale` is what the rank's passes take of those of the whole model.
    """
    pieces: list[tuple[float, float]] = []
    for message in hidden:
        pieces += [
            (place, scene.costs.seconds(message.kind, size, message.ranks, message.apart) * message.count * count)
            for place, size, count in _pieces(message, scene)
        ]
    pieces.sort(key=lambda piece: piece[0])
    total, done = scene.passes.backward_total * scale, 0.0
    segments, transfers = [], []
    for place, seconds in pieces:
        segments.append(place * total - done)
        transfers.append(seconds)
        done = place * total
    end, link = overlap([*segments, total - done], [*transfers, 0.0], scene.interference)
    return scene.passes.forward_total * scale + max(end, link), sum(transfers)


def _pieces(message: Message, scene: Scene) -> list[tuple[float, float, int]]:
    """(share of the backward pass after which they are full, bytes, how many) of pieces, from the last layer on."""
    most = message.piece_bytes or float("inf")
    sizes = message.first_piece_bytes or most, most
    if sizes not in scene.filled:
        scene.filled[sizes] = _filled(scene.model, *sizes)
    done, shrunk = scene.passes.backward_done, message.payload_bytes / (scene.model.parameter_bytes or 1)
    found = [(done[layer], size * shrunk) for layer, size in scene.filled[sizes]]
    if message.kind != "send":
        return [(place, size, 1) for place, size in found]
    # Servers take pieces of a fixed size, which may be less than an array.
    counts = [ceil(size / most) if size > most else 1 for _, size in found]
    return [(place, size / count, count) for (place, size), count in zip(found, counts, strict=True)]


def _filled(model: ModelFacts, first: float, most: float) -> list[tuple[int, float]]:
    """(layer from the last on, bytes) of pieces: one is closed by the array that fills it, as DDP does."""
    found, filled, limit = [], 0.0, first
    for place, layer in enumerate(reversed(model.layers)):
        for array_bytes in _arrays(layer.arrays, layer.parameters):
            filled += array_bytes
            if filled >= limit:
                found.append((place, filled))
                filled, limit = 0.0, most
    return [*found, (len(model.layers) - 1, filled)] if filled else found


def _arrays(arrays: Sequence[tuple[str, tuple[int, ...]]], parameters: int) -> list[float]:
    if not arrays:
        return [float(parameters * FLOAT_BYTES)] if parameters else []
    sizes = []
    for _, shape in reversed(arrays):
        count = FLOAT_BYTES
        for length in shape:
            count *= length
        sizes.append(float(count))
    return sizes


def _gathering(scale: float, hidden: Sequence[Message], scene: Scene) -> tuple[float, float]:
    """Parameters are gathered just before each layer needs them, one layer ahead; gradients are scattered after it."""
    names = [layer.name for layer in scene.model.layers]
    early = {name: [m for m in hidden if m.layer == name and m.phase == "forward"] for name in names}
    late = {name: [m for m in hidden if m.layer == name and m.phase == "backward"] for name in names}
    whole = [message for message in hidden if message.layer not in early]
    tasks: list[Task] = []

    def add(transfers: bool, seconds: float, *after: int) -> int:
        tasks.append(Task(0, transfers, seconds, tuple(number for number in after if number >= 0)))
        return len(tasks) - 1

    before = [add(True, scene.cost(one) * one.count) for one in whole if one.phase == "forward"]
    done, earlier = -1, -1
    for name, seconds in zip(names, scene.passes.forward, strict=True):
        gathered = [add(True, scene.cost(one) * one.count, earlier) for one in early[name]]
        done, earlier = add(False, seconds * scale, *gathered, *before, done), done
    scattered: list[Message] = []
    for name, seconds in zip(reversed(names), reversed(scene.passes.backward), strict=True):
        gathers = [one for one in late[name] if one.kind == "all-gather"]
        gathered = [add(True, scene.cost(one) * one.count, earlier) for one in gathers]
        # What the layer before has made leaves behind what the next one needs.
        for one in scattered:
            add(True, scene.cost(one) * one.count, done)
        done, earlier = add(False, seconds * scale, *gathered, done), done
        scattered = [one for one in late[name] if one.kind != "all-gather"]
    for one in scattered:
        add(True, scene.cost(one) * one.count, done)
    for one in whole:
        if one.phase == "backward":
            add(True, scene.cost(one) * one.count, *(() if one.kind == "all-gather" else (done,)))
    return simulate(tasks, scene.interference).total, sum(task.seconds for task in tasks if task.transfers)


def _in_stages(workers: Sequence[RankFootprint], stages: Stages, scene: Scene) -> Parts:
    """Micro-batches go forward through the line of workers and their gradients back; passes are those of one."""
    line = _line(workers, stages)
    whole = sum(group.flops for group in line) or 1.0
    shares = [group.flops / whole for group in line]
    count, chunks = stages.microbatches, stages.stages_per_worker
    forward, backward = scene.passes.forward_total * scene.crowding, scene.passes.backward_total * scene.crowding
    sends = [max((scene.cost(m) for m in group.messages if m.kind == "send"), default=0.0) for group in line]
    tasks = _staged_tasks(stages, shares, (forward / chunks, backward / chunks), sends)
    total = simulate(tasks).total
    alone = simulate([replace(task, seconds=0.0) if task.transfers else task for task in tasks]).total
    beside = scene.passes.overhead * scene.crowding + max(scene.update_seconds(group) for group in line)
    busiest = max(range(len(line)), key=lambda worker: shares[worker])
    compute = (forward + backward) * count * shares[busiest] + beside
    transfers = sum(task.seconds for task in tasks if task.transfers and task.rank == busiest)
    averaged = scene.software(line[busiest], line[busiest].parameter_bytes) + sum(
        _exposed_average(one, scene, backward * shares[busiest])
        for one in line[busiest].messages
        if one.kind == "all-reduce"
    )
    bubble = max(0.0, alone + beside - compute)
    busy = (forward + backward) * count + beside * len(line) + sum(task.seconds for task in tasks if task.transfers) * 2
    return Parts(
        compute, max(0.0, total - alone) + averaged, bubble, scene.waking(line[busiest]), transfers + averaged,
        cpu_seconds=stages.replicas * (busy + averaged * len(line)),
    )  # fmt: skip


def _exposed_average(message: Message, scene: Scene, last_pass: float) -> float:
    """Gradients are complete in the last micro-batch's backward pass only, and hide behind that."""
    return max(0.0, scene.cost(message) * message.count - last_pass)


def _line(workers: Sequence[RankFootprint], stages: Stages) -> list[RankFootprint]:
    """One pipeline's workers in order, each by itself."""
    found: list[RankFootprint] = []
    for group in workers:
        found += [group] * group.ranks
        if len(found) >= stages.workers:
            break
    return found[: stages.workers]


def _staged_tasks(
    stages: Stages, shares: Sequence[float], passes: tuple[float, float], sends: Sequence[float]
) -> list[Task]:
    """Every worker's passes in the order of the schedule, each followed by sending what it made."""
    workers, chunks = stages.workers, stages.stages_per_worker
    last = workers * chunks - 1
    orders = [
        pipeline_order(stages.schedule, worker, workers, stages.microbatches, chunks) for worker in range(workers)
    ]
    numbers: dict[tuple[bool, int, int], int] = {}
    number = 0
    for worker, order in enumerate(orders):
        for back, item in order:
            microbatch, chunk = divmod(item, chunks)
            numbers[back, chunk * workers + worker, microbatch] = number
            number += 2
    tasks: list[Task] = []
    for worker, order in enumerate(orders):
        for back, item in order:
            microbatch, chunk = divmod(item, chunks)
            stage = chunk * workers + worker
            after: tuple[int, ...]
            if back:
                needed = (False, last, microbatch) if stage == last else (True, stage + 1, microbatch)
                after = (numbers[needed] + (stage != last),)
            else:
                after = (numbers[False, stage - 1, microbatch] + 1,) if stage else ()
            end = (back and stage == 0) or (not back and stage == last)
            tasks.append(Task(worker, False, passes[back] * shares[worker], after))
            tasks.append(Task(worker, True, 0.0 if end else sends[worker], (len(tasks) - 1,)))
    return tasks


def _with_servers(worker: RankFootprint, servers: Sequence[RankFootprint], scene: Scene) -> Parts:
    """Workers push and pull; a server takes them one after another, and the one that keeps most is the last."""
    scale = scene.scale(worker)
    compute = scene.passes.total * scale + scene.passes.overhead * scene.crowding
    share = max(server.parameter_bytes for server in servers) / (sum(one.parameter_bytes for one in servers) or 1.0)
    # Servers are wherever there is room: on another node, if workers and servers are more than one holds.
    messages = [replace(one, ranks=scene.workers + len(servers)) for one in worker.messages]
    large = [one for one in messages if not one.control]
    update = scene.model.parameters * share * scene.passes.update_per_parameter * scene.crowding
    words = sum(scene.cost(one) * one.count for one in messages if one.control)
    software = scene.software(worker, scene.model.parameter_bytes)
    moved = sum(scene.cost(one) * one.count for one in large)
    # Both ends of a transfer are busy with it.
    busy = scene.workers * (compute + software + 2 * (moved + words)) + update * len(servers)
    if not scene.synchronous:
        service = sum(_at_server(one, share, scene) for one in large) + update
        return _unsynchronised(compute + software + words, moved, service, scene, busy)
    hidden = [message for message in large if message.hidden]
    end, sent = _sending_back(scale, hidden, scene)
    pushed = end + scene.passes.overhead * scene.crowding - compute
    queued = sum(max(0.0, scene.workers * _at_server(one, share, scene) - scene.cost(one) * one.count) for one in large)
    blocking = sum(scene.cost(one) * one.count for one in large if not one.hidden)
    exposed = max(0.0, pushed) + queued + blocking + update + words + software
    return Parts(compute, exposed, 0.0, scene.waking(worker), sent + blocking + words, cpu_seconds=busy)


def _at_server(message: Message, share: float, scene: Scene) -> float:
    """Seconds of the busiest server for one worker's message. A server has the link of a whole node to itself."""
    if scene.hardware.kind == "cpu":
        return scene.cost(message) * message.count * share
    bandwidth = scene.costs.outer.bandwidth * scene.hardware.node_devices
    return message.payload_bytes * share * message.count / bandwidth


def _unsynchronised(compute: float, moved: float, service: float, scene: Scene, busy: float) -> Parts:
    """A step is one of every worker's own; a worker stands in line at the busiest server."""
    cycles = [
        compute / scene.hardware.speed(rank) + max(0.0, moved - service)
        for rank in range(scene.workers if scene.hardware.speeds else 1)
    ]
    served: Served = serve(cycles if scene.hardware.speeds else cycles * scene.workers, service)
    step = scene.workers / served.updates_per_second
    mean = len(cycles) / sum(1 / cycle for cycle in cycles) - max(0.0, moved - service)
    alone = mean + max(moved, service)
    return Parts(mean, min(step, alone) - mean, 0.0, max(0.0, step - alone), moved, served.staleness, busy)
