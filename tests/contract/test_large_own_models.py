"""Own models that are too large to hold are looked at, and predicted, without their numbers."""

import pytest

pytest.importorskip("torch")

from paceline.predict.question import Question
from paceline.spec import ModelFile
from paceline.strategies import strategy
from paceline.systems.files import load_hardware

# Its numbers may not be made; 32 GB of them would not fit here either.
LARGE = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8192), nn.Linear(8192, 32768), nn.Linear(32768, 8192)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        if torch.get_default_device().type != "meta":
            raise MemoryError("its numbers were made")
        self.first, self.last = nn.Linear(64, 8192), nn.Linear(8192, 10)
        self.blocks = nn.ModuleList(Block() for _ in range(15))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)

def metric(outputs, targets):
    return (outputs.argmax(-1) == targets).float().mean()

build = Model
"""


@pytest.fixture(scope="module")
def question(tmp_path_factory: pytest.TempPathFactory) -> Question:
    path = tmp_path_factory.mktemp("models") / "large.py"
    path.write_text(LARGE)
    return Question(
        load_hardware("h100-nvlink"),
        model=ModelFile.from_text(str(path)),
        input_shape=(64,),
        classes=10,
        local_batches=(8192,),
    )


def test_the_look_makes_no_numbers(question: Question) -> None:
    assert question.facts.parameters == 15 * (2 * 8192 * 32768 + 32768 + 3 * 8192) + 65 * 8192 + 10 * 8193


def test_fsdp_asks_for_blocks_and_not_for_each_layer_in_them(question: Question) -> None:
    (spec,) = question.specs("torch-fsdp", workers=(8,))
    prediction = question.predictor.predict(spec)
    assert prediction.fits and prediction.memory.method == "traced"
    assert "host" not in prediction.source and 0.3 < prediction.utilisation < 0.9


def test_layers_are_split_as_their_names_say(question: Question) -> None:
    (spec,) = question.specs("torch-mesh", {"layout": "tensor=8"})
    assert question.user_model_facts is not None and question.user_model_facts.why_not_cut("plan") is None
    (group,) = strategy("torch-mesh").footprint(spec, question.facts).groups
    split = 15 * (2 * 8192 * 32768 + 32768)
    assert group.parameter_bytes == 4 * (question.facts.parameters - split + split // 8)
    prediction = question.predictor.predict(spec)
    assert prediction.memory.method == "traced" and 0.3 < prediction.utilisation < 0.9
