"""All that show a result draw the same verdict, as strong as its runs: terminal, report, notebook, pages."""

import pytest

from paceline.analysis.answer import answer, headline, verdict_lines
from paceline.analysis.comparison import compare
from paceline.analysis.rows import summarise
from paceline.analysis.selection import Selector
from paceline.api import Results
from paceline.report.table import ranking
from paceline.web.pages.results import table_of
from paceline.web.results_cache import Snapshot

ONE = (1000.0, 1020.0, 990.0, 1010.0)
CASES = {
    # Of two workers against one: the runs of each, the words of it, its word in a table, what compare says, the firsts.
    "tie": (ONE[:3], (1010.0, 1000.0, 985.0), "do not tell them apart", "tie", "no clear difference", 2),
    "likely": (ONE[:3], (1300.0, 1320.0, 1290.0), "; likely, 30 % ahead of fake x1", "likely", "likely (p", 1),
    "sure": (ONE, (1300.0, 1320.0, 1290.0, 1310.0), "; sure, 30 % ahead of fake x1", "sure", "(p = 0.029)", 1),
    "two runs": (ONE[:2], (1690.0, 1700.0), "not sure, 2 runs of each", "not sure", "too few runs to tell", 1),
    "one of few": (ONE, (1690.0, 1700.0), "not sure, 2 runs of fake x2", "not sure", "too few runs to tell", 1),
    "outlier": (
        ONE[:3],
        (1300.0, 1320.0, 500.0),
        "differ too much to tell them apart",
        "open",
        "no clear difference",
        2,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_everything_says_the_same_with_the_same_strength(case, make_record):
    alone, several, words, word, compared, firsts = CASES[case]
    records = [
        make_record(rate, repeat, workers=workers)
        for workers, rates in ((1, alone), (2, several))
        for repeat, rate in enumerate(rates)
    ]
    rows = summarise(records)
    said = headline(rows)
    assert words in said
    assert f"<p>{said}</p>" in Results(tuple(records))._repr_html_()
    assert table_of("", rows, Snapshot("1"))["answer"] == said
    what, *_, how_sure = answer(rows).sentences
    assert said == f"{what.removesuffix('.')}; {how_sure.removeprefix('How sure: ')}"
    sides = [Selector.parse(f"fake:workers={workers}") for workers in (2, 1)]
    assert compared in compare(records, *sides)[0].verdict
    assert sum(best for best, _ in ranking(rows).lines) == firsts
    elsewhere = [make_record(5.0, global_batch=800)]
    lines = verdict_lines(summarise([*records, *elsewhere]))
    assert [line.how_sure.partition(" (")[0] for line in lines] == [word, "nothing else"]
