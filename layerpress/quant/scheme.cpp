#include "layerpress/quant/scheme.h"

#include <algorithm>
#include <utility>

#include "layerpress/base/text.h"
#include "layerpress/gguf/blocks/block_type.h"
#include "layerpress/quant/container_format.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::quant {
namespace {

template <typename Enum, std::size_t kCount>
using NameTable = std::array<std::pair<Enum, std::string_view>, kCount>;

constexpr NameTable<NumberType, 2> kNumberTypes{{{NumberType::kInt, "int"}, {NumberType::kFloat, "float"}}};

constexpr NameTable<Strategy, 7> kStrategies{{{Strategy::kTensor, "tensor"},
                                              {Strategy::kChannel, "channel"},
                                              {Strategy::kGroup, "group"},
                                              {Strategy::kBlock, "block"},
                                              {Strategy::kToken, "token"},
                                              {Strategy::kTensorGroup, "tensor_group"},
                                              {Strategy::kAttentionHead, "attn_head"}}};

const std::vector<std::string> kArgumentKeys{"num_bits",    "type",     "symmetric", "strategy",
                                             "group_size",  "dynamic",  "actorder",  "block_structure",
                                             "scale_dtype", "zp_dtype", "observer",  "observer_kwargs"};

const std::vector<std::string> kSchemeKeys{"targets", "weights", "input_activations", "output_activations", "format"};

const std::vector<std::string> kDtypes{"uint8",         "int8",        "int16",          "int32",
                                       "int64",         "float16",     "float32",        "bfloat16",
                                       "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float64"};

constexpr std::int64_t kLargestSize = std::int64_t{1} << 30;

std::string quoted_value(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

void require_known_keys(const Json& object, const std::vector<std::string>& known, const std::string& where) {
  for (const auto& [key, value] : object.items())
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw RecipeError("[quant.scheme] {}: unknown key '{}'; {}", where, key, nearest_or_all(key, known));
}

/// Reads the members of one object; every error names the object's place and the key.
class Fields {
 public:
  Fields(const Json& object, const std::string& where) : object_(object), where_(where) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& rule) const {
    const auto found = object_.find(key);
    throw RecipeError("[quant.scheme] {}: {} is {}; {}", where_, key,
                      found == object_.end() ? "missing" : quoted_value(*found), rule);
  }

  /// Null if the key is missing or its value is null.
  const Json* find(const std::string& key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  /// Like find, for keys whose value must not be null.
  const Json* find_not_null(const std::string& key, const std::string& rule) const {
    if (object_.contains(key) && object_[key].is_null()) refuse(key, rule);
    return find(key);
  }

  std::int64_t integer(const std::string& key, const Json& value, const std::string& rule) const {
    if (!value.is_number_integer()) refuse(key, rule);
    if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{kLargestSize}) refuse(key, rule);
    return value.get<std::int64_t>();
  }

  std::string text(const std::string& key, const Json& value, const std::string& rule) const {
    if (!value.is_string()) refuse(key, rule);
    return value.get<std::string>();
  }

  bool boolean(const std::string& key, const Json& value) const {
    if (!value.is_boolean()) refuse(key, "it must be true or false");
    return value.get<bool>();
  }

  template <typename Enum, std::size_t kCount>
  Enum word(const std::string& key, const Json& value, const NameTable<Enum, kCount>& table) const {
    std::vector<std::string> names;
    for (const auto& [enumerator, name] : table) names.emplace_back(name);
    const std::string rule = fmt::format("it must be one of {}", join(names));
    const std::string given = lower_case(text(key, value, rule));
    for (const auto& [enumerator, name] : table)
      if (name == given) return enumerator;
    refuse(key, rule);
  }

 private:
  const Json& object_;
  const std::string& where_;
};

int parse_num_bits(const Fields& fields, NumberType type) {
  const std::vector<int> floats = float_widths();
  std::vector<std::string> widths;
  for (const int width : floats) widths.push_back(std::to_string(width));
  const std::string rule = type == NumberType::kFloat ? fmt::format("float types have {} bits", join(widths, " or "))
                                                      : "it must be a whole number, of weights from 2 to 8";
  const Json* value = fields.find_not_null("num_bits", rule);
  if (value == nullptr) return 8;
  const std::int64_t bits = fields.integer("num_bits", *value, rule);
  const bool allowed = type == NumberType::kFloat ? std::find(floats.begin(), floats.end(), bits) != floats.end()
                                                  : bits >= 1 && bits <= 16;
  if (!allowed) fields.refuse("num_bits", rule);
  return static_cast<int>(bits);
}

std::optional<std::int64_t> parse_group_size(const Fields& fields) {
  const Json* value = fields.find("group_size");
  if (value == nullptr) return std::nullopt;
  const std::string rule = "it must be from 1 to 2^30, -1 for one scale per channel, or null";
  const std::int64_t size = fields.integer("group_size", *value, rule);
  if (size == 0 || size < -1 || size > kLargestSize) fields.refuse("group_size", rule);
  return size;
}

/// Rows and columns from [128, 128] or "128x128".
std::optional<std::array<std::int64_t, 2>> parse_block_structure(const Fields& fields) {
  const Json* value = fields.find("block_structure");
  if (value == nullptr) return std::nullopt;
  const std::string rule = "it must be two positive whole numbers such as [128, 128]";
  Json list = *value;
  if (value->is_string()) {
    std::string text = value->get<std::string>();
    std::replace(text.begin(), text.end(), 'x', ',');
    list = Json::parse(fmt::format("[{}]", text), nullptr, false);
  }
  if (!list.is_array() || list.size() != 2) fields.refuse("block_structure", rule);
  std::array<std::int64_t, 2> block{};
  for (std::size_t i = 0; i < 2; ++i) {
    block[i] = fields.integer("block_structure", list[i], rule);
    if (block[i] < 1 || block[i] > kLargestSize) fields.refuse("block_structure", rule);
  }
  return block;
}

Dynamic parse_dynamic(const Fields& fields) {
  const std::string rule = "it must be true, false or \"local\"";
  const Json* value = fields.find_not_null("dynamic", rule);
  if (value == nullptr) return Dynamic::kFalse;
  if (value->is_boolean()) return value->get<bool>() ? Dynamic::kTrue : Dynamic::kFalse;
  if (lower_case(fields.text("dynamic", *value, rule)) != "local") fields.refuse("dynamic", rule);
  return Dynamic::kLocal;
}

/// "weight" and "static" mean the same. Orders that need a stored index per column no longer exist in the format.
std::optional<std::string> parse_actorder(const Fields& fields) {
  const Json* value = fields.find("actorder");
  if (value == nullptr || *value == Json(false)) return std::nullopt;
  const std::string rule =
      "write \"static\" (\"weight\") or null; group and dynamic ordering were removed from the format";
  const std::string order = lower_case(fields.text("actorder", *value, rule));
  if (order != "static" && order != "weight") fields.refuse("actorder", rule);
  return order;
}

std::optional<std::string> parse_dtype(const Fields& fields, const std::string& key) {
  const Json* value = fields.find(key);
  if (value == nullptr) return std::nullopt;
  const std::string rule = "it must be a torch dtype such as \"torch.uint8\"";
  std::string name = fields.text(key, *value, rule);
  if (name.starts_with("torch.")) name.erase(0, 6);
  if (std::find(kDtypes.begin(), kDtypes.end(), name) == kDtypes.end()) fields.refuse(key, rule);
  return fmt::format("torch.{}", name);
}

/// The library's default if a zero point exists and its type is not given.
std::optional<std::string> zero_point_dtype(const QuantizationArgs& args) {
  if (args.symmetric) return std::nullopt;
  if (args.zp_dtype.has_value()) return args.zp_dtype;
  return args.type == NumberType::kFloat ? "torch.float8_e4m3fn" : args.num_bits <= 8 ? "torch.int8" : "torch.int16";
}

Strategy parse_strategy(const Fields& fields, const std::optional<std::int64_t>& group_size) {
  if (const Json* value = fields.find("strategy")) return fields.word("strategy", *value, kStrategies);
  if (!group_size.has_value()) return Strategy::kTensor;
  return *group_size > 0 ? Strategy::kGroup : Strategy::kChannel;
}

/// Checks the rules that connect strategy, group size, block and dynamic.
void require_consistent(const QuantizationArgs& args, const Fields& fields) {
  const bool grouped = args.strategy == Strategy::kGroup || args.strategy == Strategy::kTensorGroup;
  const bool has_group_size = args.group_size.has_value() && *args.group_size > 0;
  const std::string strategy(name_of(args.strategy));
  if (grouped && !has_group_size)
    fields.refuse("group_size", fmt::format("strategy {} needs a positive one", strategy));
  if (has_group_size && !grouped)
    fields.refuse("group_size", fmt::format("strategy {} takes none; remove it or write strategy: group", strategy));
  if (args.strategy == Strategy::kBlock && !args.block_structure)
    fields.refuse("block_structure", "strategy block needs one such as [128, 128]");
  if (args.block_structure && args.strategy != Strategy::kBlock)
    fields.refuse("block_structure", fmt::format("strategy {} takes none; write strategy: block", strategy));
  if (args.strategy == Strategy::kToken && args.dynamic == Dynamic::kFalse)
    fields.refuse("dynamic", "strategy token needs true");
  const bool can_be_dynamic = grouped || args.strategy == Strategy::kToken || args.strategy == Strategy::kTensor;
  if (args.dynamic != Dynamic::kFalse && !can_be_dynamic)
    fields.refuse("dynamic", fmt::format("strategy {} cannot be dynamic, only token, tensor and group", strategy));
  if (args.dynamic == Dynamic::kLocal && args.strategy != Strategy::kTensorGroup)
    fields.refuse("dynamic", "\"local\" goes with strategy tensor_group only");
}

std::vector<std::string> parse_targets(const Fields& fields) {
  const std::string rule = "it must be a list of module names, class names or re: patterns such as [\"Linear\"]";
  const Json* value = fields.find("targets");
  if (value == nullptr || !value->is_array()) fields.refuse("targets", rule);
  std::vector<std::string> targets;
  for (const Json& target : *value) targets.push_back(fields.text("targets", target, rule));
  return targets;
}

std::string parse_format(const Fields& fields) {
  const Json* value = fields.find("format");
  if (value == nullptr) return "";
  std::vector<std::string> known = {kDenseFormat};
  for (const ContainerFormat* format : container_formats()) known.push_back(format->name());
  const std::string rule =
      fmt::format("known for a group are {}; and for a GGUF, {}", join(known), join(gguf::block_type_names()));
  std::string format = fields.text("format", *value, rule);
  if (std::find(known.begin(), known.end(), format) == known.end()) fields.refuse("format", rule);
  return format;
}

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

}  // namespace

std::string_view name_of(NumberType type) { return kNumberTypes[static_cast<std::size_t>(type)].second; }
std::string_view name_of(Strategy strategy) { return kStrategies[static_cast<std::size_t>(strategy)].second; }

QuantizationArgs parse_quantization_args(const Json& object, const std::string& where) {
  if (!object.is_object())
    throw RecipeError("[quant.scheme] {}: expected a mapping such as {{num_bits: 4, group_size: 128}}, found {}", where,
                      quoted_value(object));
  require_known_keys(object, kArgumentKeys, where);
  const Fields fields(object, where);
  QuantizationArgs args;
  if (const Json* value = fields.find_not_null("type", "it must be int or float"))
    args.type = fields.word("type", *value, kNumberTypes);
  args.num_bits = parse_num_bits(fields, args.type);
  if (const Json* value = fields.find_not_null("symmetric", "it must be true or false"))
    args.symmetric = fields.boolean("symmetric", *value);
  args.group_size = parse_group_size(fields);
  args.strategy = parse_strategy(fields, args.group_size);
  args.block_structure = parse_block_structure(fields);
  args.dynamic = parse_dynamic(fields);
  args.actorder = parse_actorder(fields);
  args.scale_dtype = parse_dtype(fields, "scale_dtype");
  args.zp_dtype = parse_dtype(fields, "zp_dtype");
  args.zp_dtype = zero_point_dtype(args);
  if (const Json* value = fields.find("observer"))
    args.observer = fields.text("observer", *value, "it must be an observer's name");
  if (const Json* value = fields.find_not_null("observer_kwargs", "it must be a mapping")) {
    if (!value->is_object()) fields.refuse("observer_kwargs", "it must be a mapping");
    args.observer_kwargs = *value;
  }
  require_consistent(args, fields);
  return args;
}

Json to_json(const QuantizationArgs& args) {
  Json dynamic = args.dynamic == Dynamic::kLocal ? Json("local") : Json(args.dynamic == Dynamic::kTrue);
  return Json{{"num_bits", args.num_bits},
              {"type", name_of(args.type)},
              {"symmetric", args.symmetric},
              {"strategy", name_of(args.strategy)},
              {"group_size", or_null(args.group_size)},
              {"block_structure", or_null(args.block_structure)},
              {"dynamic", std::move(dynamic)},
              {"actorder", or_null(args.actorder)},
              {"scale_dtype", or_null(args.scale_dtype)},
              {"zp_dtype", or_null(zero_point_dtype(args))},
              {"observer", or_null(args.observer)},
              {"observer_kwargs", args.observer_kwargs}};
}

QuantizationScheme parse_quantization_scheme(const Json& object, const std::string& where) {
  if (object.is_array())
    throw RecipeError(
        "[quant.scheme] {}: a list ({}) is no config group, which has targets and weights; a preset for a list of "
        "targets is written scheme: {{W4A16: [Linear]}}",
        where, quoted_value(object));
  if (!object.is_object())
    throw RecipeError("[quant.scheme] {}: expected a mapping with targets and weights, found {}", where,
                      quoted_value(object));
  if (object.contains("scheme"))
    throw RecipeError(
        "[quant.scheme] {}: a config group takes no 'scheme'; spell out weights here, or use scheme: "
        "{{PRESET: [targets]}} instead of config_groups",
        where);
  require_known_keys(object, kSchemeKeys, where);
  const Fields fields(object, where);
  QuantizationScheme scheme;
  scheme.targets = parse_targets(fields);
  if (const Json* value = fields.find("weights")) scheme.weights = parse_quantization_args(*value, where + ".weights");
  const auto activations = [&](const std::string& key) -> std::optional<QuantizationArgs> {
    const Json* value = fields.find(key);
    if (value == nullptr) return std::nullopt;
    const QuantizationArgs args = parse_quantization_args(*value, where + "." + key);
    if (args.actorder) throw RecipeError("[quant.scheme] {}.{}: activations take no actorder; remove it", where, key);
    return args;
  };
  scheme.input_activations = activations("input_activations");
  scheme.output_activations = activations("output_activations");
  if (scheme.input_activations && (scheme.input_activations->strategy == Strategy::kChannel ||
                                   scheme.input_activations->strategy == Strategy::kBlock))
    throw RecipeError("[quant.scheme] {}.input_activations: strategy {} is for weights; use token, tensor or group",
                      where, name_of(scheme.input_activations->strategy));
  scheme.format = parse_format(fields);
  return scheme;
}

}  // namespace layerpress::quant
