#pragma once

#include <variant>

#include "layerpress/graph/operations/attention.h"
#include "layerpress/graph/operations/elementwise.h"
#include "layerpress/graph/operations/experts.h"
#include "layerpress/graph/operations/images.h"
#include "layerpress/graph/operations/imported.h"
#include "layerpress/graph/operations/layout.h"
#include "layerpress/graph/operations/linears.h"
#include "layerpress/graph/operations/norms.h"
#include "layerpress/graph/operations/rounding.h"

namespace layerpress::graph {

/// Families of nodes as one.
template <typename... Families>
struct FamilyList;
template <typename... Kinds>
struct FamilyList<Family<Kinds...>> {
  using AnyKind = std::variant<Kinds...>;
};
template <typename... Kinds, typename... Others, typename... Rest>
struct FamilyList<Family<Kinds...>, Family<Others...>, Rest...> : FamilyList<Family<Kinds..., Others...>, Rest...> {};

/// All of them. Each has a file in graph/operations and one in execution/operations.
using AllFamilies = FamilyList<Linears, Norms, Attentions, Elementwise, Layouts, ExpertOperations, ImageOperations,
                               Roundings, ImportedOperations>;

/// One operation of any kind.
using Operation = AllFamilies::AnyKind;

const char* kind_name(const Operation& operation);
WeightUses weights_of(const Operation& operation);

}  // namespace layerpress::graph
