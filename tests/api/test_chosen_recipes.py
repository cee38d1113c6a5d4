"""mixed_precision(): the recipe that oneshot() would choose."""

import pytest
from support.watched_runs import RUN, contents, differing

ARGUMENTS = {"schemes": ["W4A16", "W8A16"], "target_bits": 6, "group_size": 32, "dtype": "float32"}


def test_recipe_of_a_choice(model, samples, tmp_path):
    import layerpress

    chosen = layerpress.mixed_precision(model, dataset=samples, **ARGUMENTS)
    assert chosen.bits <= 6 and {own["scheme"] for own in chosen.schemes} == {"W4A16", "W8A16"}
    assert "W8A16" in str(chosen) and "<td>W4A16</td>" in chosen._repr_html_().replace(" style='text-align:left'", "")
    common = {"dataset": samples, "dtype": "float32", "progress": False}
    layerpress.oneshot(model, recipe=chosen, output_dir=tmp_path / "by-recipe", **common)
    layerpress.oneshot(model, recipe=chosen.recipe, output_dir=tmp_path / "by-text", **common)
    summary = layerpress.oneshot(model, output_dir=tmp_path / "at-once", **ARGUMENTS, dataset=samples, progress=False)
    assert summary.details["mixed_precision"]["recipe"] == chosen.recipe
    expected = contents(tmp_path / "at-once")
    assert contents(tmp_path / "by-recipe") == contents(tmp_path / "by-text")
    assert differing(tmp_path / "by-text", expected, ignored=["README.md", RUN]) == []


def test_refused_arguments(model, samples):
    import layerpress

    with pytest.raises(layerpress.UsageError, match="schemes= requires target_bits= or target_size="):
        layerpress.mixed_precision(model, dataset=samples, schemes=["W4A16"])
    with pytest.raises(layerpress.UsageError, match="target_bit: there is no such argument.*did you mean target_bits"):
        layerpress.mixed_precision(model, dataset=samples, schemes=["W4A16"], target_bit=5)
