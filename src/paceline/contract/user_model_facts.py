"""Facts about a user's model, from the probe that builds it and tries it (`runs/probe.py`)."""

from dataclasses import dataclass, field

from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.data.sources import SourceKind

# What the function of a user's file can return, by the name that strategies and probes use.
MODEL_KINDS = {"torch": "a torch.nn.Module", "keras": "a Keras model",
               "jax": "a Flax module or a pair of functions (init, apply)"}  # fmt: skip


@dataclass(frozen=True)
class UserModelFacts:
    """Facts about the user's model (see `runs/probe.py`); `framework` is one of `MODEL_KINDS`."""

    framework: str
    parameters: int
    # None for a stream that does not say.
    train_samples: int | None
    # Whether it is a plain sequence of modules, and which functions for cutting it its file has.
    sequential: bool = False
    cuts: tuple[str, ...] = ()
    # Its blocks in words, where some were found.
    blocks: str | None = None
    # Of a model that is no sequence: cuts that Paceline finds without a function for them, and why not the others.
    automatic_cuts: tuple[str, ...] = ()
    no_automatic_cuts: dict[str, str] = field(default_factory=dict)
    # Its layers in the order of a forward pass, as counts; none where it could not be followed layer by layer.
    layers: tuple[LayerFacts, ...] = ()
    input_elements: int = 0
    # Where it does not take one tensor and return another: what it takes and returns, in words.
    form: str | None = None
    # How its data come, and what the function takes that opens a stream of them.
    source: SourceKind = "arrays"
    stream_takes: tuple[str, ...] = ()
    # Layers that take statistics of the samples of a pass; whether it draws random numbers while it trains, and whether
    # those can be drawn by sample.
    batch_norms: tuple[str, ...] = ()
    draws: bool = False
    draws_by_sample: bool = False
    # Whether its loss of several samples is not the mean of their losses.
    weighs_samples: bool = False
    # Parameters that are trained and got no gradient from the samples that it was tried on.
    unused: tuple[str, ...] = ()
    # A digest of its names, shapes and settings and of the shapes of its data, part of the identity of its runs.
    structure: str = ""

    def why_not_cut(self, function: str) -> str | None:
        """Why a strategy that cuts models by this function cannot cut this one, or None."""
        if self.sequential or function in (*self.cuts, *self.automatic_cuts):
            return None
        reason = self.no_automatic_cuts.get(function)
        return "which is no plain sequence of layers" + (f" ({reason})" if reason else "")

    @property
    def model(self) -> ModelFacts | None:
        """The model's layers in numbers, from which footprints are made; None if they are not known."""
        return ModelFacts(self.layers, self.input_elements) if self.layers else None
