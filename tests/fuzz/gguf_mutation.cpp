#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "layerpress/base/error.h"
#include "layerpress/gguf/container/file.h"
#include "tests/fuzz/dice.h"
#include "tests/fuzz/mutation.h"

namespace layerpress::fuzz {
namespace {

template <typename T>
void change_value(T& value, Dice& dice) {
  if constexpr (std::is_same_v<T, std::string>) {
    value = dice() % 2 == 0 ? value.substr(0, value.size() / 2)
                            : one_of(std::vector<std::string>{"", "llama", "gpt2", "x\x1b"}, dice);
  } else if constexpr (std::is_arithmetic_v<T>) {
    value = static_cast<T>(dice() % 2 == 0 ? one_of(integers(), dice) % 1000 : one_of(integers(), dice));
  } else if (value.empty() || dice() % 3 == 0) {
    value.resize(value.size() + 1);
  } else if (dice() % 2 == 0) {
    value.pop_back();
  } else {
    typename T::value_type element = value[below(value.size(), dice)];
    change_value(element, dice);
    value[below(value.size(), dice)] = element;
  }
}

void change_pairs(gguf::Metadata& metadata, Dice& dice) {
  auto& pair = metadata[below(metadata.size(), dice)];
  switch (below(5, dice)) {
    case 0:
      pair.second = metadata[below(metadata.size(), dice)].second;
      break;
    case 1:
      std::swap(pair, metadata.back());
      metadata.pop_back();
      break;
    default:
      std::visit([&](auto& value) { change_value(value, dice); }, pair.second);
  }
}

void change_tensors(std::vector<gguf::TensorInfo>& tensors, Dice& dice) {
  gguf::TensorInfo& tensor = tensors[below(tensors.size(), dice)];
  const gguf::TensorInfo& other = tensors[below(tensors.size(), dice)];
  switch (below(5, dice)) {
    case 0:
      tensor.name = other.name;
      break;
    case 1:
      tensor.shape = other.shape;
      break;
    case 2:
      tensor.type = other.type;
      break;
    case 3:
      tensor.shape[below(tensor.shape.size(), dice)] = 1 + static_cast<std::int64_t>(below(300, dice));
      break;
    default:
      std::swap(tensor.shape.front(), tensor.shape.back());
  }
}

}  // namespace

std::string changed_gguf(std::string_view input, unsigned int seed) {
  if (!input.starts_with("GGUF")) return "";
  Dice dice(seed);
  try {
    gguf::FileHeader header =
        gguf::read_header(reinterpret_cast<const std::byte*>(input.data()), input.size(), "input");
    if (!header.metadata.empty() && dice() % 3 != 0) change_pairs(header.metadata, dice);
    if (!header.tensors.empty() && dice() % 3 == 0) change_tensors(header.tensors, dice);
    std::string changed = gguf::file_header(header.metadata, header.tensors);
    const std::string_view data = input.substr(std::min<std::size_t>(header.data, input.size()));
    changed.append(data);
    // What became larger needs more data.
    std::uint64_t end = 0;
    for (const gguf::TensorInfo& tensor : header.tensors) end = std::max(end, tensor.offset + tensor.nbytes());
    constexpr std::uint64_t kMostData = 1 << 16;
    if (end > data.size() && end < kMostData && dice() % 4 != 0) changed.append(end - data.size(), '\x3c');
    return changed;
  } catch (const Error&) {
    return "";
  }
}

}  // namespace layerpress::fuzz
