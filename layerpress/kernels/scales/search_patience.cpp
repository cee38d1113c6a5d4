#include "layerpress/kernels/scales/search_patience.h"

namespace layerpress::kernels {

std::size_t candidates_within(const Improving& improving, int patience) {
  std::size_t last = 0;  // the last that improved something; the first one always does
  for (std::size_t c = 1; c < improving.size(); ++c) {
    if (improving[c] != 0)
      last = c;
    else if (c - last >= static_cast<std::size_t>(patience))
      return last + 1;
  }
  return improving.size();
}

ChosenScales search_with_patience(const at::Tensor& weight, const ScaleSearch& search,
                                  const std::vector<OtherRows>& others, const Attempt& attempt) {
  const bool may_stop = search.patience > 0 && static_cast<std::size_t>(search.patience) < search.shrink.size();
  Improving improving(may_stop ? search.shrink.size() : 0, 0);
  ChosenScales chosen = attempt(weight, search, improving);
  if (!may_stop) return chosen;
  std::size_t within = candidates_within(improving, search.patience);
  for (const OtherRows& rows : others) {
    if (within == improving.size()) break;
    attempt(rows(), search, improving);
    within = candidates_within(improving, search.patience);
  }
  if (within == improving.size()) return chosen;
  ScaleSearch shorter = search;
  shorter.shrink.resize(within);
  Improving nobody;
  return attempt(weight, shorter, nobody);
}

}  // namespace layerpress::kernels
