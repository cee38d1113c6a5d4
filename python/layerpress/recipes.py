"""Recipes in all the forms that LLM Compressor takes, as the text or the path that the program reads."""

from __future__ import annotations

import json
import os
from typing import Any, Iterator, Mapping, Optional

from .errors import RecipeError
from .modifiers import Modifier
from .reports import MixedPrecision


class Recipe:
    """A recipe in one of the forms that oneshot() takes."""

    def __init__(self, recipe: Any):
        self.recipe = recipe

    @classmethod
    def create_instance(cls, recipe: Any) -> Recipe:
        """Of a path, YAML or JSON text, or modifiers."""
        return recipe if isinstance(recipe, Recipe) else cls(recipe)

    @classmethod
    def from_modifiers(cls, modifiers: Any) -> Recipe:
        return cls(modifiers)


def recipe_text(recipe: Any) -> Optional[str]:
    """A path, YAML or JSON text as it is; a mapping and modifiers as JSON, in their order; the recipe of a MixedPrecision."""
    if isinstance(recipe, Recipe):
        return recipe_text(recipe.recipe)
    if isinstance(recipe, MixedPrecision):
        return recipe["recipe"]
    if recipe is None:
        return None
    if isinstance(recipe, (str, os.PathLike)):
        if not os.fspath(recipe):
            raise RecipeError("[python.recipe] the text is empty: nothing would be done; pass None for the default scheme")
        return os.fspath(recipe)
    if isinstance(recipe, Mapping):
        try:
            return json.dumps(recipe)
        except TypeError as fault:
            raise RecipeError(f"[python.recipe] the mapping is no JSON ({fault}): pass modifiers, or plain values") from None
    # A mapping holds a type once, so that each modifier has a group of its own.
    groups = {f"group_{index}_modifiers": {modifier.type_of_recipe: modifier.arguments}
              for index, modifier in enumerate(_flat(recipe))}
    if not groups:
        raise RecipeError("[python.recipe] the list of modifiers is empty: nothing would be done")
    return json.dumps({"default_stage": groups})


def _flat(recipe: Any) -> Iterator[Modifier]:
    if isinstance(recipe, Modifier):
        yield recipe
    elif isinstance(recipe, (list, tuple)):
        for entry in recipe:
            yield from _flat(entry)
    else:
        module = type(recipe).__module__.split(".")[0]
        hint = "import it from layerpress.modifiers" if module == "llmcompressor" else "pass modifiers, a path or YAML text"
        raise RecipeError(f"[python.recipe] {type(recipe).__name__} is no modifier of layerpress; {hint}")
