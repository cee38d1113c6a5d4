#include "layerpress/checkpoint/strict_json.h"

namespace layerpress::checkpoint {

Json parse_strict_json(std::string_view text, const std::string& where) {
  return parse_json(text, where, {.most_levels = 32, .on_repeated_key = [&](const std::string& key) {
                                    throw CheckpointError("[json] {}: {} appears twice", where, in_quotes(key));
                                  }});
}

std::string in_quotes(std::string_view name) {
  constexpr std::size_t kLongest = 200;
  std::string text = "'";
  for (const char character : name.substr(0, kLongest)) {
    const auto code = static_cast<unsigned char>(character);
    text += code < 0x20 || code == 0x7f ? '?' : character;
  }
  return text + (name.size() > kLongest ? "...'" : "'");
}

}  // namespace layerpress::checkpoint
