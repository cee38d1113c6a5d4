"""Scripts as users of LLM Compressor write them, with changed imports."""

import os
import re
import subprocess
import sys

import pytest
from support import program
from support.ranked_runs import free_port

SCRIPT = """
import sys
from compressed_tensors.offload import dispatch_model
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from layerpress import get_rank_partition, init_dist, load_offloaded_model, oneshot
from layerpress.modifiers.gptq import GPTQModifier

model_id, rows, folder = sys.argv[1:]
init_dist()
with load_offloaded_model():
    model = AutoModelForCausalLM.from_pretrained(model_id, dtype="auto", device_map="auto_offload")
tokenizer = AutoTokenizer.from_pretrained(model_id)
split = get_rank_partition("train", 6)
ds = load_dataset("json", data_files=rows, split=split, cache_dir=folder + "-cache")
ds = ds.map(lambda row: {"text": tokenizer.apply_chat_template(row["messages"], tokenize=False)})
ds = ds.map(lambda row: tokenizer(row["text"], truncation=True, max_length=64, add_special_tokens=False), remove_columns=ds.column_names)
weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
recipe = GPTQModifier(config_groups={"group_0": {"targets": ["Linear"], "weights": weights}}, ignore=["lm_head"])
oneshot(model=model, dataset=ds, recipe=recipe, max_seq_length=64, num_calibration_samples=6)
dispatch_model(model)
sample = tokenizer("w1 w2 w3", return_tensors="pt")
words = tokenizer.decode(model.generate(**{key: value.to(model.device) for key, value in sample.items()}, max_new_tokens=3)[0])
sys.stdout.write(f"{split} {words}\\n")  # at once: ranks share the stream
model.save_pretrained(folder, save_compressed=True)
tokenizer.save_pretrained(folder)
"""


@pytest.fixture
def script(model, samples, tmp_path):
    """The command line of the script, its file of conversations, and the folder that it saves into."""
    import json

    conversations = [{"messages": [{"role": "user", "content": " ".join(f"w{token}" if token else "<unk>" for token in sample)}]}
                     for sample in samples]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in conversations))
    (tmp_path / "script.py").write_text(SCRIPT)
    return [str(tmp_path / "script.py"), str(model), str(rows), str(tmp_path / "saved")]


def run(command):
    paths = os.pathsep.join([str(program.PROGRAM.parent / "python"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.nightly
def test_on_one_rank(script, by_program, tmp_path):
    assert "train[0:6] w1 w2 w3" in run([sys.executable, *script])
    assert (tmp_path / "saved" / "model.safetensors").read_bytes() == (by_program / "model.safetensors").read_bytes()


@pytest.mark.nightly
def test_on_two_ranks(script, by_program, tmp_path):
    """Each rank brings its part of the data; both have the result afterwards, and one writes it."""
    from safetensors.torch import load_file

    said = run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *script])
    assert "train[0:3] w1 w2 w3" in said and "train[3:6] w1 w2 w3" in said
    assert "were requested" not in said
    expected = load_file(by_program / "model.safetensors")
    written = {}
    for file in (tmp_path / "saved").glob("*.safetensors"):
        written |= load_file(file)
    assert written.keys() == expected.keys()
    # The order of summation differs, so that a few codes may.
    different = sum(int((written[name] != expected[name]).any().item()) for name in expected if not name.endswith("weight_packed"))
    assert different <= 4, different


RANKS = """
import sys, time
from layerpress import DistributedError, init_dist, oneshot
from layerpress.modifiers import GPTQModifier

model, out = sys.argv[1:]
ranks = init_dist()

def rows():
    yield {"input_ids": [1, 2, 3]}
    if ranks.rank == 1:
        raise ValueError("a broken row")
    yield {"input_ids": [4, 5, 6]}

def told(**changed):
    start = time.monotonic()
    try:
        oneshot(model, output_dir=out, recipe=GPTQModifier(scheme="W8A8"), progress=False, **{"dataset": rows(), **changed})
    except (DistributedError, ValueError) as error:
        sys.stdout.write(f"rank {ranks.rank}, {'at once' if time.monotonic() - start < 8 else 'late'}: {error}\\n")
    sys.stdout.flush()

told()
told(dataset=[{"input_ids": [1, 2, 3]}])
time.sleep(10)  # the script lives on
"""


def test_a_rank_whose_data_is_refused(model, tmp_path):
    """The other ranks learn it at once, and a further run says why there can be none."""
    (tmp_path / "ranks.py").write_text(RANKS)
    said = run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(tmp_path / "ranks.py"), str(model),
                str(tmp_path / "out")])
    failed = r"rank 1 \(.*\): a broken row"
    for line in ("rank 1, at once: a broken row", f"rank 0, at once: {failed}",
                 *(rf"rank {rank}, at once: \[python.oneshot\] these ranks can do no further work since one failed \({failed}\)" for rank in (0, 1))):
        assert re.search(line, said), said


TOGETHER = """
import sys, time
from layerpress import DistributedError, init_dist, oneshot
from layerpress.modifiers import GPTQModifier, QuantizationModifier

model, out = sys.argv[1:]
ranks = init_dist()
summary = oneshot(model, output_dir=out, recipe=QuantizationModifier(scheme="W8A8"), progress=False)
sys.stdout.write(f"rank {ranks.rank}: {summary.modules} {len(summary.details['modules'])} {'W8A8' in str(summary)}\\n")
try:
    oneshot(model, output_dir=out + "-2", dataset=[[1, 2, 3]] if ranks.is_first else None, recipe=GPTQModifier(scheme="W8A8"), progress=False)
except DistributedError as error:
    sys.stdout.write(f"rank {ranks.rank}: {error}\\n")
sys.stdout.flush()
"""


def test_ranks_have_one_summary_and_one_kind_of_data(model, tmp_path):
    (tmp_path / "ranks.py").write_text(TOGETHER)
    said = run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(tmp_path / "ranks.py"), str(model),
                str(tmp_path / "out")])
    assert "rank 0: 22 22 True" in said and "rank 1: 22 22 True" in said, said
    for rank, kinds in ((0, "rank 1 has none, rank 0 has rows"), (1, "rank 0 has rows, rank 1 has none")):
        assert f"rank {rank}: [python.oneshot] dataset: {kinds}" in said, said


TWICE = """
import sys
from layerpress import init_dist, load_offloaded_model, oneshot
from layerpress.modifiers import QuantizationModifier
from transformers import AutoModelForCausalLM

model_id, out = sys.argv[1:]
ranks = init_dist()
with load_offloaded_model():
    model = AutoModelForCausalLM.from_pretrained(model_id, dtype="auto", device_map="auto_offload")
oneshot(model, recipe=QuantizationModifier(scheme="FP8_DYNAMIC", targets=["re:.*mlp.*"]), progress=False)
oneshot(model, recipe=QuantizationModifier(scheme="W8A8", targets=["re:.*self_attn.*_proj"]), progress=False)
model.save_pretrained(out)
ranks.barrier()
model.model.norm.weight.data.mul_(2)
try:
    oneshot(model, recipe=QuantizationModifier(scheme="W8A8", targets=["lm_head"]), progress=False)
except Exception as error:
    sys.stdout.write(f"rank {ranks.rank}: {error}\\n")
"""


def test_a_second_call_on_ranks_goes_on_from_the_first(model, tmp_path):
    from safetensors.torch import load_file

    (tmp_path / "ranks.py").write_text(TWICE)
    said = run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(tmp_path / "ranks.py"), str(model),
                str(tmp_path / "out")])
    dtypes = {}
    for file in (tmp_path / "out").glob("*.safetensors"):
        dtypes |= {name: str(tensor.dtype) for name, tensor in load_file(file).items()}
    assert dtypes["model.layers.1.mlp.up_proj.weight"] == "torch.float8_e4m3fn" and dtypes["model.layers.1.self_attn.q_proj.weight"] == "torch.int8"
    for rank in (0, 1):
        assert re.search(rf"rank {rank}: .*was changed after it was compressed", said), said


ENDS = """
import torch
from layerpress import init_dist

ranks, sum_of = init_dist(60), torch.tensor([1.0])
torch.distributed.all_reduce(sum_of)
print(f"rank {ranks.rank} of {int(sum_of)}")
"""
WAYS = {"by hand": ("RANK", "LOCAL_RANK", "WORLD_SIZE"), "Slurm": ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS")}


@pytest.mark.parametrize("way", WAYS)
def test_ranks_that_torchrun_did_not_start(way, tmp_path):
    """torch.distributed works, too, and has a port of its own."""
    (tmp_path / "ends.py").write_text(ENDS)
    names = WAYS[way]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PYTHONPATH": str(program.PROGRAM.parent / "python")}
    started = [subprocess.Popen([sys.executable, tmp_path / "ends.py"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={**os.environ, **meeting, names[0]: str(rank), names[1]: str(rank), names[2]: "2"}) for rank in (0, 1)]
    said = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert all(f"rank {rank} of 2" in text for rank, text in enumerate(said))


@pytest.mark.nightly
def test_scripts_that_only_end(tmp_path):
    """Threads of torch.distributed aborted three of five such scripts."""
    (tmp_path / "ends.py").write_text(ENDS)
    for _ in range(6):
        run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(tmp_path / "ends.py")])
