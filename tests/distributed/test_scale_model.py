"""The scale on paper: its formulas, where it says that linearity ends, and what it makes of measured runs."""

import json

import cost_model
import pytest
import scale
import shapes
import speed_up
from ranked_process import RankedJob, RankedRuns

SHAPES = shapes.known_shapes()
JOB = cost_model.Job(samples=512, tokens=2048)


def test_parameters_of_the_known_shapes():
    """What their names say, in weights."""
    count = {name: shape.bytes / 2e9 for name, shape in SHAPES.items()}
    assert count == {"Llama-3-8B": pytest.approx(8.03, rel=0.01), "Qwen3-30B-A3B": pytest.approx(30.5, rel=0.01),
                     "Llama-3.1-405B": pytest.approx(405.8, rel=0.01)}


def test_bytes_by_hand():
    """One layer's group of K = 4 columns and 6 rows, 4 bits in groups of 4, on 3 ranks."""
    group, job = shapes.LinearGroup("q/k/v", 4, 6), cost_model.Job(1, 1, bits=4, group_size=4)
    assert group.triangle_bytes == 40
    assert cost_model.reduced_bytes(group, 3) == pytest.approx(2 * 2 / 3 * 40)
    assert cost_model.gathered_bytes(group, job, 3) == pytest.approx(2 / 3 * (6 * 4 / 2 + 6 * 2))
    assert cost_model.reduced_bytes(group, 1) == cost_model.gathered_bytes(group, job, 1) == 0


@pytest.mark.parametrize("machine", cost_model.MACHINES.values(), ids=cost_model.MACHINES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_terms(shape, machine):
    one, eight = (cost_model.seconds(shape, JOB, machine, ranks) for ranks in (1, 8))
    assert one["reduce"] == one["gather"] == 0 and all(value >= 0 for value in one.values())
    for term in ("forward", "gram"):
        assert eight[term] == pytest.approx(one[term] / 8)
    assert eight["solve"] == pytest.approx(one["solve"] / 8, rel=0.01)
    assert eight["dequantize"] == one["dequantize"] and eight["reduce"] > 0
    assert 1 < cost_model.speed_up(shape, JOB, machine, 8) < 8


def test_ranks_beyond_samples_bring_nothing_to_the_forward_pass():
    shape, job = SHAPES["Llama-3-8B"], cost_model.Job(samples=4, tokens=2048)
    terms = [cost_model.seconds(shape, job, cost_model.GPU_NODE, ranks)["forward"] for ranks in (2, 3, 4, 5, 64)]
    assert terms[0] == terms[1] > terms[2] == terms[3] == terms[4]


def test_where_linearity_ends():
    """The wider the model, the sooner its factorizations bound it; a faster one moves the bound."""
    machine, shape = cost_model.CPU_CORE, SHAPES["Llama-3.1-405B"]
    ends = cost_model.first_below(0.5, shape, JOB, machine, 1024)
    assert ends < cost_model.first_below(0.5, SHAPES["Llama-3-8B"], JOB, machine, 1024)
    assert cost_model.blame(shape, JOB, machine, ends) == "factorize"
    faster = scale.adjusted(machine, scale.parse_arguments(["--factorize", "1e12"]))
    assert (cost_model.first_below(0.5, shape, JOB, faster, 1024) or 1025) > ends


def fake_summary(shape, job, machine, ranks, model):
    """What a machine that behaves as the model says would report."""
    terms = cost_model.seconds(shape, job, machine, ranks)
    phases = {term: {"seconds": value} for term, value in terms.items() if term not in ("start", "load", "save")}
    phases["write"] = {"seconds": terms["save"]}
    entry = {"seconds": sum(terms.values()), "phases": phases, "sent_bytes": cost_model.sent_bytes(shape, job, ranks),
             "peak_anonymous_bytes": 1 << 20, "peak_bytes": 1 << 21, "save_seconds": terms["save"], "wait_seconds": 0.0}
    return {"model": str(model), "world_size": ranks, "samples": job.samples, "tokens": job.all_tokens,
            "ranks": [{"rank": rank, **entry} for rank in range(ranks)]}


@pytest.fixture
def measured(tmp_path):
    """Runs of 1 and 2 ranks on an imagined machine twice as fast as assumed."""
    (tmp_path / "config.json").write_text(json.dumps(shapes.EIGHT_BILLION))
    shape, job = shapes.shape_of_checkpoint(tmp_path), cost_model.Job(8, 512)
    arguments = scale.parse_arguments(["--forward", "328e9", "--solve", "48e9", "--load", "1e15", "--write-all", "1e15"])
    machine = scale.adjusted(cost_model.CPU_CORE, arguments)
    ranked_job = RankedJob(tmp_path, tmp_path, tmp_path, 8, 512, 128, 1, 1, tmp_path)
    made = []
    for ranks in (1, 2):
        runs = RankedRuns(ranks, ranked_job, [fake_summary(shape, job, machine, ranks, tmp_path)], [1.0], [10])
        runs.summary_file.write_text(json.dumps(runs.summaries[0]))
        made.append(runs)
    return made


def test_check_takes_the_rates_of_one_rank(measured):
    """A machine that follows the model is predicted exactly, whatever its rates."""
    text = scale.check([runs.summary_file for runs in measured], scale.parse_arguments([]))
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith(("| 1 ", "| 2 "))]
    assert [row[2].strip() for row in rows] == ["1.00", "1.00"]
    for cell in rows[1][3:]:
        predicted, found = map(float, cell.split("/"))
        assert predicted == pytest.approx(found, rel=0.02, abs=0.02)


def test_check_wants_one_rank_first(measured):
    with pytest.raises(ValueError, match="must be of one"):
        scale.check([measured[1].summary_file], scale.parse_arguments([]))


def test_report_of_runs(measured):
    bound = 0.98 * measured[1].seconds
    text = speed_up.markdown(measured[0].job, measured, [bound])
    assert "| solve |" in text and "| calibrate |" in text and "2.00x" in text
    assert f"take {bound:.2f} s. Two ranks reach 98.0% of their speed" in text


def test_unknown_model_is_named():
    with pytest.raises(ValueError, match="Llama-4"):
        scale.chosen_shapes(["Llama-4"])
