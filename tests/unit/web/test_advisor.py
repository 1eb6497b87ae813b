"""The advisor's page: what the command answers, escaped, and a way to measure it."""

import json

import pytest
from starlette.testclient import TestClient

from paceline.cli.recommend import recommend
from paceline.cli.serve import options_of
from paceline.recommend.objectives import OBJECTIVES
from paceline.web import Site
from paceline.web.job import Job
from paceline.web.jobs import Jobs
from paceline.web.pages.advisor import _line
from unit.web.conftest import HOSTILE


@pytest.fixture
def site(site: Site) -> Site:
    site.advice_options = options_of(recommend)
    return site


def ask(client: TestClient, site: Site, **fields: str) -> str:
    answer = client.post("/advisor", data={"secret": site.secret, **fields})
    assert answer.status_code == 200
    return answer.text


def test_the_answer_stands_first_with_its_reasons_and_each_candidate_can_be_measured(
    client: TestClient, site: Site
) -> None:
    text = ask(client, site, workload="mnist-small", system="8xh100-nvlink", strategy="torch-ddp", workers="1,2,4")
    options = "--workload=mnist-small --strategy=torch-ddp --workers=1,2,4 --system=8xh100-nvlink"
    assert f"paceline recommend {options} --db={site.db}" in text
    assert f"--db={site.db} --emit=script" in text
    assert '<p class="answer">Use torch-ddp on ' in text
    assert "/start?workload=mnist-small&amp;strategy=torch-ddp&amp;workers=" in text


def test_a_layout_stands_in_its_own_field_of_the_form_that_measures_it() -> None:
    estimate = {"value": 1.0, "low": 1.0, "high": 1.0}
    candidate = {
        "strategy": "torch-mesh", "workers": 4, "global_batch": 8, "layout": "shard=2,pipeline=2", "measured": None,
        "knobs": {"microbatches": 4, "recompute": "full"}, "tied": True, "behind": 0.0, "efficiency": None,
        "samples_per_second": estimate, "memory_bytes": estimate,
    }  # fmt: skip
    line = _line(candidate, {}, "throughput")
    assert line["name"] == "torch-mesh layout=shard=2,pipeline=2 microbatches=4 recompute=full"
    assert "&layout=shard%3D2%2Cpipeline%3D2&recompute=full&" in line["measure"]
    assert line["measure"].endswith("&knob=microbatches%3D4")


def test_wrong_input_is_told_in_the_words_of_the_terminal(client: TestClient, site: Site) -> None:
    assert "there is no system &#39;8xh1000-nvlink&#39;; did you mean" in ask(client, site, system="8xh1000-nvlink")


def test_what_the_user_wrote_comes_back_as_text(client: TestClient, site: Site) -> None:
    text = ask(client, site, system=HOSTILE)
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_it_runs_nothing_here_and_is_not_asked_by_other_sites(client: TestClient, site: Site) -> None:
    assert 'name="emit"' not in client.get("/advisor").text
    assert "--measure" not in ask(client, site, measure="2", system="8xh1000-nvlink")
    refused = client.post("/advisor", data={"secret": site.secret}, headers={"origin": "http://evil.example"})
    assert refused.status_code == 403
    assert client.post("/advisor", data={"secret": "guess"}).status_code == 403


ADVICE = {
    "objective": "throughput", "system": "cpu-2-cores", "reasons": [f"Use fake {HOSTILE}"], "excluded": {},
    "ranked": [{
        "strategy": "torch-ddp", "workers": 2, "global_batch": 64, "layout": None, "measured": 1234.0, "knobs": {},
        "tied": False, "behind": 0.0, "efficiency": 0.9,
        "samples_per_second": {"value": 1000, "low": 900, "high": 1100},
        "memory_bytes": {"value": 1e9, "low": 1e9, "high": 1e9},
    }],
}  # fmt: skip


def test_the_best_are_run_here_as_a_job_that_leads_to_its_answer(
    client: TestClient, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answered(_jobs: Jobs, job: Job) -> int:
        job.output = json.dumps(ADVICE)
        return 0

    monkeypatch.setattr(Jobs, "_run", answered)
    fields = {"secret": site.secret, "workload": "mlp", "workers": "1,2", "measure": "3"}
    started = client.post("/advisor/measure", data=fields)
    assert (started.status_code, started.headers["location"]) == (303, "/")
    client.get("/")  # the job has had its turn
    (job,) = site.jobs.all
    assert job.arguments == ("recommend", "--workload=mlp", "--workers=1,2", f"--db={site.db}", "--measure=3")
    assert job.snapshot()["answer"] == f"/advisor?job={job.number}"
    text = client.get(f"/advisor?job={job.number}").text
    assert "<th>measured</th>" in text and f"<td>{OBJECTIVES['throughput'].text(1234.0)}</td>" in text
    assert '<option value="mlp" selected>' in text and "<option selected>3</option>" in text
    assert "<script>alert" not in text


def test_an_answer_that_is_not_kept_any_more_is_said(client: TestClient) -> None:
    answer = client.get("/advisor?job=" + "9" * 5000)
    assert answer.status_code == 400
    assert "that answer is not kept any more; ask again" in answer.text


def test_other_sites_cannot_have_anything_measured(client: TestClient, site: Site) -> None:
    refused = client.post("/advisor/measure", data={"secret": site.secret}, headers={"origin": "http://evil.example"})
    assert (refused.status_code, site.jobs.all) == (403, [])
    assert client.post("/advisor/measure", data={"secret": "guess"}).status_code == 403
