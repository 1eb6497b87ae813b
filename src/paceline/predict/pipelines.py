"""The step of a pipeline: passes of its workers in the order of their schedule, and what is exchanged beside them."""

from collections.abc import Sequence
from dataclasses import replace

from paceline.costs.footprint import RankFootprint, Stages
from paceline.costs.messages import Message
from paceline.predict.schedules import holder, passes_in_turn
from paceline.predict.step_inputs import Parts, StepInputs

# After so many micro-batches for each worker of a pipeline, its passes repeat themselves: of random stages the rest is
# then known within 0.5 %, on average within 0.02 %, and in other schedules within 1 % after more of them.
STEADY_ROUNDS, STEADY_ROUNDS_OTHERWISE = {"gpipe": 1, "1f1b": 2}, 4
# Of a backward pass: gradients of inputs take as many operations as gradients of weights.
HALF = 1 / 2


def in_stages(workers: Sequence[RankFootprint], stages: Stages, inputs: StepInputs) -> Parts:
    """A pipeline's step: micro-batches go forward through the workers and their gradients come back."""
    line, rounds = line_of_workers(workers, stages), stages.accumulation
    count = stages.microbatches * rounds
    within, sends = _exchanges(line, inputs, count)
    passes, with_exchanges, inputs = _stage_passes(line, stages, within, inputs)
    total = _scheduled(stages, with_exchanges, sends) * rounds
    alone = min(total, _without_sends(stages, passes) * rounds)
    sending = [seconds * messages_sent(stages, worker) * rounds for worker, seconds in enumerate(sends)]
    beside = inputs.overhead_seconds + max(inputs.update_seconds(group) for group in line)
    busiest = max(range(len(line)), key=lambda worker: sum(passes[worker]))
    compute = sum(passes[busiest]) * count + beside
    exchanged = sum(within[busiest]) * count
    transfers = sending[busiest] + exchanged
    averaged = inputs.software_seconds(line[busiest], line[busiest].parameter_bytes)
    averaged += _outside_passes(line[busiest], inputs, passes[busiest])
    offloaded = inputs.offload_seconds(line[busiest], compute)
    bubble = max(0.0, alone + beside - compute)
    busy = sum(map(sum, passes)) * count + beside * len(line)
    busy += (sum(sending) * 2 + exchanged * len(line)) * _handled_share(line, inputs)
    waiting = inputs.peer_wakeup_seconds(line[busiest])
    return Parts(
        compute, max(0.0, total - alone) + averaged + offloaded, bubble, waiting, transfers + averaged,
        offloaded=offloaded,
        cpu_seconds=stages.replicas * (busy + averaged * len(line)),
    )  # fmt: skip


def _exchanges(
    line: Sequence[RankFootprint], inputs: StepInputs, count: int
) -> tuple[list[tuple[float, float]], list[float]]:
    """For each worker, seconds of exchanges that its passes wait for, and of one send to the next stage."""
    costs_by_messages: dict[int, tuple[tuple[float, float], float]] = {}
    for group in line:
        if id(group.messages) not in costs_by_messages:
            send = max((inputs.cost(message) for message in group.messages if _between_stages(message)), default=0.0)
            costs_by_messages[id(group.messages)] = within_passes(group, inputs, count), send
    costs = [costs_by_messages[id(group.messages)] for group in line]
    return [within for within, _ in costs], [send for _, send in costs]


def _handled_share(line: Sequence[RankFootprint], inputs: StepInputs) -> float:
    """The share of transfers in which cores move the bytes; the rest of the time these are on a wire."""
    messages = [message for group in line for message in group.messages]
    handled, under_way = (sum(map(seconds, messages)) for seconds in (inputs.device_seconds, inputs.seconds))
    return handled / under_way if under_way else 1.0


def _between_stages(message: Message) -> bool:
    """Whether it is sent for each micro-batch; gradients of a table that both ends have are sent once in a step."""
    return message.kind == "send" and message.content != "gradients"


def _scheduled(stages: Stages, passes: Sequence[tuple[float, float]], sends: Sequence[float]) -> float:
    """Seconds until all micro-batches are done; once the pipeline is full, its pace is extrapolated."""
    few = STEADY_ROUNDS.get(stages.schedule, STEADY_ROUNDS_OTHERWISE) * stages.workers
    if stages.microbatches <= few + stages.workers:
        return pipeline_seconds(stages, passes, sends)
    most = few + (stages.microbatches - few) % stages.workers
    before, after = (
        pipeline_seconds(replace(stages, microbatches=count), passes, sends) for count in (most, most + stages.workers)
    )
    return before + (after - before) * (stages.microbatches - most) / stages.workers


def _without_sends(stages: Stages, passes: Sequence[tuple[float, float]]) -> float:
    """Seconds of the same schedule if sends took no time."""
    if stages.schedule != "1f1b":
        return _scheduled(stages, passes, [0.0] * len(passes))
    # One micro-batch goes through all stages, and then the slowest makes the others.
    times = [sum(pair) for pair in passes]
    return sum(times) + (stages.microbatches - 1) * max(times)


def _stage_passes(
    line: Sequence[RankFootprint], stages: Stages, within: Sequence[tuple[float, float]], inputs: StepInputs
) -> tuple[list[tuple[float, float]], list[tuple[float, float]], StepInputs]:
    """Seconds of each worker's forward and backward pass, without and with exchanges, and their inputs."""
    passes_of_line = [passes for group in line if (passes := inputs.passes_of_rank(group)) is not None]
    if len(passes_of_line) == len(line):
        alone, with_exchanges = (
            [inputs.with_host(passes, exchanges) for passes, exchanges in zip(passes_of_line, exchanged, strict=True)]
            for exchanged in ([(0.0, 0.0)] * len(line), within)
        )
        return alone, with_exchanges, replace(inputs, passes=passes_of_line[-1])
    count = stages.microbatches * stages.accumulation
    shares = [group.flops / (inputs.flops * count) if inputs.flops else 1 / len(line) for group in line]
    forward, backward = inputs.passes.forward_total * inputs.crowding, inputs.passes.backward_total * inputs.crowding
    # Launching a part of a layer takes as long as launching all of it.
    least = inputs.passes.least / inputs.passes.total * stages.split if stages.split > 1 and inputs.passes.total else 0
    shares = [share * max(1.0, least) for share in shares]
    alone = [(forward * share, backward * share) for share in shares]
    with_exchanges = [(f + f_more, b + b_more) for (f, b), (f_more, b_more) in zip(alone, within, strict=True)]
    return alone, with_exchanges, inputs


def within_passes(group: RankFootprint, inputs: StepInputs, count: int) -> tuple[float, float]:
    """Seconds that one forward and one backward pass of a rank spend on exchanges that they wait for."""
    waited = [message for message in group.messages if message.kind != "send" and not message.hidden]
    forward, backward = (
        sum(inputs.seconds(message) for message in waited if message.phase == phase) / count
        for phase in ("forward", "backward")
    )
    return forward, backward


def _outside_passes(group: RankFootprint, inputs: StepInputs, passes: tuple[float, float]) -> float:
    """Exposed seconds of transfers that happen once per step.

    Gathered parameters hide behind the first forward pass and gradients, which the last backward pass completes, behind
    that one; what belongs to the update hides behind nothing.
    """
    exposed = sum(
        inputs.seconds(message)
        for message in group.messages
        if message.phase == "update" and not _between_stages(message)
    )
    for phase, seconds in zip(("forward", "backward"), passes, strict=True):
        hidden = [message for message in group.messages if message.hidden and message.phase == phase]
        # Stages that are gathered for each round of the schedule hide behind the first pass of each.
        for rounds in {message.passes for message in hidden}:
            moved = sum(inputs.seconds(message) for message in hidden if message.passes == rounds)
            exposed += moved - inputs.hidden_share * min(moved, seconds * rounds)
    return exposed


def line_of_workers(workers: Sequence[RankFootprint], stages: Stages) -> list[RankFootprint]:
    """The workers of one pipeline in order, one entry each."""
    line: list[RankFootprint] = []
    before = 0
    for group in workers:
        # Ranks of the first pipeline are `apart` from each other.
        line += [group] * (-(-(before + group.ranks) // stages.apart) - -(-before // stages.apart))
        before += group.ranks
        if len(line) >= stages.workers:
            break
    return line[: stages.workers]


def pipeline_seconds(stages: Stages, passes: Sequence[tuple[float, float]], sends: Sequence[float]) -> float:
    """Seconds until every worker has made its passes in schedule order, each followed by a send.

    `passes` are the seconds of each worker's forward and backward pass through all of its stages, `sends` those of one
    of its messages, which leave one after another.
    """
    workers, chunks, count = stages.workers, stages.stages_per_worker, stages.microbatches
    free, link = [0.0] * workers, [0.0] * workers
    # When what a pass made is there for the stage before or after, by the number of the pass; the first needs nothing.
    arrived = [0.0] * (2 * workers * chunks * count + 1)
    times = [_seconds_of(pair, chunks) for pair in passes]
    for worker, kind, needs, makes, sends_on in passes_in_turn(stages.schedule, workers, count, chunks):
        now, needed = free[worker], arrived[needs]
        free[worker] = now = (needed if needed > now else now) + times[worker][kind]
        if sends_on:
            sent = link[worker]
            link[worker] = now = (now if now > sent else sent) + sends[worker]
        arrived[makes] = now
    return max(*free, *link)


def _seconds_of(passes: tuple[float, float], chunks: int) -> tuple[float, ...]:
    """Seconds of each kind of pass through one stage, in the order of `PassKind`."""
    forward, backward = (seconds / chunks for seconds in passes)
    # Nothing is before the first stage: PyTorch makes its whole backward pass where the weights' turn is.
    return forward, backward, HALF * backward, HALF * backward, 0.0, backward


def messages_sent(stages: Stages, worker: int) -> int:
    """Number of messages that one worker sends to stages of other workers."""
    count = stages.workers * stages.stages_per_worker
    holders = [holder(stages.schedule, stages.workers, stage) for stage in range(count)]
    neighbours = [
        other
        for stage in range(count)
        if holders[stage] == worker
        for other in (stage - 1, stage + 1)
        if 0 <= other < count and holders[other] != worker
    ]
    return len(neighbours) * stages.microbatches
