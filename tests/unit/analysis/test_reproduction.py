"""How to make the same runs again: exactly these, neither more nor fewer."""

import tomllib

import pytest

from paceline.analysis.reproduction import as_toml, exact_grids, recipes
from paceline.plan import complete
from paceline.spec import RunSpec
from paceline.study import Study
from unit.figures import example_records


def again(texts: list[str]) -> set[str]:
    """Keys of the runs that study files describe."""
    return {complete(spec).key() for text in texts for spec in Study.parse(tomllib.loads(text), "again").specs()}


@pytest.mark.parametrize("name", ["quick", "convergence", "model-size", "batch-size"])
def test_the_files_describe_exactly_the_runs_that_were_made(name):
    records = example_records.built_in(name)
    assert again([one.text for one in recipes(records)]) == {record.key for record in records}


def test_a_whole_built_in_study_is_named():
    (recipe,) = recipes(example_records.built_in("quick", instrumented=True))
    assert recipe.command == "paceline run quick --scale tiny --repeats 3 --breakdown"


def test_a_part_of_a_built_in_study_is_described_by_a_file():
    records = [record for record in example_records.built_in("quick") if record.spec.workers == 1]
    (recipe,) = recipes(records)
    assert recipe.command == "paceline run quick.toml"
    assert again([recipe.text]) == {record.key for record in records}


def test_runs_that_are_no_grid_are_split_into_grids():
    specs = [
        RunSpec(strategy=name, workers=workers, dataset="mnist-5k", epochs=2, **batch)
        for name, workers, batch in [
            ("fake", 1, {"global_batch": 64}), ("fake", 2, {"global_batch": 64}),
            ("torch-single", 1, {"global_batch": 64}), ("fake", 2, {"local_batch": 32}),
        ]
    ]  # fmt: skip
    texts = [as_toml("odd", 1, grid) for grid in exact_grids(specs)]
    assert again(texts) == {spec.key() for spec in specs}


def test_text_of_users_survives_the_file():
    record = example_records.built_in("quick")[0].model_copy(update={"study": 'a "quoted"\n<script> study ✓'})
    (recipe,) = recipes([record])
    assert tomllib.loads(recipe.text)["name"] == record.study
    assert recipe.name == "a--quoted---script--study--.toml"


def test_nothing_has_no_recipe():
    assert recipes([]) == []
