"""What a look at a user's own model found out."""

from dataclasses import dataclass

from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import LayerFacts

# What a function for an own model can return, by the name that strategies and probes use.
MODEL_KINDS = {"torch": "a torch.nn.Module", "keras": "a Keras model", "jax": "a pair of functions (init, apply)"}


@dataclass(frozen=True)
class OwnFacts:
    """What a look at the user's model found (see `runs/probe.py`); `framework` is one of `MODEL_KINDS`."""

    framework: str
    parameters: int
    train_samples: int
    # Whether it is a plain sequence of modules, and which functions for cutting it its file has.
    sequential: bool = False
    cuts: tuple[str, ...] = ()
    # Its layers in the order of a forward pass, as counts; none where it could not be followed layer by layer.
    layers: tuple[LayerFacts, ...] = ()
    input_elements: int = 0

    @property
    def model(self) -> ModelFacts | None:
        """What footprints are made of, if it is known."""
        return ModelFacts(self.layers, self.input_elements) if self.layers else None
