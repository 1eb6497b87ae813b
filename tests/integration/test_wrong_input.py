"""Input that is wrong: exit code 2, one sentence that says what and what to do, and nothing is written."""

import pytest

from integration.conftest import Tool

FAKE = ("run", "--strategy", "fake", "--steps", "2")
COMMANDS = {
    "nothing named": (["run"], "nothing to run was named; give a study (paceline run quick), or options"),
    "strategy": (["run", "--strategy", "torch-singel"], "strategy 'torch-singel'; did you mean 'torch-single'?"),
    "strategy pattern": (["run", "--strategy", "theano-*"], "no strategy matches 'theano-*'"),
    "workload": ([*FAKE, "--workload", "mnist-smal"], "there is no workload 'mnist-smal'; did you mean 'mnist-small'?"),
    "study": (["run", "quik"], "there is no study 'quik'"),
    "study nearest": (["run", "quik"], "did you mean 'quick'?"),
    "study file": (["run", "absent.toml"], "study absent.toml cannot be read: No such file or directory"),
    "knob": ([*FAKE, "--knob", "step_mss=3"], "no strategy has a knob 'step_mss'; did you mean 'step_ms'?"),
    "knob value": ([*FAKE, "--knob", "fault=nonsense"], "knob fault of fake cannot be 'nonsense'; choose from none"),
    "knob syntax": ([*FAKE, "--knob", "step_ms"], "--knob 'step_ms' is not understood; write name=value"),
    "option": ([*FAKE, "--option", "depth=2"], "workload mnist-small has no option 'depth'"),
    "data set": ([*FAKE, "--dataset", "cifar"], "workload mnist-small cannot train on 'cifar'"),
    "does not divide": (
        [*FAKE, "--global-batch", "30", "--workers", "4"],
        "global_batch 30 does not divide over 4 workers; use a multiple of 4",
    ),
    "zero workers": ([*FAKE, "--workers", "0"], "workers 0 is out of range; it must be at least 1"),
    "no number": ([*FAKE, "--workers", "two"], "--workers 'two' has 'two', which is not a whole number"),
    "script": (["run", "absent.py"], "absent.py; give the path of a Python file, such as train.py"),
    "larger than data": (
        [*FAKE, "--train-samples", "100", "--global-batch", "256"],
        "global_batch 256 is larger than the 100 training samples of mnist-5k; use a smaller batch or more data",
    ),
    "both batches": ([*FAKE, "--global-batch", "64", "--local-batch", "32"], "give exactly one of global_batch"),
    "both lengths": ([*FAKE, "--epochs", "1"], "give exactly one of epochs and steps"),
    "precision": ([*FAKE, "--precision", "fp8"], "precision cannot be 'fp8'; choose from 'fp32', 'tf32', 'bf16'"),
    "optimizer": ([*FAKE, "--optimizer", "lr=-1"], "optimizer.lr -1 is out of range; it must be more than 0"),
    "time": ([*FAKE, "--timeout", "soon"], "'soon' is not a length of time; write seconds, or a number with s, m or h"),
    "model file": (["run", "--model", "absent.py:build"], "--model absent.py:build: there is no file"),
    "place": ([*FAKE, "--db", "/proc/x.db"], "results file /proc/x.db cannot be written"),
    "shown file": (["show", "--db", "absent.db"], "there is no results file absent.db; run a study first"),
    "system": (["predict", "--system", "h300"], "there is no system 'h300'"),
    "not calibrated": (["predict", "--system", "local"], "run paceline calibrate first"),
    "objective": (["recommend", "--objective", "speed"], "there is no objective 'speed'"),
    "no critical batch": (["recommend", "--objective", "time-to-accuracy", "--critical-batch", "0"],
                          "--critical-batch 0 is no number of samples"),
    "no use for one": (["recommend", "--critical-batch", "9"], "--critical-batch 9 is for time to accuracy"),
    "no optimizer": (["recommend", "--optimizer", "name=sgdd"], "optimizer.name cannot be 'sgdd'; choose from"),
    "measured elsewhere": (["recommend", "--measure", "2", "--system", "v100-pcie"], "--measure 2 runs here, on cores"),
    "nothing predicted": (["predict", "--strategy", "torch-dp"], "nothing can be predicted: torch-dp x1"),
    "framework": (["calibrate", "--frameworks", "theano"], "--frameworks 'theano' is unknown"),
    "long name": (["merge", f"{'x' * 300}.db"], "there is no results file x"),
    "sample of no image": (["predict", "--input-shape", "128"], "samples of shape 128 do not fit this model"),
    "sample of no size": (["predict", "--input-shape", "99999999999999999999"], "has more than 2,147,483,648 numbers"),
    "foreign home": (["predict", "--model", "~nouser/x.py"], "there is no home folder ~nouser here"),
    "endless range": (["predict", "--workers", "1..100000000"], "has more than 10,000 numbers; name fewer"),
    "endless number": ([*FAKE, "--workers", "9" * 5000], "which is not a whole number"),
    "endless repeats": ([*FAKE, "--repeats", "999999999"], "999,999,999 repeats of 1 configuration are more than"),
    "endless model": (["predict", "--workload", "mlp", "--option", "depth=1000000000"], "give 10,000 at most"),
    "batch beyond the data": (
        ["predict", "--workload", "mnist-small", "--workers", "1", "--global-batch", "131072"],
        "global_batch 131072 is larger than the 5,000 training samples; use a smaller batch, or say with --samples",
    ),
    "no text": (["show", "--db", "\udcff.db"], "'\\udcff.db' is not UTF-8; type it anew, or rename the file"),
    "reported file": (["report", "--db", "absent.db"], "there is no results file absent.db; run a study first"),
}  # fmt: skip
STUDIES = {
    "unknown key": ("repeat = 3\n[fixed]\nstrategy = 'fake'", "there is no field 'repeat'; did you mean 'repeats'?"),
    "unknown field": (
        "[fixed]\nstrategy = 'fake'\nglobal_bach = 64\nsteps = 2",
        "there is no field 'global_bach'; did you mean 'global_batch'?",
    ),
    "unknown setting": (
        "[fixed]\nstrategy = 'fake'\nglobal_batch = 64\nsteps = 2\noptimizer = { learning = 1.0 }",
        "there is no field 'optimizer.learning'",
    ),
    "bad syntax": ("[fixed\nstrategy = 'fake'", "is not valid TOML"),
    "no batch": ("[fixed]\nstrategy = 'fake'\nsteps = 2", "give exactly one of global_batch"),
    "two batches": (
        "[fixed]\nstrategy = 'fake'\nsteps = 2\nglobal_batch = 64\nlocal_batch = 64", "give exactly one of global_batch"
    ),
    "unknown strategy": (
        "[fixed]\nstrategy = 'fakes'\nsteps = 2\nglobal_batch = 64",
        "there is no strategy 'fakes'; did you mean 'fake'?",
    ),
    "endless repeats": (
        "repeats = 999999999\n[fixed]\nstrategy = 'fake'\nsteps = 2\nglobal_batch = 64", "are more than 100,000 runs"
    ),
    "endless factors": (
        "[fixed]\nstrategy = 'fake'\nglobal_batch = 64\n[factors]\n"
        f"seed = {list(range(200))}\nsteps = {list(range(1, 200))}",
        "its factors make 39,800 configurations",
    ),
    "steps of no run": (
        "[fixed]\nstrategy = 'fake'\nsteps = 99999999999999999999\nglobal_batch = 64", "it must be at most 1"
    ),
    "deep lists": (f"fixed = {'[' * 5000}", "its lists or tables are nested too deeply"),
    "no list": (
        "[fixed]\nstrategy = 'fake'\nsteps = 2\nglobal_batch = 64\n[factors]\nworkers = 2",
        "factor workers must be a list of values, such as [1, 2, 4]",
    ),
}  # fmt: skip


def assert_refused(tool: Tool, words: list[str], sentence: str) -> None:
    before = tool.listing()
    ended = tool(*words)
    assert ended.code == 2, ended.said
    assert ended.err.startswith("paceline: ")
    assert sentence in ended.said
    assert "Traceback" not in ended.err
    assert ended.out == ""
    assert tool.listing() == before


@pytest.mark.parametrize("case", COMMANDS)
def test_a_wrong_command_is_refused_with_a_sentence_and_writes_nothing(tool: Tool, case: str) -> None:
    words, sentence = COMMANDS[case]
    assert_refused(tool, words, sentence)


@pytest.mark.parametrize("case", STUDIES)
def test_a_wrong_study_file_is_refused_with_a_sentence_and_writes_nothing(tool: Tool, case: str) -> None:
    text, sentence = STUDIES[case]
    tool.write("trial.toml", text)
    assert_refused(tool, ["run", "trial.toml"], sentence)


def test_an_expression_that_python_cannot_read_is_refused(tool: Tool) -> None:
    tool.write("my.py", f"def build():\n    return {'+'.join(['1'] * 100_000)}\n")
    assert_refused(tool, ["predict", "--model", "my.py"], "has an expression that is too long for Python to read")


def test_an_option_that_does_not_exist_is_refused(tool: Tool) -> None:
    ended = tool("run", "--worker", "2")
    assert ended.code == 2
    assert "--workers" in ended.said
    assert tool.listing() == []


def test_a_results_file_of_another_program_is_refused_and_left_as_it_is(tool: Tool) -> None:
    text = "not a database, but longer than the header of one " * 10
    path = tool.write("notes.txt", text)
    assert_refused(tool, [*FAKE, "--db", "notes.txt"], "notes.txt is not a sound results file")
    assert path.read_text() == text


@pytest.mark.parametrize("place", ["/proc/report.html", "taken/report.html"])
def test_a_report_that_cannot_be_written_is_refused_and_the_results_stay(tool: Tool, place: str) -> None:
    tool.write("taken", "a file where a folder is wanted")
    tool(*FAKE)
    before = tool.records()
    assert_refused(tool, ["report", "--out", place], f"the report cannot be written to {place}")
    assert tool.records() == before


def test_the_place_of_a_report_is_said_as_it_is(tool: Tool) -> None:
    tool(*FAKE)
    ended = tool("report", "--out", "page [b].html")
    assert ended.code == 0
    assert "report: page [b].html" in ended.out
    assert "page [b].html" in tool.listing()


def test_a_study_that_was_not_run_is_refused_with_those_that_were(tool: Tool) -> None:
    tool(*FAKE)
    for command in (["show"], ["report"], ["explain"], ["compare", "fake", "fake"]):
        ended = tool(*command, "--study", "comand-line")
        assert ended.code == 2
        assert "no runs of study 'comand-line' in paceline.db; did you mean 'command-line'?" in ended.err
