"""Event files as TensorBoard's own reader sees them, in a process of its own that leaves TensorFlow alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.export import event_file, exporter
from paceline.record import Record

READ = """
import json, sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")  # TensorBoard's own switch for doing without
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
read = EventAccumulator(sys.argv[1])
read.Reload()
found = {tag: [(e.step, e.value, e.wall_time) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
kept = [one.plugin_data for one in read.summary_metadata.values()]
told = [HParamsPluginData.FromString(one.content) for one in kept if one.plugin_name == "hparams"]
start = next(one.session_start_info for one in told if one.HasField("session_start_info"))
end = next(one.session_end_info for one in told if one.HasField("session_end_info"))
hparams = {name: getattr(v, v.WhichOneof("kind")) for name, v in start.hparams.items()}
print(json.dumps({"scalars": found, "hparams": hparams, "group": start.group_name, "status": end.status}))
"""


def read(folder: Path, program: str = READ) -> dict:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    ended = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_tensorboard_reads_curves_settings_and_the_end(good: Record, tmp_path: Path) -> None:
    said = exporter("tensorboard").write([good], str(tmp_path), "configurations")
    assert said == f"1 run; look at them: tensorboard --logdir {tmp_path}"
    found = read(tmp_path / "a_study_with_odd_name" / "mnist-small_fake_x1_batch_256_epochs=2_run_1")
    assert found["scalars"]["step/loss"] == [[0, 2.0, 1002.5]]
    assert found["scalars"]["epoch/samples_per_second"] == [[1, 512.0, 1003.0]]
    assert (found["hparams"]["strategy"], found["hparams"]["workers"]) == ("fake", 1.0)
    assert (found["group"], found["status"]) == ("mnist-small fake x1, batch 256, epochs=2", event_file.SUCCESS)


COLUMNS = """
import json, sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
read = EventAccumulator(sys.argv[1])
read.Reload()
(kept,) = [one.plugin_data for one in read.summary_metadata.values()]
told = HParamsPluginData.FromString(kept.content).experiment
print(json.dumps({"settings": {one.name: one.type for one in told.hparam_infos},
                  "metrics": [one.name.tag for one in told.metric_infos]}))
"""


def test_the_table_of_hyperparameters_has_columns_for_what_runs_are_compared_by(good: Record, tmp_path: Path) -> None:
    other = good.model_copy(update={"spec": good.spec.model_copy(update={"seed": 7, "offload": True})})
    exporter("tensorboard").write([good, other], str(tmp_path), "configurations")
    found = read(tmp_path, COLUMNS)
    assert found["settings"] == {
        "workload": event_file.STRING, "strategy": event_file.STRING, "workers": event_file.FLOAT64,
        "global_batch": event_file.FLOAT64, "seed": event_file.FLOAT64,
        "offload": event_file.BOOL,
    }  # fmt: skip
    assert found["metrics"][0] == "epoch/samples_per_second"


def test_a_failed_run_is_there_as_failed(bad: Record, tmp_path: Path) -> None:
    exporter("tensorboard").write([bad], str(tmp_path), "configurations")
    found = read(tmp_path / "trial" / "mnist-small_fake_x1_batch_256_epochs=2_run_2")
    assert (found["scalars"], found["status"]) == ({}, event_file.FAILURE)


def test_exporting_again_replaces_a_run_instead_of_drawing_it_twice(good: Record, tmp_path: Path) -> None:
    later = good.model_copy(update={"started_at": "1970-01-01T01:00:00.000+00:00"})
    for record in (good, later):
        exporter("tensorboard").write([record], str(tmp_path), "configurations")
    assert len(list(tmp_path.rglob("*/events.out.tfevents.*"))) == 1


def test_checksums_are_those_of_the_standard() -> None:
    # CRC-32C of 32 zero bytes is 0x8a9136aa (RFC 3720, B.4), here rotated by 15 bits and with 0xa282ead8 added.
    rotated = (0x8A9136AA >> 15 | 0x8A9136AA << 17) & 0xFFFFFFFF
    assert event_file._checksum(bytes(32)) == ((rotated + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def test_no_study_can_write_outside_of_its_folder(good: Record, tmp_path: Path) -> None:
    exporter("tensorboard").write([good.model_copy(update={"study": "../../.."})], str(tmp_path / "in"), "runs")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert len(list((tmp_path / "in").rglob("*/events.out.*"))) == 1
