"""The user's own model file: what is taken from it and what is said when it is wrong."""

import sys

import numpy as np
import pytest

from paceline.errors import ModelError
from paceline.spec import ModelFile
from paceline.workloads.user_model import build_user_model, declared_functions, load_user_model, words_of

ARRAYS = "import numpy as np\ndef build(): return 'a model'\ndef data():\n    return {}\n"


@pytest.fixture(autouse=True)
def modules_as_before(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("paceline_user_", "neighbour")):
            del sys.modules[name]


@pytest.fixture
def write(tmp_path):
    """A model file with this text, as `--model` would name it."""

    def make(text, function="build"):
        (tmp_path / "net.py").write_text(text)
        return ModelFile.from_text(f"{tmp_path / 'net.py'}:{function}")

    return make


def complaint(function, *arguments):
    with pytest.raises(ModelError) as caught:
        function(*arguments)
    return str(caught.value)


def test_names_at_the_top_of_the_file_are_found_without_running_it(write):
    file = write("raise SystemExit\ndef build(): pass\nclass Net: pass\nloss = max\ndef data(): pass\n")
    assert declared_functions(file) == {"build", "Net", "loss", "data"}


def test_names_inside_functions_do_not_count(write):
    assert declared_functions(write("def build():\n    def data(): pass\n")) == {"build"}


def test_a_missing_function_is_refused_with_the_nearest_name(write):
    file = write("def biuld(): pass\n")
    assert complaint(declared_functions, file) == (
        f"model file {file.path} has no function 'build'; did you mean 'biuld'?"
    )


def test_a_function_may_come_from_elsewhere(write):
    assert declared_functions(write("from neighbour import build, source as data\n")) == {"build", "data"}
    assert declared_functions(write("from neighbour import *\n")) == {"*"}


def test_imports_of_other_names_do_not_hide_that_the_function_is_missing(write):
    file = write("import numpy as np\nfrom os.path import join\ndef build(): pass\ndef data(): pass\n", "bild")
    assert (
        complaint(declared_functions, file) == f"model file {file.path} has no function 'bild'; did you mean 'build'?"
    )


@pytest.mark.parametrize("text", ["def build(:\n", "build = (\n"])
def test_a_file_that_is_not_python_is_refused_with_the_line(write, text):
    file = write(text)
    message = complaint(declared_functions, file)
    assert message.startswith(f"model file {file.path} is not valid Python: ")
    assert "line 1" in message
    assert message.endswith("mend it and run again")


def test_a_file_that_is_not_text_is_refused(write):
    file = write("")
    file.path.write_bytes(b"\xff\xfe\xfa")
    assert f"model file {file.path} is not valid Python" in complaint(declared_functions, file)


def test_the_functions_of_the_file_are_taken_and_those_not_there_are_none(write):
    user_model = load_user_model(write("def build(): return 'a model'\ndef loss(outputs, targets): return 3\n"))
    assert user_model.label == "net.py:build"
    assert build_user_model(user_model) == "a model"
    assert user_model.loss(None, None) == 3
    assert user_model.data is None
    assert user_model.optimizer is None


def test_another_function_may_build_the_model(write):
    assert (
        build_user_model(load_user_model(write("def small(): return 'small'\ndef large(): return 'large'\n", "large")))
        == "large"
    )


def test_a_class_may_be_the_function(write):
    assert type(build_user_model(load_user_model(write("class Net: pass\n", "Net")))).__name__ == "Net"


def test_a_name_that_is_no_function_is_as_good_as_absent(write):
    assert load_user_model(write("def build(): pass\ndata = 'a word'\n")).data is None


def test_the_file_finds_its_neighbours(write, tmp_path):
    (tmp_path / "neighbour_of_net.py").write_text("def build(): return 'from next door'\n")
    assert build_user_model(load_user_model(write("from neighbour_of_net import build\n"))) == "from next door"


def test_a_file_that_lacks_the_function_when_run_is_refused_with_the_nearest_name(write):
    file = write("from os.path import join\ndef biuld(): pass\n")
    message = complaint(load_user_model, file)
    assert message == f"model file {file.path} has no function 'build'; did you mean 'biuld'?"


def test_a_file_that_fails_when_run_is_refused_with_the_error_and_the_line(write):
    file = write("def build(): pass\n\nraise ValueError('no luck')\n")
    assert complaint(load_user_model, file) == (
        f"model file {file.path} fails with ValueError: no luck (net.py, line 3); mend it and run again"
    )


def test_an_import_that_is_missing_is_told_with_its_line(write):
    message = complaint(load_user_model, write("import no_such_module_anywhere\ndef build(): pass\n"))
    assert "fails with ModuleNotFoundError: No module named 'no_such_module_anywhere' (net.py, line 1)" in message


def test_a_model_that_fails_to_build_is_refused_with_the_error_and_the_line(write):
    user_model = load_user_model(write("def build():\n    return 1 / 0\n"))
    assert complaint(build_user_model, user_model) == (
        "net.py:build fails with ZeroDivisionError: division by zero (net.py, line 2); mend it and run again"
    )


def test_the_innermost_line_of_the_users_own_files_is_named(write, tmp_path):
    (tmp_path / "neighbour_that_fails.py").write_text("def build():\n    return [][0]\n")
    user_model = load_user_model(
        write("import neighbour_that_fails\ndef build():\n    return neighbour_that_fails.build()\n")
    )
    assert "(neighbour_that_fails.py, line 2)" in complaint(build_user_model, user_model)


def test_data_are_four_arrays_as_floats_and_whole_numbers(write):
    user_model = load_user_model(
        write(ARRAYS.format("np.ones((6, 2)), np.array([0, 1, 2, 0, 1, 2]), np.ones((2, 2)), np.array([0, 1])"))
    )
    data = user_model.load_data(None)
    assert data.train_inputs.dtype == np.float32
    assert data.train_targets.dtype == np.int64
    assert (len(data.train_inputs), len(data.test_inputs)) == (6, 2)
    assert data.classes == 3


def test_targets_that_are_real_numbers_have_no_classes(write):
    user_model = load_user_model(write(ARRAYS.format("np.ones((4, 2)), np.ones(4), np.ones((2, 2)), np.ones(2)")))
    data = user_model.load_data(None)
    assert data.classes is None
    assert data.train_targets.dtype == np.float32


def test_plain_lists_will_do_as_arrays(write):
    assert load_user_model(write(ARRAYS.format("[[1.0], [2.0]], [0, 1], [[3.0]], [1]"))).load_data(None).classes == 2


def test_fewer_samples_of_the_users_data_are_the_first_ones(write):
    user_model = load_user_model(write(ARRAYS.format("np.arange(8.0), np.arange(8), np.arange(4.0), np.arange(4)")))
    data = user_model.load_data(2)
    assert data.train_targets.tolist() == [0, 1]
    assert data.test_targets.tolist() == [0]


def test_a_file_without_data_is_refused_with_every_way_out(write):
    user_model = load_user_model(write("def build(): pass\n"))
    assert complaint(user_model.load_data, None) == (
        "net.py:build has no function data; add one, or give --dataset, or --input-shape and --classes"
    )


@pytest.mark.parametrize("returned", ["None", "np.ones(3)", "(np.ones(3), np.ones(3))", "{}"])
def test_data_that_are_not_four_arrays_are_refused_with_what_they_should_be(write, returned):
    user_model = load_user_model(write(ARRAYS.replace("{}", returned)))
    assert complaint(user_model.load_data, None) == (
        "data() of net.py:build must return four arrays: train inputs, train targets, test inputs, test targets; each "
        "may be an array, a tuple or a dict of them, targets may be None, and two dicts are train and test inputs with "
        "their labels inside"
    )


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("np.ones(4), np.ones(3), np.ones(2), np.ones(2)", "4 train inputs and 3 train targets"),
        ("np.ones(4), np.ones(4), np.ones(2), np.ones(1)", "2 test inputs and 1 test targets"),
    ],
)
def test_inputs_and_targets_of_different_lengths_are_refused(write, returned, words):
    user_model = load_user_model(write(ARRAYS.format(returned)))
    message = complaint(user_model.load_data, None)
    assert f"data() of net.py:build returns {words}; return" in message


@pytest.mark.parametrize(
    "returned",
    [
        "np.ones((0, 2)), np.ones(0, int), np.ones((1, 2)), np.ones(1, int)",
        "[[1.0], [1.0, 2.0]], [0, 1], [[1.0]], [0]",
        "1.0, 2.0, 3.0, 4.0",
        "['a', 'b'], [0, 1], ['c'], [0]",
    ],
    ids=["no samples", "ragged", "no arrays", "words"],
)
def test_data_that_cannot_be_trained_on_are_refused_in_words(write, returned):
    user_model = load_user_model(write(ARRAYS.format(returned)))
    assert "data() of net.py:build" in complaint(user_model.load_data, None)


def test_data_that_fail_are_refused_with_the_error_and_the_line(write):
    user_model = load_user_model(write("def build(): pass\ndef data():\n    raise OSError('disk gone')\n"))
    assert complaint(user_model.load_data, None) == (
        "data() of net.py:build fails with OSError: disk gone (net.py, line 3); mend it and run again"
    )


def test_a_file_that_went_away_is_refused_by_name(write):
    file = write("def build(): pass\n")
    file.path.unlink()
    assert f"model file {file.path} fails with FileNotFoundError" in complaint(load_user_model, file)


def test_an_import_that_fails_late_tells_what_it_failed_because_of() -> None:
    cause = RuntimeError("operator torchvision::nms does not exist")
    error = ModuleNotFoundError("Could not import module 'T5'.")
    error.__cause__ = cause
    assert words_of(error) == (
        "ModuleNotFoundError: Could not import module 'T5' (because of RuntimeError: operator torchvision::nms does "
        "not exist)"
    )
    other = ValueError("no")
    other.__cause__ = cause
    assert words_of(other) == "ValueError: no"
