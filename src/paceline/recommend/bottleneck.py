"""What a step waits for: computation, exposed transfers by what they are for, an idle pipeline, slower ranks."""

from collections import defaultdict

from paceline.layout import Layout
from paceline.predict.layout_costs import dimension_of
from paceline.predict.prediction import Prediction, transport_of
from paceline.predict.question import Question
from paceline.predict.transfers import Costs
from paceline.strategies import strategy

# What goes along each dimension of a layout, and what goes between workers without one.
ALONG = {
    "replicate": "gradients between copies",
    "shard": "parameters and gradients between shards",
    "tensor": "activations between parts of layers",
    "pipeline": "activations between stages",
    "context": "keys and values between stretches of sequences",
    "expert": "tokens between experts",
}
COMPUTATION, HOST = "computation", "the host's kernel launches"
OFFLOADED = "copies to the host and its update (offload)"


def shares_of_step(question: Question, prediction: Prediction) -> dict[str, float]:
    """Shares of the step's seconds, largest first; they add up to one."""
    parts = prediction.parts
    computing = HOST if host_bound(question, prediction) else COMPUTATION
    seconds = {computing: parts.compute, "an idle pipeline": parts.bubble,
               "waiting for slower ranks or for a core": parts.waiting, OFFLOADED: parts.offloaded}  # fmt: skip
    seconds |= exposed_by_purpose(question, prediction)
    in_order = sorted(seconds.items(), key=lambda item: -item[1])
    return {name: value / (parts.step or 1.0) for name, value in in_order if value > 0}


def host_bound(question: Question, prediction: Prediction) -> bool:
    """Whether the host takes longer to launch the kernels of a step than the GPU to run them."""
    chosen = strategy(prediction.spec.strategy)
    work = chosen.footprint(prediction.spec, question.facts).groups[0].work
    if question.hardware.kind == "cpu" or work is None:
        return False
    passes = question.predictor.rank_passes(chosen, prediction.spec, work)
    return sum(passes.host_forward) + sum(passes.host_backward) + passes.overhead > passes.total


def exposed_by_purpose(question: Question, prediction: Prediction) -> dict[str, float]:
    """Exposed seconds by what is sent: what blocks is exposed first, what can hide shares the rest."""
    spec = prediction.spec
    chosen = strategy(spec.strategy)
    footprint = chosen.footprint(spec, question.facts)
    workers = [group for group in footprint.groups if group.role == "worker"]
    busiest = max(workers, key=lambda group: group.sent_bytes)
    costs = Costs(question.hardware, transport_of(chosen, spec), chosen.traits.collective_algorithm(spec))
    blocking: dict[str, float] = defaultdict(float)
    hidden: dict[str, float] = defaultdict(float)
    for message in busiest.messages:
        dimension = dimension_of(message, spec.layout or Layout())
        purpose = f"{ALONG[dimension]} ({dimension})" if dimension in ALONG else f"{message.carries} between workers"
        seconds = costs.seconds(message.kind, message.payload_bytes, message.ranks, message.apart) * message.count
        (hidden if message.hidden else blocking)[purpose] += seconds
    exposed = prediction.parts.exposed - prediction.parts.offloaded
    blocked = min(exposed, sum(blocking.values()))
    hideable = exposed - blocked
    exposed_by: dict[str, float] = defaultdict(float)
    for seconds_by, total in ((blocking, blocked), (hidden, hideable)):
        all_seconds = sum(seconds_by.values())
        for purpose, seconds in seconds_by.items():
            exposed_by[purpose] += total * seconds / all_seconds if all_seconds else 0.0
    return dict(exposed_by)
