#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "layerpress/kernels/scales/scale_search.h"

namespace layerpress::kernels {

/// For each candidate, whether it was better than all before it for some block; empty if not requested.
using Improving = std::vector<std::uint8_t>;

/// Tries all candidates of a search, whatever its patience, on some rows of a weight, and marks those that are
/// improving.
using Attempt = std::function<ChosenScales(const at::Tensor& rows, const ScaleSearch& search, Improving& improving)>;

/// Candidates that a search with this patience takes into account: those before `patience` in a row that improve
/// nothing.
std::size_t candidates_within(const Improving& improving, int patience);

/// Searches with the patience that the search asks for. All candidates are tried first: of a weight with many blocks
/// one nearly always improves, and then that was all.
ChosenScales search_with_patience(const at::Tensor& weight, const ScaleSearch& search,
                                  const std::vector<OtherRows>& others, const Attempt& attempt);

}  // namespace layerpress::kernels
