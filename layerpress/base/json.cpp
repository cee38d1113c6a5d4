#include "layerpress/base/json.h"

#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "layerpress/base/file.h"

namespace layerpress {
namespace {

/// Checks a text before it is parsed. The library's own callback for this takes time quadratic in the number of an
/// object's members, and headers have tens of thousands.
class Inspector : public nlohmann::json_sax<Json> {
 public:
  Inspector(const std::string& where, const JsonRules& rules, std::size_t size)
      : where_(where), rules_(rules), size_(size) {}

  bool null() override { return count(); }
  bool boolean(bool) override { return count(); }
  bool number_integer(Json::number_integer_t) override { return count(); }
  bool number_unsigned(Json::number_unsigned_t) override { return count(); }
  bool number_float(Json::number_float_t, const Json::string_t&) override { return count(); }
  bool string(Json::string_t&) override { return count(); }
  bool binary(Json::binary_t&) override { return count(); }
  bool start_object(std::size_t) override {
    if (rules_.on_repeated_key) keys_.emplace_back();
    return enter();
  }
  bool key(Json::string_t& name) override {
    if (rules_.on_repeated_key && !keys_.back().insert(name).second) rules_.on_repeated_key(name);
    return true;
  }
  bool end_object() override {
    if (rules_.on_repeated_key) keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t byte, const std::string&, const nlohmann::detail::exception& error) override {
    constexpr int kNumberOutOfRange = 406;
    if (error.id == kNumberOutOfRange)
      throw CheckpointError("[json] {}: not valid JSON: a number is out of range", where_);
    if (byte > size_)
      throw CheckpointError("[json] {}: not valid JSON: it ends at byte {}, before it is complete", where_, size_);
    throw CheckpointError("[json] {}: not valid JSON at byte {}", where_, byte);
  }

 private:
  bool count() {
    if (++values_ > rules_.most_values)
      throw CheckpointError("[json] {}: more than {} values", where_, rules_.most_values);
    return true;
  }
  bool enter() {
    count();
    // Deeply nested hostile input would overflow the stack of a recursive parser.
    if (++depth_ > rules_.most_levels)
      throw CheckpointError("[json] {}: nested deeper than {} levels", where_, rules_.most_levels);
    return true;
  }
  const std::string& where_;
  const JsonRules& rules_;
  const std::size_t size_;
  int depth_ = 0;
  std::size_t values_ = 0;
  std::vector<std::set<std::string>> keys_;  // of the enclosing objects
};

}  // namespace

Json parse_json(std::string_view text, const std::string& where, const JsonRules& rules) {
  Inspector inspector(where, rules, text.size());
  Json::sax_parse(text.begin(), text.end(), &inspector);
  return Json::parse(text.begin(), text.end());
}

Json read_json_file(const std::filesystem::path& path, std::uint64_t limit) {
  return parse_json(read_text_file(path, limit), path.string());
}

std::string shortened(const Json& value) {
  return value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 80);
}

std::int64_t json_integer(const Json& value) {
  constexpr double kBeyond = 9223372036854775808.0;  // 2^63
  if (value.is_number_unsigned() && std::in_range<std::int64_t>(value.get<std::uint64_t>()))
    return value.get<std::int64_t>();
  if (value.is_number_integer() && !value.is_number_unsigned()) return value.get<std::int64_t>();
  if (value.is_number_float())
    if (const auto number = value.get<double>(); number == std::trunc(number) && std::abs(number) < kBeyond)
      return static_cast<std::int64_t>(number);
  throw CheckpointError("[json] {} is not an integer of 64 bits", shortened(value));
}

std::vector<std::int64_t> json_integers(const Json& list) {
  if (!list.is_array()) throw CheckpointError("[json] a list of integers is missing");
  std::vector<std::int64_t> numbers;
  for (const Json& value : list) numbers.push_back(json_integer(value));
  return numbers;
}

}  // namespace layerpress
