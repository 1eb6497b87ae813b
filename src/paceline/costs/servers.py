"""How parameters are cut over servers, in numbers alone: footprints and processes count with the same cut."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.costs.footprint import Footprint, ModelFacts, RankFootprint, optimizer_bytes, trainer
from paceline.costs.messages import exchange
from paceline.costs.precision import autocast_numbers, parameter_width
from paceline.costs.recompute import activation_bytes, step_flops
from paceline.spec import Optimizer, RunSpec, Scalar

# Numbers that say what comes next travel in 64 bits.
WORD_BYTES = 8
KIBIBYTE = 1024


@dataclass(frozen=True)
class Piece:
    """A range of the flat parameters that travels as one message, and the server that keeps it."""

    server: int
    start: int
    stop: int

    @property
    def elements(self) -> int:
        """How many parameters it has."""
        return self.stop - self.start


@dataclass(frozen=True)
class Cut:
    """Over how many servers parameters are spread, and the largest size of a piece."""

    servers: int
    most: int

    @classmethod
    def of(cls, spec: RunSpec, knobs: Mapping[str, Scalar]) -> "Cut":
        """The cut that knobs `servers` and `piece_kib` ask for."""
        return cls(int(knobs["servers"]), int(knobs["piece_kib"]) * KIBIBYTE // parameter_width(spec))

    def pieces(self, elements: int) -> tuple[Piece, ...]:
        """The parameters cut into pieces and dealt to servers in turn, so that all servers get equal amounts."""
        return tuple(self._pieces(elements))

    def _pieces(self, elements: int) -> Iterator[Piece]:
        stripe, servers = self.servers * self.most, self.servers
        for start in range(0, elements, stripe):
            width = min(stripe, elements - start)
            edges = [start + width * server // servers for server in range(servers + 1)]
            yield from (Piece(n, edges[n], edges[n + 1]) for n in range(servers) if edges[n + 1] > edges[n])


@dataclass(frozen=True)
class Stretch:
    """Elements in a row of the flat parameters that all belong to matrices, or all to arrays of one dimension."""

    elements: int
    of_matrices: bool


def within(stretches: Sequence[Stretch], start: int, stop: int) -> list[Stretch]:
    """The stretches of a range of elements, with neighbours of one kind as one."""
    inside: list[Stretch] = []
    begin = 0
    for stretch in stretches:
        end = begin + stretch.elements
        shared = min(stop, end) - max(start, begin)
        if shared > 0 and inside and inside[-1].of_matrices == stretch.of_matrices:
            inside[-1] = replace(inside[-1], elements=inside[-1].elements + shared)
        elif shared > 0:
            inside.append(replace(stretch, elements=shared))
        begin = end
    return inside


@dataclass(frozen=True)
class Traffic:
    """What a worker exchanges with the servers, each as times per step: gradients, parameters, control messages."""

    pushes: float = 1
    fetches: float = 1
    words: float = 1
    answers: float = 0


def holds_back(spec: RunSpec) -> bool:
    """Whether workers send nothing until all gradients of a step are complete, because it may be skipped or clipped."""
    return spec.precision == "fp16" or spec.clip is not None


def served_footprint(spec: RunSpec, model: ModelFacts, cut: Cut, settings: Optimizer, traffic: Traffic) -> Footprint:
    """Workers hold the model without an optimizer; servers hold parameters, optimizer state and received gradients."""
    width, local = parameter_width(spec), spec.samples_per_step // spec.workers
    size, held_back = model.parameters * width, holds_back(spec)
    leaving: dict[str, Any] = {"phase": "backward", "hidden": not held_back, "piece_bytes": cut.most * width}
    messages = (
        replace(exchange("gradients", size, 0, traffic.pushes), **leaving),
        exchange("parameters", 0, size, traffic.fetches),
        exchange("words", WORD_BYTES * cut.servers, 0, traffic.words, control=True),
        exchange("answers", 0, WORD_BYTES * cut.servers, traffic.answers, control=True),
    )
    worker = trainer(
        spec,
        model,
        messages,
        flops=step_flops(model, spec.recompute, local),
        # Those that are added up or held back lie beside the ones that leave.
        gradient_bytes=2 * size if held_back or spec.accumulation > 1 else size,
        optimizer_bytes=0,
        activation_bytes=activation_bytes(
            model, spec.recompute, local / spec.accumulation, numbers=autocast_numbers(spec)
        ),
    )
    servers = (_server(*part, spec.workers, settings, traffic, width) for part in _parts_of(cut, model.parameters))
    return Footprint((worker, *servers))


def _parts_of(how: Cut, elements: int) -> Iterator[tuple[int, int]]:
    """Pieces and elements on each server: one full piece per stripe, and a share of the last stripe."""
    whole, rest = divmod(elements, how.servers * how.most)
    last = {piece.server: piece.elements for piece in how.pieces(rest)}
    for server in range(how.servers):
        share = last.get(server, 0)
        yield whole + (share > 0), whole * how.most + share


def _server(
    pieces: int, elements: int, workers: int, settings: Optimizer, traffic: Traffic, width: int
) -> RankFootprint:
    size, words = elements * width, WORD_BYTES * workers
    return RankFootprint(
        role="server",
        ranks=1,
        # One addition for each gradient that comes in; an update is small beside a training step.
        flops=traffic.pushes * workers * elements,
        messages=(
            exchange("gradients", 0, size * workers, traffic.pushes),
            exchange("parameters", size * workers, 0, traffic.fetches),
            exchange("words", 0, words, traffic.words, control=True),
            exchange("answers", words, 0, traffic.answers, control=True),
        ),
        parameter_bytes=size,
        gradient_bytes=size * workers,
        # Each piece has an optimizer of its own, which counts its steps.
        optimizer_bytes=optimizer_bytes(settings, elements, pieces, width),
    )
