// The operations of a group that are composed of other operations.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "layerpress/dist/group.h"

namespace layerpress::dist {

std::vector<std::string> Group::all_gather_text(const std::string& own) {
  if (size() == 1) return {own};
  std::int64_t longest = 0;
  const at::Tensor length = at::full({1}, static_cast<std::int64_t>(own.size()), at::kLong);
  const std::vector<at::Tensor> lengths = all_gather(length);
  for (const at::Tensor& other : lengths) longest = std::max(longest, other.item<std::int64_t>());
  const at::Tensor padded = at::zeros({std::max<std::int64_t>(longest, 1)}, at::kByte);
  std::memcpy(padded.data_ptr<std::uint8_t>(), own.data(), own.size());
  const std::vector<at::Tensor> gathered = all_gather(padded);
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < gathered.size(); ++r)
    texts.emplace_back(reinterpret_cast<const char*>(gathered[r].const_data_ptr<std::uint8_t>()),
                       static_cast<std::size_t>(lengths[r].item<std::int64_t>()));
  return texts;
}

std::string Group::broadcast_text(const std::string& own, int root) {
  if (size() == 1) return own;
  const at::Tensor length = at::full({1}, static_cast<std::int64_t>(own.size()), at::kLong);
  broadcast(length, root);
  const auto size = length.item<std::int64_t>();
  const at::Tensor text = at::zeros({std::max<std::int64_t>(size, 1)}, at::kByte);
  if (rank() == root) std::memcpy(text.data_ptr<std::uint8_t>(), own.data(), own.size());
  broadcast(text, root);
  return {reinterpret_cast<const char*>(text.const_data_ptr<std::uint8_t>()), static_cast<std::size_t>(size)};
}

void Group::barrier() { all_reduce(at::zeros({1}, at::kInt)); }

}  // namespace layerpress::dist
