"""--download and --push, against a hub on this machine."""

import os
from pathlib import Path

import pytest
from support import program
from support.local_hub import TOKEN, LocalHub
from support.selection import nightly_but


@pytest.fixture
def hub(model):
    server = LocalHub()
    server.add("org/name", model, **{"pytorch_model.bin": b"not wanted", "consolidated.safetensors": b"not wanted",
                                     "onnx/model.onnx": b"not wanted", "README.md": b"---\nlicense: mit\n---\n"})
    yield server
    server.close()


@pytest.fixture
def variables(hub, tmp_path):
    (tmp_path / "home").mkdir()
    return hub.environment(tmp_path / "home", PATH=os.environ["PATH"])


@pytest.fixture
def expected(model, tmp_path, rounding):
    """The weights that the same run makes of the folder."""
    return (program.oneshot(model, tmp_path / "expected", *rounding) / "model.safetensors").read_bytes()


def test_download(hub, variables, expected, results, rounding, model):
    """Only what is needed; afterwards the cache has it."""
    program.fails("inspect", "org/name", env=variables, fragments=["'org/name' is neither a directory", "add --download, or: hf download"])
    out = program.oneshot("org/name", results / "out", "--download", *rounding, env=variables)
    assert (out / "model.safetensors").read_bytes() == expected
    assert hub.fetched() == {file.name for file in model.iterdir()} | {"README.md"}
    card = (out / "README.md").read_text()
    assert 'base_model: "org/name"' in card and 'license: "mit"' in card
    hub.requests.clear()
    program.run("inspect", "org/name", "--download", env=variables)
    assert hub.fetched() == set() and hub.requests
    hub.requests.clear()
    program.run("inspect", "org/name@main", env=variables)
    assert hub.requests == []


def test_offline(hub, variables):
    """Where the cache has all, nobody is asked."""
    offline = variables | {"HF_HUB_OFFLINE": "1"}
    program.fails("inspect", "org/name", "--download", env=offline,
                  fragments=["[hub.download] org/name: HF_HUB_OFFLINE is set, and the cache does not have it; unset it"])
    program.run("inspect", "org/name", "--download", env=variables)
    hub.requests.clear()
    program.run("inspect", "org/name", "--download", env=offline)
    assert hub.requests == []
    [weights] = Path(variables["HF_HUB_CACHE"]).glob("*/snapshots/*/model.safetensors")
    weights.unlink()
    program.fails("inspect", "org/name", "--download", env=offline,
                  fragments=["HF_HUB_OFFLINE is set, and has neither model.safetensors nor model.safetensors.index.json"])


@pytest.mark.nightly
def test_shards(hub, variables, model):
    """Of weights in several files, those that the index names."""
    import json

    from safetensors.torch import load_file, save

    tensors = load_file(model / "model.safetensors")
    halves = [dict(list(tensors.items())[part::2]) for part in (0, 1)]
    files = {name: content for name, content in hub.models["org/name"].items() if name != "model.safetensors"}
    files |= {f"model-{part}.safetensors": save(half) for part, half in enumerate(halves)}
    index = {"weight_map": {name: f"model-{part}.safetensors" for part, half in enumerate(halves) for name in half}}
    hub.models["org/shards"] = files | {"model.safetensors.index.json": json.dumps(index).encode()}
    program.run("inspect", "org/shards", "--download", env=variables)
    assert {"model-0.safetensors", "model-1.safetensors", "model.safetensors.index.json"} <= hub.fetched()
    assert not hub.fetched() & {"consolidated.safetensors", "pytorch_model.bin"}
    hub.models["org/lost"] = {name: content for name, content in hub.models["org/shards"].items() if name != "model-1.safetensors"}
    program.fails("inspect", "org/lost", "--download", env=variables, fragments=["[hub.download] org/lost", "names 'model-1.safetensors'"])
    hub.models["org/bin"] = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    program.fails("inspect", "org/bin", "--download", env=variables, fragments=["[hub.download] org/bin", "pytorch_model.bin", "safetensors"])


def test_broken_connection_goes_on(hub, variables):
    """A large file goes on where its connection broke."""
    content = bytes(range(256)) * (24 << 12)
    hub.models["org/name"]["tokenizer.model"] = content
    hub.faults[r"GET .*tokenizer\.model"] = "cut"
    program.run("inspect", "org/name", "--download", env=variables)
    [(name, first)] = hub.ranges
    assert name == "tokenizer.model" and 0 < first <= len(content) // 2
    [cached] = Path(variables["HF_HUB_CACHE"]).glob("*/snapshots/*/tokenizer.model")
    assert cached.read_bytes() == content


def test_broken_download_is_continued(hub, variables, expected, results, rounding):
    """The same command fetches what is missing, and nothing twice."""
    hub.faults[r"GET .*model\.safetensors"] = 500
    command = ["org/name", "--output", results / "out", "--download", *rounding]
    outcome = program.fails("oneshot", *command, env=variables,
                            fragments=["[hub.download] org/name: the hub answered 500", "the same command fetches the rest"])
    assert TOKEN not in outcome.errors and list(results.iterdir()) == []
    hub.faults.clear()
    hub.requests.clear()
    program.run("oneshot", *command, env=variables)
    assert hub.fetched() == {"model.safetensors"}
    assert (results / "out" / "model.safetensors").read_bytes() == expected


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_damaged_download_is_fetched_again(file, hub, variables, expected, results, rounding):
    """The right number of bytes, one of which is another."""
    hub.faults[rf"GET .*/{file.replace('.', '[.]')}"] = "damaged"
    command = ["org/name", "--output", results / "out", "--download", *rounding]
    program.fails("oneshot", *command, env=variables, fragments=[f"[hub.download] org/name: {file} arrived damaged", "fetches it again"])
    assert list(results.iterdir()) == []
    program.run("oneshot", *command, env=variables)
    assert (results / "out" / "model.safetensors").read_bytes() == expected


@pytest.mark.parametrize("file", ["LICENSE", "config.json"])
def test_a_header_that_leads_out_of_the_cache(file, hub, variables, refused, rounding, tmp_path):
    """Nothing is written, read or removed outside."""
    victim = tmp_path / "victim.txt"
    victim.write_text("mine")
    hub.models["org/name"]["LICENSE"] = b"text"
    hub.etags[file] = str(victim)
    refused("org/name", "--download", *rounding, env=variables, fragments=["[hub.download] org/name", "does not answer as a hub does"])
    assert victim.read_text() == "mine" and [path.name for path in tmp_path.iterdir() if path.is_file()] == ["victim.txt"]


@pytest.mark.parametrize("name, fault, fragments", [
    ("org/nothing", None, ["[hub.download] org/nothing: the hub has no such model", "hf auth login"]),
    pytest.param("org/name@v9", None, ["[hub.download] org/name@v9: the hub has no such revision"], marks=pytest.mark.nightly),
    ("org/name", 401, ["[hub.download] org/name: the hub answered 401", "access token"]),
    ("org/name", 403, ["[hub.download] org/name: the hub answered 403", "does not permit this"]),
    ("org/name", b"<html>log in</html>", ["[hub.download] org/name: http://127.0.0.1:", "does not answer as a hub does", "check HF_ENDPOINT"]),
    pytest.param("org/name", b"[1]", ["does not answer as a hub does", "check HF_ENDPOINT"], marks=pytest.mark.nightly),
    pytest.param("org/name", b'{"id": "org/name"}', ["does not answer as a hub does"], marks=pytest.mark.nightly),
    pytest.param("org/name", b'{"id": "org/name", "sha": "1", "siblings": [{"rfilename": "config.json", "size": "big"}]}',
                 ["does not answer as a hub does"], marks=pytest.mark.nightly),
])
def test_refused_download(name, fault, fragments, hub, variables, refused, rounding):
    if fault:
        hub.faults[r"GET /api/models/.*"] = fault
    outcome = refused(name, "--download", *rounding, env=variables, fragments=fragments)
    assert TOKEN not in outcome.errors


@pytest.mark.nightly
def test_unreachable_hub(variables, refused, rounding):
    refused("org/name", "--download", *rounding, env={**variables, "HF_ENDPOINT": "http://127.0.0.1:9"},
            fragments=["[hub.download] org/name: the connection to the hub failed"])


@pytest.mark.parametrize("options, private", [([], True), pytest.param(["--push-public"], False, marks=pytest.mark.nightly)])
def test_push(options, private, hub, variables, results, rounding, model):
    summary = results / "summary.json"
    outcome = program.run("oneshot", model, "--output", results / "out", "--push", "me/result", "--summary", summary, *options, *rounding,
                          env=variables)
    assert f"uploaded to {hub.address}/me/result" in outcome.output and hub.address in summary.read_text()
    assert hub.private["me/result"] is private
    uploaded = {name: content for name, content in hub.models["me/result"].items() if name != ".gitattributes"}
    assert uploaded == {file.name: file.read_bytes() for file in (results / "out").iterdir()}
    assert TOKEN not in outcome.output + outcome.errors


@pytest.mark.nightly
def test_a_busy_hub_is_asked_again(hub, variables, results, rounding):
    busy = [r"GET /api/models/org/name.*", r"GET .*/config\.json", r"GET .*/model\.safetensors", r"GET /api/whoami-v2", r"POST /api/repos/create",
            r"POST .*/preupload/main", r"POST .*/commit/main"]
    hub.faults |= dict.fromkeys(busy, "busy")
    out = program.oneshot("org/name", results / "out", "--download", "--push", "me/result", *rounding, env=variables)
    assert hub.faults == {} and hub.models["me/result"]["model.safetensors"] == (out / "model.safetensors").read_bytes()


@pytest.mark.nightly
def test_push_replaces_weights_of_another_layout(hub, variables, results, rounding, model):
    hub.models["me/result"] = {"model-00001-of-00002.safetensors": b"old", "model.safetensors.index.json": b"{}", "notes.md": b"mine",
                               "adapter/adapter_model.safetensors": b"mine"}
    program.oneshot(model, results / "out", "--push", "me/result", *rounding, env=variables)
    names = hub.models["me/result"].keys()
    assert {"model.safetensors", "notes.md", "adapter/adapter_model.safetensors"} <= names
    assert not {"model-00001-of-00002.safetensors", "model.safetensors.index.json"} & names


def test_refused_before_the_work(hub, variables, refused, rounding, model):
    refused(model, "--push", "me/result", *rounding, env={**variables, "HF_TOKEN": "hf_anotherTokenOfSomebody"},
            fragments=["[hub.push] me/result", "401", "nothing was done"])
    refused(model, "--push", "result", *rounding, env=variables, fragments=["--push: 'result'", "ORG/NAME"], code=2)
    refused(model, "--push-public", *rounding, env=variables, fragments=["--push-public requires --push"], code=2)
    without = {name: value for name, value in variables.items() if name != "HF_TOKEN"}
    refused(model, "--push", "me/result", *rounding, env=without, fragments=["no access token", "hf auth login"])


CREATION, COMMIT = r"POST /api/repos/create", r"POST /api/models/me/result/commit/main"


@pytest.mark.parametrize("refused_request", nightly_but([CREATION, COMMIT], CREATION))
def test_refused_upload_leaves_the_output(refused_request, hub, variables, results, rounding, model):
    """The hub's message quotes the request; ours must not repeat the token. --resume uploads only."""
    hub.faults[refused_request] = 401
    hub.models["me/result"] = {}
    command = ["oneshot", model, "--output", results / "out", "--push", "me/result", *rounding]
    if "create" in refused_request:
        del hub.models["me/result"]
    outcome = program.fails(*command, env=variables, fragments=["[hub.push] me/result", "the output is complete in", "--resume"])
    assert TOKEN not in outcome.errors + outcome.output
    weights = results / "out" / "model.safetensors"
    before = weights.stat()
    hub.faults.clear()
    outcome = program.run(*command, "--resume", env=variables)
    assert "already complete" in outcome.output and "uploaded to" in outcome.output
    assert hub.models["me/result"]["model.safetensors"] == weights.read_bytes() and weights.stat().st_mtime_ns == before.st_mtime_ns
