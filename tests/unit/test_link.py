"""Links as values: how they are written, read, ordered and refused, and what they are in the identity of a run."""

import pytest

from paceline.errors import SpecError
from paceline.link import NetworkLink, format_bits_per_second, format_delay, link_rank
from paceline.spec import RunSpec
from paceline.study import Study

RUN = {"strategy": "torch-ddp", "workers": 2, "global_batch": 16, "steps": 1}


@pytest.mark.parametrize(
    ("text", "bytes_per_second", "delay_seconds", "canonical"),
    [
        ("1gbit", 125e6, 0.0, "1gbit"),
        ("100mbit:5ms", 12.5e6, 0.005, "100mbit:5ms"),
        (" 2.5Gbit : 250us ", 312.5e6, 0.00025, "2.5gbit:250us"),
        ("1000mbit:0ms", 125e6, 0.0, "1gbit"),
        ("0.5gbit/s:0.04s", 62.5e6, 0.04, "500mbit:40ms"),
        ("8kbit", 1e3, 0.0, "8kbit"),
    ],
)
def test_it_is_read_and_written(text: str, bytes_per_second: float, delay_seconds: float, canonical: str) -> None:
    link = NetworkLink.from_text(text)
    assert link.bytes_per_second == pytest.approx(bytes_per_second)
    assert link.delay_seconds == pytest.approx(delay_seconds)
    assert link.text == canonical
    assert NetworkLink.from_text(link.text).text == canonical


@pytest.mark.parametrize(
    "text", ["", "1", "gbit", "1gb", "1gbit:", "1gbit:5", ":5ms", "-1gbit", "1gbit:5ms:1", "1mbps"]
)
def test_what_is_no_link_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not understood; write a rate in kbit, mbit or gbit and, if wanted"):
        NetworkLink.from_text(text)


def test_rates_and_delays_out_of_reach_are_refused() -> None:
    with pytest.raises(ValueError, match=r"link '1kbit' is out of range; use a rate from 8kbit to 400gbit"):
        NetworkLink.from_text("1kbit")
    with pytest.raises(ValueError, match=r"link '1gbit:11s' is out of range; use a delay of at most 10s"):
        NetworkLink.from_text("1gbit:11s")


def test_a_wrong_link_of_a_run_is_one_sentence() -> None:
    with pytest.raises(SpecError, match=r"^run: link 'fast' is not understood; write a rate"):
        RunSpec.parse({**RUN, "link": "fast"}, "run")


def test_it_is_part_of_a_runs_identity_and_no_link_is_as_before() -> None:
    plain, none = RunSpec.parse(RUN, "run"), RunSpec.parse({**RUN, "link": "none"}, "run")
    linked = [RunSpec.parse({**RUN, "link": text}, "run") for text in ("1gbit", "1000mbit", "1gbit:5ms")]
    assert none == plain
    assert none.key() == plain.key()
    assert len({plain.key(), *(spec.key() for spec in linked)}) == 3
    assert RunSpec.model_validate_json(linked[2].model_dump_json()) == linked[2]
    assert linked[2].model_dump()["link"] == "1gbit:5ms"


def test_it_is_a_factor_of_a_study() -> None:
    study = Study(fixed=RUN, factors={"link": ["none", "100mbit", "1gbit:5ms"]})
    assert [spec.link.text if spec.link else None for spec in study.specs()] == [None, "100mbit", "1gbit:5ms"]


def test_links_sort_from_the_slowest_and_loopback_is_last() -> None:
    links = [None, *map(NetworkLink.from_text, ("1gbit", "100mbit", "1gbit:5ms"))]
    assert [link.text if link else None for link in sorted(links, key=link_rank)] == [
        "100mbit", "1gbit:5ms", "1gbit", None,
    ]  # fmt: skip


def test_people_read_units_with_a_space() -> None:
    assert format_bits_per_second(100e6) == "100 Mbit/s"
    assert format_bits_per_second(2.5e9) == "2.5 Gbit/s"
    assert format_delay(0.005) == "5 ms"
