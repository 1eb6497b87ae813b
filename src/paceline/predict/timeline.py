"""A strategy's footprint ─► where the seconds of one step go: the tasks of a step, put together and simulated."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from math import ceil, prod

from paceline.costs.footprint import FLOAT_BYTES, Footprint, ModelFacts, RankFootprint
from paceline.costs.messages import Message
from paceline.predict.compute import Passes
from paceline.predict.pipelines import in_stages, within_passes
from paceline.predict.simulate import LayerTurn, Served, gathered_step, largest_of, overlap, serve
from paceline.predict.step_inputs import Parts, StepInputs
from paceline.predict.steps import start_units


def time_step(footprint: Footprint, inputs: StepInputs) -> Parts:
    """Where the seconds of one step of the whole run go."""
    workers = [group for group in footprint.groups if group.role == "worker"]
    servers = [group for group in footprint.groups if group.role == "server"]
    if footprint.stages is not None and footprint.stages.workers > 1:
        parts = in_stages(workers, footprint.stages, inputs)
    elif servers:
        parts = _with_servers(workers[0], servers, inputs)
    else:
        busiest = workers[0] if len(workers) == 1 else max(workers, key=lambda group: (group.flops, group.sent_bytes))
        parts = _side_by_side(busiest, inputs)
    return _within_cores(_with_stragglers(parts, inputs), inputs)


def _within_cores(parts: Parts, inputs: StepInputs) -> Parts:
    """Adds the seconds in which processes wait for a core, where all cores together have less time than they need."""
    if inputs.hardware.kind != "cpu":
        return parts
    late = parts.cpu_seconds / inputs.hardware.node_devices - parts.step
    return replace(parts, waiting=parts.waiting + late) if late > 0 else parts


def _with_stragglers(parts: Parts, inputs: StepInputs) -> Parts:
    """Adds the wait of synchronous workers for the slowest of them: by chance in each step, or a slower device."""
    if not inputs.synchronous or inputs.workers < 2:
        return parts
    by_chance = largest_of(inputs.workers, inputs.hardware.straggling.value)
    speeds = [inputs.hardware.speed(rank) for rank in range(min(inputs.workers, len(inputs.hardware.speeds)))]
    slow = 1 / min(speeds) - 1 if speeds else 0.0
    waiting = parts.waiting + parts.compute * (by_chance + slow)
    return replace(parts, waiting=waiting)


def _side_by_side(group: RankFootprint, inputs: StepInputs) -> Parts:
    """Workers that do the same on their own share of the batch."""
    rank_passes = inputs.passes_of_rank(group)
    scale = inputs.scale(group) if rank_passes is None else _stretched(rank_passes, group, inputs)
    passes = inputs.passes.total * scale
    beside = inputs.overhead_seconds + inputs.update_seconds(group)
    beside += inputs.earlier_passes * passes
    blocking = sum(inputs.seconds(message) for message in group.messages if not message.hidden)
    blocking += inputs.software_seconds(group, inputs.model.parameter_bytes * min(1.0, inputs.share(group)))
    hidden = [message for message in group.messages if message.hidden]
    compute = passes + beside
    sent = _gathering if any(message.layer is not None for message in hidden) else _sending_back
    span, transfers = sent(scale, [_of_one_pass(message) for message in hidden], inputs)
    late = max(0.0, span - passes)
    if inputs.earlier_passes and (often := [message for message in hidden if message.passes > 1]):
        # What earlier passes transfer hides behind their own computation.
        span, before = sent(scale, [_of_one_pass(message) for message in often], inputs)
        late += inputs.earlier_passes * max(0.0, span - passes)
        transfers += inputs.earlier_passes * before
    # What hidden transfers take from the computation counts as exposed: it would not be there without them.
    hidden_share = inputs.hidden_share
    exposed = blocking + hidden_share * late + (1 - hidden_share) * transfers
    offloaded = inputs.offload_seconds(group, compute)
    moved = blocking + transfers
    busy = inputs.workers * (compute + inputs.busy_seconds(moved, group))
    return Parts(
        compute, exposed + offloaded, 0.0, inputs.peer_wakeup_seconds(group), moved, offloaded=offloaded,
        cpu_seconds=busy,
    )  # fmt: skip


def _of_one_pass(message: Message) -> Message:
    return message if message.passes == 1 else replace(message, count=message.count / message.passes, passes=1)


def _stretched(rank_passes: Passes, group: RankFootprint, inputs: StepInputs) -> float:
    """The factor by which passes take longer because the device waits for its host."""
    within = within_passes(group, inputs, 1 + inputs.earlier_passes)
    if not rank_passes.total:
        return 1.0
    if inputs.hardware.software is not None:
        return (sum(inputs.with_host(rank_passes, within)) - sum(within)) / rank_passes.total
    host = sum(rank_passes.host_forward) + sum(rank_passes.host_backward)
    return max(1.0, (host - sum(within)) / rank_passes.total)


def _sending_back(scale: float, hidden: Sequence[Message], inputs: StepInputs) -> tuple[float, float]:
    """When a backward pass whose gradients leave in buckets ends, and the seconds of all its transfers.

    `scale` is what the rank's passes take of those of the whole model.
    """
    pieces: list[tuple[float, float]] = []
    delays = 0.0
    for message in hidden:
        # Pieces are under way together, so that of their delays over a link one is waited for.
        delay = inputs.delay_seconds(message, max(size for _, size, _ in _pieces(message, inputs)))
        delays += delay
        pieces += [
            (place, max(0.0, inputs.hidden_seconds(message, size) - delay) * message.count * count)
            for place, size, count in _pieces(message, inputs)
        ]
    pieces.sort(key=lambda piece: piece[0])
    total, done = inputs.passes.backward_total * scale, 0.0
    segments, transfers = [], []
    for place, seconds in pieces:
        segments.append(place * total - done)
        transfers.append(seconds)
        done = place * total
    end, link = overlap([*segments, total - done], [*transfers, 0.0], inputs.interference(hidden))
    link += delays
    return inputs.passes.forward_total * scale + max(end, link), sum(transfers) + delays


def _pieces(message: Message, inputs: StepInputs) -> list[tuple[float, float, int]]:
    """Gradient buckets, last layer first: (share of the backward pass after which it is full, bytes, count)."""
    most = message.piece_bytes or float("inf")
    sizes = message.first_piece_bytes or most, most
    if sizes not in inputs.filled:
        inputs.filled[sizes] = _filled(inputs.model, *sizes)
    done, shrunk = inputs.passes.backward_done, message.payload_bytes / (inputs.model.parameter_bytes or 1)
    pieces = [(done[layer], size * shrunk) for layer, size in inputs.filled[sizes]]
    if message.kind != "send":
        return [(place, size, 1) for place, size in pieces]
    # Servers take pieces of a fixed size, which may be less than an array.
    counts = [ceil(size / most) if size > most else 1 for _, size in pieces]
    return [(place, size / count, count) for (place, size), count in zip(pieces, counts, strict=True)]


def _filled(model: ModelFacts, first: float, most: float) -> list[tuple[int, float]]:
    """Gradient buckets, last layer first: (layer, bytes); the array that fills a bucket closes it, as in DDP."""
    pieces, filled, limit = [], 0.0, first
    for place, layer in enumerate(reversed(model.layers)):
        for array_bytes in _arrays(layer.arrays, layer.parameters):
            filled += array_bytes
            if filled >= limit:
                pieces.append((place, filled))
                filled, limit = 0.0, most
    return [*pieces, (len(model.layers) - 1, filled)] if filled else pieces


def _arrays(arrays: Sequence[tuple[str, tuple[int, ...]]], parameters: int) -> list[float]:
    if not arrays:
        return [float(parameters * FLOAT_BYTES)] if parameters else []
    return [float(FLOAT_BYTES * prod(shape)) for _, shape in reversed(arrays)]


def _gathering(scale: float, hidden: Sequence[Message], inputs: StepInputs) -> tuple[float, float]:
    """FSDP: parameters are gathered one layer ahead, and gradients reduce-scattered after each layer."""
    places = inputs.places
    early, late, scattered = ([0.0] * len(places) for _ in range(3))
    before = behind = transfers = 0.0
    for message in hidden:
        seconds = inputs.hidden_seconds(message, message.payload_bytes) * message.count
        place = places.get(str(message.layer))
        transfers += seconds
        if place is None and message.phase == "forward":
            before += seconds
        elif place is None:
            behind += seconds
        elif message.phase != "update":
            gathered = late if message.kind == "all-gather" else scattered
            of_layers, each = early if message.phase == "forward" else gathered, seconds / message.layers
            for layer in range(place, place + message.layers):
                of_layers[layer] += each
    forward = [seconds * scale for seconds in inputs.passes.forward]
    backward = [seconds * scale for seconds in inputs.passes.backward]
    early, late, scattered, forward, backward = (
        _of_units(seconds, inputs) for seconds in (early, late, scattered, forward, backward)
    )
    turns = [
        *zip(early, forward, [0.0] * len(forward), strict=True),
        *zip(reversed(late), reversed(backward), reversed(scattered), strict=True),
    ]
    in_runs = [LayerTurn(*turn, len(list(like))) for turn, like in groupby(turns)]
    end, link = gathered_step(in_runs, before, inputs.interference(hidden))
    return max(end, link + (max(0.0, end - link) + behind if behind else 0.0)), transfers


def _of_units(of_layers: list[float], inputs: StepInputs) -> list[float]:
    """Seconds of what is gathered together: of layers, or of a user's blocks, which have several."""
    model = inputs.model
    starts = model.derive(("units",), lambda: list(start_units(layer.name for layer in model.layers)))
    if all(starts):
        return of_layers
    summed: list[float] = []
    for seconds, starting in zip(of_layers, starts, strict=True):
        summed[-1:] = [*summed[-1:], seconds] if starting else [summed[-1] + seconds]
    return summed


def _with_servers(worker: RankFootprint, servers: Sequence[RankFootprint], inputs: StepInputs) -> Parts:
    """Workers push and pull; a server serves one after another, and the server that keeps most is done last."""
    rank_passes = inputs.passes_of_rank(worker)
    # Passes of a rank are those of its own samples already.
    share_of_passes = inputs.scale(worker) if rank_passes is None else 1.0
    scale = share_of_passes * _stretched(rank_passes or inputs.passes, worker, inputs)
    last_pass = inputs.passes.total * scale
    compute = (1 + inputs.earlier_passes) * last_pass + inputs.overhead_seconds
    share = max(server.parameter_bytes for server in servers) / (
        sum(server.parameter_bytes for server in servers) or 1.0
    )
    # Servers are wherever there is room: on another node, if workers and servers are more than one holds.
    messages = [replace(message, ranks=inputs.workers + len(servers)) for message in worker.messages]
    large = [message for message in messages if not message.control]
    update = inputs.model.parameters * share * inputs.passes.update_per_parameter * inputs.crowding
    words = sum(inputs.seconds(message) for message in messages if message.control)
    software = inputs.software_seconds(worker, inputs.model.parameter_bytes)
    moved = sum(inputs.seconds(message) for message in large)
    passing = _passing_each_other(large, share, inputs)
    # Both ends of a transfer are busy with it.
    handled = sum(map(inputs.device_seconds, messages))
    busy = inputs.workers * (compute + software + 2 * handled) + update * len(servers)
    if not inputs.synchronous:
        service = sum(_at_server(message, share, inputs) for message in large) - passing + update
        return _unsynchronised(compute + software + words, moved, service, inputs, busy)
    hidden = [message for message in large if message.hidden]
    end, sent = _sending_back(scale, hidden, inputs)
    queued = sum(
        max(0.0, inputs.workers * _at_server(message, share, inputs) - inputs.seconds(message)) for message in large
    )
    blocking = sum(inputs.seconds(message) for message in large if not message.hidden)
    exposed = max(0.0, end - last_pass) + queued + blocking - inputs.workers * passing + update + words + software
    return Parts(compute, exposed, 0.0, inputs.peer_wakeup_seconds(worker), sent + blocking + words, cpu_seconds=busy)


def _passing_each_other(messages: Sequence[Message], share: float, inputs: StepInputs) -> float:
    """Seconds in which a worker's pieces pass those of the other direction on a server's link, which carries both.

    A server answers piece by piece, so that only the first comes in while nothing goes out. Its core does not do two
    things at once: what keeps that busy is no part of it.
    """
    pieces = max((ceil(each.payload_bytes / each.piece_bytes) for each in messages if each.piece_bytes), default=1)
    if inputs.costs.link is None or not pieces:
        return 0.0
    sent, received = (
        sum(
            max(0.0, _at_server(message, share, inputs) - inputs.device_seconds(message) * share)
            for message in messages
            if (message.sent_bytes > 0) is pushed
        )
        for pushed in (True, False)
    )
    return (1 - 1 / pieces) * min(sent, received)


def _at_server(message: Message, share: float, inputs: StepInputs) -> float:
    """Seconds that the busiest server spends on one worker's message, with the link of a whole node to itself."""
    if inputs.hardware.kind == "cpu":
        return (inputs.seconds(message) - inputs.delay_seconds(message) * message.count) * share
    bandwidth = inputs.costs.outer.bandwidth * inputs.hardware.node_devices
    return message.payload_bytes * share * message.count / bandwidth


def _unsynchronised(compute: float, moved: float, service: float, inputs: StepInputs, busy: float) -> Parts:
    """Asynchronous workers: a step is one step of every worker, which queues at the busiest server."""
    cycles = [
        compute / inputs.hardware.speed(rank) + max(0.0, moved - service)
        for rank in range(inputs.workers if inputs.hardware.speeds else 1)
    ]
    served: Served = serve(cycles if inputs.hardware.speeds else cycles * inputs.workers, service)
    step = inputs.workers / served.updates_per_second
    mean = len(cycles) / sum(1 / cycle for cycle in cycles) - max(0.0, moved - service)
    alone = mean + max(moved, service)
    exposed, waiting = min(step, alone) - mean, max(0.0, step - alone)
    return Parts(mean, exposed, 0.0, waiting, moved, served.staleness, cpu_seconds=busy)
