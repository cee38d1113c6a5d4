#include "layerpress/base/json.h"

#include "layerpress/base/file.h"

namespace layerpress {

Json parse_json(std::string_view text, const std::string& where) {
  constexpr int kMaximumDepth = 200;  // a recursive reader of hostile nesting would overflow the stack
  const auto limit_depth = [&](int depth, nlohmann::json::parse_event_t, Json&) {
    if (depth > kMaximumDepth) throw CheckpointError("[json] {}: nested deeper than {} levels", where, kMaximumDepth);
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), limit_depth);
  } catch (const nlohmann::json::parse_error& error) {
    throw CheckpointError("[json] {}: not valid JSON at byte {}", where, error.byte);
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError("[json] {}: not valid JSON: a number is out of range", where);
  }
}

Json read_json_file(const std::filesystem::path& path) { return parse_json(read_text_file(path), path.string()); }

}  // namespace layerpress
