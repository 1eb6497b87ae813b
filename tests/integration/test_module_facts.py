"""A user's PyTorch model, followed layer by layer without numbers: what is counted is what it has and does."""

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nn = torch.nn


def follow(module, inputs):
    from paceline.frameworks.torch.module_facts import module_facts as followed

    return followed(module, inputs)


def test_parameters_operations_and_order_are_those_of_the_module() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 10))
    layers = follow(module, torch.zeros(2, 3, 4, 4))
    assert [layer.name for layer in layers] == ["0", "1", "2", "3"]
    assert sum(layer.parameters for layer in layers) == sum(one.numel() for one in module.parameters())
    assert layers[0].forward_flops == 2 * 9 * 3 * 8 * 16 + 8 * 16
    assert layers[3].forward_flops == 2 * 128 * 10 + 10
    assert dict(layers[0].arrays)["kernel"] == (3, 3, 3, 8)
    assert dict(layers[3].arrays)["kernel"] == (128, 10)
    assert [layer.kind for layer in layers] == ["convolution", "shape", "shape", "dense"]


def test_the_type_of_a_module_decides_its_kind() -> None:
    module = nn.Sequential(nn.Embedding(7, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 2))
    layers = follow(module, torch.zeros(2, 3, dtype=torch.int64))
    assert [layer.kind for layer in layers] == ["other", "other", "dense", "dense"]


def test_what_is_kept_for_the_backward_pass_is_counted_once_and_without_weights() -> None:
    module = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    layers = follow(module, torch.zeros(4, 16))
    # The first layer keeps its input, which is not its own; Tanh keeps its output, which the last layer keeps too.
    assert [layer.kept for layer in layers] == [0, 32, 0]


def test_a_module_that_runs_twice_costs_twice_and_has_its_parameters_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, inputs):
            return self.layer(self.layer(inputs))

    layers = follow(Twice(), torch.zeros(2, 8))
    assert len(layers) == 2
    assert [layer.parameters for layer in layers] == [72, 0]
    assert layers[0].forward_flops == layers[1].forward_flops


def test_weights_that_a_layer_uses_without_calling_their_module_are_counted() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    layers = follow(nn.Sequential(layer, nn.Linear(8, 2)), torch.zeros(2, 3, 8))
    assert sum(one.parameters for one in layers) == sum(one.numel() for one in layer.parameters()) + 18
    (attention,) = (one for one in layers if one.name.endswith("self_attn"))
    assert attention.parameters == 4 * 8 * 8 + 4 * 8
    assert dict(attention.arrays)["out_proj.kernel"] == (8, 8)


def test_weights_that_modules_share_are_counted_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.body, self.head = nn.Embedding(50, 8), nn.Linear(8, 8), nn.Linear(8, 50, bias=False)
            self.head.weight = self.table.weight

        def forward(self, inputs):
            return self.head(self.body(self.table(inputs)))

    layers = follow(Tied(), torch.zeros(2, 3, dtype=torch.int64))
    assert [layer.parameters for layer in layers] == [400, 72, 0]
    assert layers[2].forward_flops > layers[1].forward_flops


def test_a_model_that_needs_numbers_to_find_its_way_is_followed_all_the_same() -> None:
    class Undecided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, inputs):
            return self.layer(inputs) if float(inputs.sum()) == 0 else inputs

    assert len(follow(Undecided(), torch.zeros(2, 8))) == 1


def test_a_model_too_large_for_memory_is_followed_where_it_was_built_without_numbers() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(1 << 20, 1 << 16), nn.ReLU(), nn.Linear(1 << 16, 2))
    layers = follow(module, torch.zeros(1, 1 << 20))
    assert layers[0].parameters == (1 << 36) + (1 << 16)
