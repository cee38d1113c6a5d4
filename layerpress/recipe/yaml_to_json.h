#pragma once

#include <string>

#include "layerpress/base/json.h"

namespace layerpress::recipe {

/// A YAML document as JSON, with members in file order. Plain scalars become null, bool, integer or float by the YAML
/// 1.1 rules of PyYAML (yes/no/on/off are bools, 010 is eight, 1_000 is a thousand). Exceptions: 1e-3 is a float as in
/// JSON, and times stay strings. Quoted scalars stay strings; anchors, aliases and merge keys (<<) work. Throws
/// RecipeError `[recipe.yaml] where, line n: ...` for a syntax error, a second document, a duplicate or compound key,
/// an unknown tag, a number that does not fit, nesting deeper than 50 levels, more than 100,000 nodes.
OrderedJson yaml_to_json(const std::string& text, const std::string& where);

}  // namespace layerpress::recipe
