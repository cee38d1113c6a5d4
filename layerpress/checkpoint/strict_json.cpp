#include "layerpress/checkpoint/strict_json.h"

#include <set>
#include <vector>

namespace layerpress::checkpoint {

Json parse_strict_json(std::string_view text, const std::string& where) {
  constexpr int kMaximumDepth = 32;
  std::vector<std::set<std::string>> open_objects;  // the keys seen so far of each object around the current position
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaximumDepth) throw CheckpointError("[json] {}: nested deeper than {} levels", where, kMaximumDepth);
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second)
        throw CheckpointError("[json] {}: {} stands twice", where, in_quotes(key));
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), check);
  } catch (const Json::parse_error& error) {
    throw CheckpointError("[json] {}: not valid JSON at byte {}", where, error.byte);
  } catch (const Json::exception&) {
    throw CheckpointError("[json] {}: holds a number that is out of range", where);
  }
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
