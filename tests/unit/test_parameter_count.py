"""How many parameters a run's model has, without ever costing the run."""

from paceline.contract.user_model_facts import UserModelFacts
from paceline.errors import ModelError
from paceline.plan import complete, parameter_count
from paceline.spec import ModelFile


def never(_spec):
    raise AssertionError("a built-in model needs no look")


def fails(_spec):
    raise ModelError("nothing to see")


def test_those_of_a_built_in_model_are_counted_from_its_layers(make_spec):
    assert parameter_count(complete(make_spec(workload="mnist-small")), never) == 402_442


def test_those_of_the_users_model_are_as_a_look_at_it_found_or_not_known(make_spec, tmp_path):
    (tmp_path / "net.py").write_text("def build(): pass\n")
    spec = make_spec(model=ModelFile.from_text(str(tmp_path / "net.py")))
    assert parameter_count(spec, lambda _spec: UserModelFacts("torch", parameters=10, train_samples=300)) == 10
    assert parameter_count(spec, fails) is None
