"""Timelines as Perfetto reads them."""

import json

from paceline.analysis.timeline import chrome_timeline
from paceline.record import TimelineSpan


def test_a_timeline_has_a_process_per_rank_and_nested_spans_on_each_thread(make_record):
    spans = (
        TimelineSpan(rank=0, track="training", kind="step", name="step 1", start=0, duration=100),
        TimelineSpan(rank=0, track="training", kind="forward", name="forward", start=10, duration=30),
        TimelineSpan(rank=0, track="communication", kind="communication", name="a", start=20, duration=50, bytes=8),
        TimelineSpan(rank=0, track="communication", kind="communication", name="b", start=40, duration=50),
    )
    timeline = json.loads(json.dumps(chrome_timeline(make_record().model_copy(update={"timeline": spans}))))
    complete = [event for event in timeline["traceEvents"] if event["ph"] == "X"]
    names = [event["args"]["name"] for event in timeline["traceEvents"] if event["ph"] == "M"]
    assert names == ["rank 0 (worker)", "training", "communication", "communication 2"]
    assert {(event["name"], event["tid"]) for event in complete} == {("step 1", 0), ("forward", 0), ("a", 1), ("b", 2)}
    assert all({"name", "cat", "ph", "ts", "dur", "pid", "tid"} <= event.keys() for event in complete)
    assert [event["args"] for event in complete if event["name"] == "a"] == [{"bytes": 8}]


def test_a_timeline_has_every_worker_of_a_process_that_drives_several(make_record):
    spans = tuple(
        TimelineSpan(rank=worker, track="training", kind="step", name="step 1", start=0, duration=9)
        for worker in (0, 1)
    )
    events = chrome_timeline(make_record().model_copy(update={"timeline": spans}))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["rank 0 (worker)", "rank 1 (worker)"]
    assert [event["pid"] for event in events if event["ph"] == "X"] == [0, 1]
