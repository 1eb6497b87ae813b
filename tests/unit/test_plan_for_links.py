"""What a link means for a plan: which runs cross it, and why a run cannot be put behind it."""

from dataclasses import replace

from paceline.plan import complete, make_plan, refusal
from paceline.study import Study


def no_probe(_spec):
    raise AssertionError("a built-in model needs no probe")


def test_a_machine_without_the_rights_says_what_it_lacks(make_spec, make_system):
    spec = complete(make_spec(strategy="torch-ddp", workers=2, link="1gbit"))
    lacking = replace(make_system(), no_link=lambda link: f"no {link.text} here")
    assert refusal(spec, lacking, no_probe) == "no 1gbit here"
    assert refusal(spec, make_system(), no_probe) is None


def test_a_strategy_of_one_process_is_refused_in_words(make_spec, make_system):
    spec = complete(make_spec(strategy="tf-mirrored", workers=2, link="1gbit"))
    assert refusal(spec, make_system(frameworks=("tensorflow", "keras")), no_probe) == (
        "tf-mirrored drives all workers from one process, so nothing crosses link 1gbit; "
        "leave link out, or use a strategy with a process for each worker"
    )


def test_gpus_are_refused_in_words(make_spec, make_system):
    spec = complete(make_spec(strategy="torch-ddp", workers=2, device="cuda", link="1gbit"))
    assert refusal(spec, make_system(gpus=2), no_probe) == (
        "link 1gbit is between processes on CPU cores, and device cuda was asked for: "
        "GPUs of one machine do not talk over its network; leave link out, or use device cpu"
    )


def test_other_machines_have_links_of_their_own(make_spec, make_system):
    spec = complete(make_spec(strategy="torch-ddp", workers=2, machines="a,b", link="1gbit"))
    assert refusal(spec, make_system(), no_probe) == (
        "link 1gbit is made between processes of this machine, and machines a,b have links of their own; "
        "leave one of link and --on out"
    )


def test_one_worker_crosses_no_link_and_runs_once(make_system):
    factors = {"strategy": ["torch-ddp", "torch-ps-sync"], "workers": [1, 2], "link": ["1gbit", "100mbit"]}
    study = Study(fixed={"global_batch": 64, "steps": 1}, factors=factors)
    plan = make_plan(study, set(), make_system(), no_probe)
    runs = {(run.spec.strategy, run.spec.workers, run.spec.link.text if run.spec.link else None) for run in plan.to_run}
    # A worker with a parameter server is two processes.
    linked = {(name, 2, link) for name in factors["strategy"] for link in factors["link"]}
    assert runs == linked | {("torch-ddp", 1, None)} | {("torch-ps-sync", 1, link) for link in factors["link"]}
    assert plan.notes == ("torch-ddp x1 is one process and is run without a link",)
