#include "layerpress/data/row_slice.h"

#include <charconv>
#include <string_view>
#include <system_error>

#include "layerpress/base/error.h"

namespace layerpress::data {
namespace {

[[noreturn]] void refuse(const std::string& split) {
  throw DataError("[data.split] '{}' is not a valid split of a file; write train or train[10:50], in rows from 0",
                  split);
}

std::optional<std::int64_t> parse_bound(std::string_view text, const std::string& split) {
  if (text.empty()) return std::nullopt;
  std::int64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || value < 0) refuse(split);
  return value;
}

}  // namespace

RowSlice parse_row_slice(const std::string& split) {
  const std::string_view text = split;
  const auto open = text.find('[');
  if (open == std::string_view::npos) {
    if (text.find_first_of("]+") != std::string_view::npos) refuse(split);
    return {};
  }
  const std::string_view inside = text.substr(open + 1);
  const auto colon = inside.find(':');
  if (colon == std::string_view::npos || !inside.ends_with(']')) refuse(split);
  RowSlice slice;
  slice.start = parse_bound(inside.substr(0, colon), split).value_or(0);
  slice.stop = parse_bound(inside.substr(colon + 1, inside.size() - colon - 2), split);
  return slice;
}

}  // namespace layerpress::data
