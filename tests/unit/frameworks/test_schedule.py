"""PyTorch's side of the recipe: groups that are decayed or not, the run's schedule, and a user's own scheduler."""

import pytest
import torch

from paceline.errors import ModelError
from paceline.frameworks.torch.optimizer import RunSchedule, follow, make_optimizer, scheduler_of, user_optimizer
from paceline.spec import Optimizer

pytestmark = pytest.mark.torch


def parameters():
    """A matrix and a bias, each with a gradient."""
    made = [torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(3))]
    for parameter in made:
        parameter.grad = torch.zeros_like(parameter)
    return made


def test_adamw_shrinks_matrices_and_leaves_biases_where_it_is_told_so():
    settings = Optimizer(name="adamw", lr=0.1, weight_decay=0.5, weight_decay_on="matrices")
    matrix, bias = made = parameters()
    make_optimizer(settings, made, eager=True).step()
    assert torch.equal(matrix, torch.full((2, 3), 0.95))
    assert torch.equal(bias, torch.ones(3))


def test_without_a_word_all_parameters_are_in_one_group():
    assert len(make_optimizer(Optimizer(name="adamw"), parameters(), eager=True).param_groups) == 1


def test_every_group_follows_the_runs_schedule_one_step_of_it_for_each_update():
    settings = Optimizer(lr=0.1, weight_decay=0.5, weight_decay_on="matrices", schedule="cosine", warmup_steps=2)
    optimizer = make_optimizer(settings, parameters(), eager=True)
    follow(optimizer, RunSchedule(optimizer, settings, total_steps=5))
    rates = []
    for _ in range(5):
        assert len({group["lr"] for group in optimizer.param_groups}) == 1
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
    assert rates == pytest.approx([0.1 * factor for factor in settings.lr_factors(5)])


def test_a_schedule_goes_on_where_its_state_was_saved():
    settings = Optimizer(lr=1.0, warmup_steps=4)
    first, second = (make_optimizer(settings, parameters(), eager=True) for _ in range(2))
    for optimizer in (first, second):
        follow(optimizer, RunSchedule(optimizer, settings, total_steps=9))
    first.step()
    scheduler_of(second).load_state_dict(scheduler_of(first).state_dict())
    assert second.param_groups[0]["lr"] == first.param_groups[0]["lr"] == 0.5


def test_a_users_scheduler_is_stepped_once_for_each_update_without_a_warning():
    optimizer = torch.optim.SGD(parameters(), lr=1.0)
    halving = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    taken = user_optimizer("net.py:build", (optimizer, halving))
    assert taken is optimizer
    for rate in (1.0, 0.5, 0.25):
        assert optimizer.param_groups[0]["lr"] == rate
        taken.step()


def test_groups_that_a_strategy_cuts_later_follow_the_users_scheduler_too():
    optimizer = torch.optim.SGD(parameters(), lr=1.0)
    user_optimizer("net.py:build", (optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)))
    (whole,) = optimizer.param_groups
    optimizer.param_groups = [{**whole, "params": [parameter]} for parameter in whole["params"]]
    optimizer.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]


def test_a_users_scheduler_goes_on_where_its_state_was_saved():
    def made():
        optimizer = torch.optim.SGD(parameters(), lr=1.0)
        return user_optimizer("net.py:build", (optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)))

    first, second = made(), made()
    for _ in range(3):
        first.step()
    scheduler_of(second).load_state_dict(scheduler_of(first).state_dict())
    for optimizer in (first, second):
        optimizer.step()
    assert second.param_groups[0]["lr"] == pytest.approx(first.param_groups[0]["lr"])


def test_an_optimizer_alone_is_taken_as_it_is():
    optimizer = torch.optim.SGD(parameters(), lr=1.0)
    assert user_optimizer("net.py:build", optimizer) is optimizer
    assert scheduler_of(optimizer) is None


def test_what_is_neither_an_optimizer_nor_one_with_a_scheduler_is_refused():
    optimizer = torch.optim.SGD(parameters(), lr=1.0)
    with pytest.raises(ModelError, match=r"returns \(SGD, int\); return an optimizer, or \(optimizer, scheduler\)"):
        user_optimizer("net.py:build", (optimizer, 3))
    with pytest.raises(ModelError, match="ReduceLROnPlateau, which asks for a measured loss; return a scheduler"):
        user_optimizer("net.py:build", (optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)))
