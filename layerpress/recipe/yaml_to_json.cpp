#include "layerpress/recipe/yaml_to_json.h"

#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "layerpress/base/error.h"
#include "layerpress/base/text.h"

namespace layerpress::recipe {
namespace {

constexpr int kDeepest = 50;
constexpr std::size_t kMostNodes =
    100'000;  // counts repetitions by aliases, so that a short file cannot become a huge recipe

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

bool is_null(std::string_view text) { return is_one_of(text, {"", "~", "null", "Null", "NULL"}); }

std::optional<bool> as_bool(std::string_view text) {
  if (is_one_of(text, {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})) return true;
  if (is_one_of(text, {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})) return false;
  return std::nullopt;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// The digits of an integer without sign, prefix and underscores, and their base.
struct IntegerText {
  std::string digits;
  int base = 10;
};

std::optional<IntegerText> integer_text(std::string_view text) {
  if (text.empty() || !is_digit(text[0])) return std::nullopt;
  IntegerText number;
  if (text.starts_with("0x"))
    number.base = 16;
  else if (text.starts_with("0b"))
    number.base = 2;
  else if (text.size() > 1 && text[0] == '0')
    number.base = 8;
  text.remove_prefix(number.base == 16 || number.base == 2 ? 2 : number.base == 8 ? 1 : 0);
  std::copy_if(text.begin(), text.end(), std::back_inserter(number.digits), [](char c) { return c != '_'; });
  const auto fits = [&](char c) {
    return number.base == 16 ? std::isxdigit(static_cast<unsigned char>(c)) != 0 : is_digit(c) && c - '0' < number.base;
  };
  if (number.digits.empty() || !std::all_of(number.digits.begin(), number.digits.end(), fits)) return std::nullopt;
  return number;
}

/// True for [digits][.digits][e[sign]digits] with a digit and a point or an exponent.
bool looks_like_float(std::string_view text) {
  std::size_t i = 0;
  const auto digits = [&] {
    const std::size_t begin = i;
    while (i < text.size() && is_digit(text[i])) ++i;
    return i - begin;
  };
  std::size_t mantissa = digits();
  const bool point = i < text.size() && text[i] == '.';
  if (point) {
    ++i;
    mantissa += digits();
  }
  if (mantissa == 0) return false;
  if (i == text.size()) return point;
  if (text[i] != 'e' && text[i] != 'E') return false;
  ++i;
  if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
  return digits() > 0 && i == text.size();
}

/// LLM Compressor writes its recipe with a dumper for Python objects. A word of one of compressed-tensors' enumerations
/// can appear as `!!python/object/apply:…ActivationOrdering [static]`. No other object is read.
bool is_library_word(const YAML::Node& node) {
  constexpr std::string_view kBegin =
      "tag:yaml.org,2002:python/object/apply:compressed_tensors.quantization.quant_args.";
  const std::string_view tag = node.Tag();
  return tag.starts_with(kBegin) &&
         is_one_of(tag.substr(kBegin.size()),
                   {"ActivationOrdering", "DynamicType", "QuantizationStrategy", "QuantizationType"}) &&
         node.IsSequence() && node.size() == 1 && node[0].IsScalar();
}

/// The same dumper writes SmoothQuant's mappings as tuples.
bool is_tuple(const YAML::Node& node) { return node.IsSequence() && node.Tag() == "tag:yaml.org,2002:python/tuple"; }

class Converter {
 public:
  explicit Converter(const std::string& where) : where_(where) {}

  OrderedJson convert(const YAML::Node& node, int depth) {
    if (depth > kDeepest) refuse(node, fmt::format("nested deeper than {} levels", kDeepest));
    if (++nodes_ > kMostNodes) refuse(node, fmt::format("more than {} values, counting aliases", kMostNodes));
    if (is_library_word(node)) return scalar(node[0]);
    if (!node.IsScalar() && !is_tuple(node) &&
        !is_one_of(node.Tag(), {"", "?", "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}))
      refuse(node, fmt::format("unknown tag '{}'; remove it", node.Tag()));
    switch (node.Type()) {
      case YAML::NodeType::Map:
        return mapping(node, depth);
      case YAML::NodeType::Sequence:
        return sequence(node, depth);
      case YAML::NodeType::Scalar:
        return scalar(node);
      default:
        return nullptr;
    }
  }

 private:
  [[noreturn]] void refuse(const YAML::Node& node, const std::string& what) const {
    throw RecipeError("[recipe.yaml] {}, line {}: {}", where_, node.Mark().line + 1, what);
  }

  OrderedJson sequence(const YAML::Node& node, int depth) {
    OrderedJson list = OrderedJson::array();
    for (const YAML::Node& item : node) list.push_back(convert(item, depth + 1));
    return list;
  }

  OrderedJson mapping(const YAML::Node& node, int depth) {
    OrderedJson object = OrderedJson::object();
    std::vector<OrderedJson> merged;
    for (const auto& item : node) {
      if (!item.first.IsScalar()) refuse(item.first, "a key must be a name");
      const std::string key = item.first.Scalar();
      OrderedJson value = convert(item.second, depth + 1);
      if (key == "<<" && item.first.Tag() == "?") {
        collect_merge(item.second, std::move(value), merged);
        continue;
      }
      if (object.contains(key)) refuse(item.first, fmt::format("key '{}' appears twice; keep one", key));
      object[key] = std::move(value);
    }
    // A key of the mapping itself takes precedence over a merged one, and an earlier merge over a later one.
    for (const OrderedJson& other : merged)
      for (const auto& [key, value] : other.items())
        if (!object.contains(key)) object[key] = value;
    return object;
  }

  void collect_merge(const YAML::Node& node, OrderedJson value, std::vector<OrderedJson>& merged) const {
    if (value.is_object()) value = OrderedJson::array({std::move(value)});
    if (!value.is_array()) refuse(node, "<< merges mappings only");
    for (OrderedJson& item : value) {
      if (!item.is_object()) refuse(node, "<< merges mappings only");
      merged.push_back(std::move(item));
    }
  }

  OrderedJson scalar(const YAML::Node& node) const {
    const std::string& text = node.Scalar();
    const std::string& tag = node.Tag();
    if (tag == "!" || tag == "tag:yaml.org,2002:str") return text;
    const bool typed = tag.starts_with("tag:yaml.org,2002:") &&
                       is_one_of(std::string_view(tag).substr(18), {"int", "float", "bool", "null"});
    if (!tag.empty() && tag != "?" && !typed) refuse(node, fmt::format("unknown tag '{}'; remove it", tag));
    if (is_null(text)) return nullptr;
    if (const std::optional<bool> value = as_bool(text)) return *value;
    return number_or_text(node, text);
  }

  OrderedJson number_or_text(const YAML::Node& node, const std::string& text) const {
    const bool negative = text[0] == '-';
    const std::string_view magnitude = std::string_view(text).substr(negative || text[0] == '+' ? 1 : 0);
    if (is_one_of(magnitude, {".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN"})) refuse(node, "numbers must be finite");
    if (const std::optional<IntegerText> number = integer_text(magnitude))
      return integer(node, text, *number, negative);
    std::string digits;
    std::copy_if(magnitude.begin(), magnitude.end(), std::back_inserter(digits), [](char c) { return c != '_'; });
    if (!looks_like_float(digits) || magnitude[0] == '_') return text;
    double value = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (result.ec != std::errc()) refuse(node, fmt::format("number {} does not fit a double", text));
    return negative ? -value : value;
  }

  OrderedJson integer(const YAML::Node& node, const std::string& text, const IntegerText& number, bool negative) const {
    std::int64_t value = 0;
    const std::string digits = (negative ? "-" : "") + number.digits;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value, number.base);
    if (result.ec != std::errc()) refuse(node, fmt::format("number {} does not fit 64 bits", text));
    return value;
  }

  const std::string& where_;
  std::size_t nodes_ = 0;
};

/// Where a document's content begins, without making anything of it.
class DocumentFacts : public YAML::EventHandler {
 public:
  bool is_null = true;
  YAML::Mark begin = YAML::Mark::null_mark();

  void OnDocumentStart(const YAML::Mark& mark) override { begin = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { note(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t, const std::string&) override { note(mark); }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    note(mark);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    note(mark);
  }
  void OnMapEnd() override {}

 private:
  void note(const YAML::Mark& mark) {
    if (is_null) begin = mark;
    is_null = false;
  }
};

/// Throws if the text has more than one document. At a bracket that closes nothing, yaml-cpp begins empty documents without end.
void require_one_document(const std::string& text, const std::string& where) {
  constexpr int kMostDocuments = 16;
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  for (int count = 0;; ++count) {
    DocumentFacts facts;
    if (!parser.HandleNextDocument(facts)) return;
    if (count > 0 && !facts.is_null)
      throw RecipeError("[recipe.yaml] {}, line {}: a second document begins; keep one recipe per file", where,
                        facts.begin.line + 1);
    if (count == kMostDocuments)
      throw RecipeError(
          "[recipe.yaml] {}, line {}: a bracket closes nothing, or many documents begin; correct the YAML there", where,
          facts.begin.line + 1);
  }
}

}  // namespace

OrderedJson yaml_to_json(const std::string& text, const std::string& where) {
  if (!is_utf8(text)) throw RecipeError("[recipe.yaml] {}: is not UTF-8; save it as UTF-8", where);
  YAML::Node document;
  try {
    // The end marker lets yaml-cpp detect an unclosed quote.
    const std::string whole = text + "\n...\n";
    require_one_document(whole, where);
    document = YAML::Load(whole);
  } catch (const YAML::DeepRecursion& error) {
    throw RecipeError("[recipe.yaml] {}, line {}: nested far deeper than {} levels", where, error.mark.line + 1,
                      kDeepest);
  } catch (const YAML::Exception& error) {
    throw RecipeError("[recipe.yaml] {}, line {}: {}; correct the YAML there", where, error.mark.line + 1, error.msg);
  }
  if (document.IsNull()) return nullptr;
  return Converter(where).convert(document, 0);
}

}  // namespace layerpress::recipe
