"""docs/support.md's tables of LLM Compressor's names: each of its names has one row, which is true (peer_names.json: record_names.py)."""

import json

import pytest
from support import program

PEER = json.loads((program.REPOSITORY / "tests" / "conformance" / "peer_names.json").read_text())
COLUMNS = {"modifier": 2, "observer": 3, "scheme": 2, "pipeline": 2, "entry point": 2}


def rows(kind):
    """Of a table: each name with the other cells of its row."""
    found, inside = [], False
    for line in (program.REPOSITORY / "docs" / "support.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] == kind:
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|---"):
            assert len(cells) == COLUMNS[kind], line
            found += [(name.strip("`"), cells[1:]) for name in cells[0].split(", ")]
    return found


TABLES = {kind: dict(rows(kind)) for kind in COLUMNS}


@pytest.mark.parametrize("kind", COLUMNS)
def test_each_name_has_one_row(kind):
    assert sorted(name for name, _ in rows(kind)) == sorted(PEER[kind])
    assert PEER["llmcompressor"] in (program.REPOSITORY / "requirements-peer.txt").read_text()
    assert PEER["llmcompressor"] in (program.REPOSITORY / "docs" / "support.md").read_text()


def takes(name, **arguments):
    import layerpress.modifiers

    import layerpress

    try:
        getattr(layerpress.modifiers, name)(**arguments)
    except layerpress.RecipeError:
        return False
    return True


#: arguments that a modifier needs
NEEDED = {"REAPPruningModifier": {"sparsity": 0.5},
          "QuantizationModifier": {"scheme": "W4A16"}, "GPTQModifier": {"scheme": "W4A16"}, "AutoRoundModifier": {"scheme": "W4A16"},
          "SparseGPTModifier": {"sparsity": 0.5}, "WandaPruningModifier": {"sparsity": 0.5},
          "MagnitudePruningModifier": {"targets": "Linear", "init_sparsity": 0.1, "final_sparsity": 0.5},
          "ConstantPruningModifier": {"targets": "Linear"}}


@pytest.mark.parametrize("name", TABLES["modifier"])
def test_modifiers(name):
    assert takes(name, **NEEDED.get(name, {})) != TABLES["modifier"][name][0].startswith("refused")


@pytest.mark.parametrize("name", TABLES["observer"])
def test_observers(name):
    of_weights, of_inputs = (not cell.startswith("refused") for cell in TABLES["observer"][name])
    weights = {"num_bits": 8, "strategy": "channel"}
    assert takes("QuantizationModifier", config_groups={"a": {"targets": ["Linear"], "weights": {**weights, "observer": name}}}) == of_weights
    inputs = {"num_bits": 8, "strategy": "tensor", "observer": name}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    assert takes("QuantizationModifier", config_groups={"a": group}) == of_inputs


@pytest.mark.parametrize("name", TABLES["scheme"])
def test_schemes(name):
    assert takes("QuantizationModifier", scheme=name) != TABLES["scheme"][name][0].startswith("refused")


@pytest.mark.parametrize("name", TABLES["entry point"])
def test_entry_points(name):
    import layerpress

    assert hasattr(layerpress, name) != TABLES["entry point"][name][0].startswith("not there")


@pytest.mark.parametrize("name", TABLES["pipeline"])
def test_pipelines(name, model, tmp_path):
    outcome = program.run("plan", model, "--algorithm", "rtn", "--scheme", "W8A16", "--pipeline", name, code=None)
    assert "--pipeline" not in outcome.errors, outcome.errors
