#include <algorithm>
#include <cctype>
#include <optional>

#include "layerpress/base/text.h"
#include "layerpress/gguf/mixture.h"
#include "layerpress/quant/scheme.h"

namespace layerpress::quant {
namespace {

using Args = QuantizationArgs;
using OptionalArgs = std::optional<QuantizationArgs>;

struct Preset {
  std::string name;
  OptionalArgs weights;
  OptionalArgs activations;
};

Args numbers(int bits, NumberType type, Strategy strategy) {
  Args args;
  args.num_bits = bits;
  args.type = type;
  args.strategy = strategy;
  return args;
}

Args dynamic(Args args, Dynamic how = Dynamic::kTrue) {
  args.dynamic = how;
  return args;
}

Args channels(NumberType type) { return numbers(8, type, Strategy::kChannel); }

Args tokens(int bits, NumberType type) { return dynamic(numbers(bits, type, Strategy::kToken)); }

Args groups(int bits, NumberType type, std::int64_t size) {
  Args args = numbers(bits, type, Strategy::kGroup);
  args.group_size = size;
  return args;
}

Args integers(int bits) { return groups(bits, NumberType::kInt, 128); }

Args asymmetric(Args args) {
  args.symmetric = false;
  args.zp_dtype = "torch.int8";
  return args;
}

Args observed(Args args) {
  args.observer = "static_minmax";
  return args;
}

Args fp8_tensor() { return numbers(8, NumberType::kFloat, Strategy::kTensor); }

Args fp8_block() {
  Args args = numbers(8, NumberType::kFloat, Strategy::kBlock);
  args.block_structure = {128, 128};
  return args;
}

Args nvfp4() {
  Args args = groups(4, NumberType::kFloat, 16);
  args.strategy = Strategy::kTensorGroup;
  args.scale_dtype = "torch.float8_e4m3fn";
  return args;
}

Args mx(int bits) {
  Args args = groups(bits, NumberType::kFloat, 32);
  args.scale_dtype = "torch.uint8";
  return args;
}

/// Every preset of compressed-tensors: name, weights, input activations. A new preset is a row here.
const std::vector<Preset>& presets() {
  constexpr NumberType kInt = NumberType::kInt;
  constexpr NumberType kFloat = NumberType::kFloat;
  static const std::vector<Preset> rows{
      {"UNQUANTIZED", {}, {}},
      {"W2A16", integers(2), {}},
      {"W3A16", integers(3), {}},
      {"W4A16", integers(4), {}},
      {"W4A16_ASYM", asymmetric(integers(4)), {}},
      {"W5A16", integers(5), {}},
      {"W6A16", integers(6), {}},
      {"W7A16", integers(7), {}},
      {"W8A16", integers(8), {}},
      {"W8A8", channels(kInt), tokens(8, kInt)},
      {"INT8", channels(kInt), tokens(8, kInt)},
      {"W2A8", integers(2), tokens(8, kInt)},
      {"W3A8", integers(3), tokens(8, kInt)},
      {"W4A8", integers(4), tokens(8, kInt)},
      {"W5A8", integers(5), tokens(8, kInt)},
      {"W6A8", integers(6), tokens(8, kInt)},
      {"W7A8", integers(7), tokens(8, kInt)},
      {"W2A4", integers(2), tokens(4, kInt)},
      {"W3A4", integers(3), tokens(4, kInt)},
      {"W4A4", integers(4), tokens(4, kInt)},
      {"W4AFP8", integers(4), tokens(8, kFloat)},
      {"FP8", fp8_tensor(), observed(fp8_tensor())},
      {"FP8_DYNAMIC", channels(kFloat), tokens(8, kFloat)},
      {"FP8_BLOCK", fp8_block(), dynamic(groups(8, kFloat, 128))},
      {"NVFP4A16", nvfp4(), {}},
      {"NVFP4", nvfp4(), dynamic(observed(nvfp4()), Dynamic::kLocal)},
      {"MXFP4A16", mx(4), {}},
      {"MXFP4", mx(4), dynamic(mx(4))},
      {"MXFP8A16", mx(8), {}},
      {"MXFP8", mx(8), dynamic(mx(8))},
  };
  return rows;
}

/// "W4A16SYM" of "w4a16-sym".
std::string letters_and_digits(const std::string& text) {
  std::string kept;
  for (const char c : upper_case(text))
    if (std::isalnum(static_cast<unsigned char>(c))) kept += c;
  return kept;
}

/// Which preset is symmetric, for a name that ends in "sym" or "asym"; else "".
std::string about_symmetry(const std::string& name) {
  const std::string asked = letters_and_digits(name);
  if (!asked.ends_with("SYM")) return "";
  const std::string base = asked.substr(0, asked.size() - (asked.ends_with("ASYM") ? 4 : 3));
  const std::vector<std::string> names = preset_names();
  const auto symmetric =
      std::find_if(names.begin(), names.end(), [&](const auto& known) { return letters_and_digits(known) == base; });
  if (symmetric == names.end()) return "";
  const std::string asymmetric = *symmetric + "_ASYM";
  if (std::find(names.begin(), names.end(), asymmetric) == names.end())
    return fmt::format("{} is symmetric and has no asymmetric variant", *symmetric);
  return fmt::format("{} is symmetric, {} asymmetric", *symmetric, asymmetric);
}

/// Numbers as words such as "int4", "4bit" or "fp8" name them.
struct NumbersInWords {
  std::optional<NumberType> type;
  int bits = 0;
};

std::optional<NumbersInWords> numbers_in_words(const std::string& name) {
  const std::vector<std::pair<std::string, NumberType>> types = {
      {"UINT", NumberType::kInt}, {"INT", NumberType::kInt}, {"FLOAT", NumberType::kFloat},
      {"FP", NumberType::kFloat}, {"F", NumberType::kFloat}, {"I", NumberType::kInt},
      {"U", NumberType::kInt},    {"Q", NumberType::kInt},   {"W", NumberType::kInt}};
  std::string asked = letters_and_digits(name);
  NumbersInWords numbers;
  for (const auto& [word, type] : types)
    if (!numbers.type && asked.starts_with(word)) {
      numbers.type = type;
      asked = asked.substr(word.size());
    }
  for (const std::string unit : {"BITS", "BIT"})
    if (asked.ends_with(unit)) asked = asked.substr(0, asked.size() - unit.size());
  if (asked.size() != 1 || std::isdigit(static_cast<unsigned char>(asked[0])) == 0) return std::nullopt;
  numbers.bits = asked[0] - '0';
  return numbers;
}

/// The presets with such weights: "4-bit integer schemes: W4A16, ...", or "".
std::string schemes_with(const NumbersInWords& numbers) {
  std::vector<std::string> names;
  for (const Preset& preset : presets())
    if (preset.weights && preset.weights->num_bits == numbers.bits &&
        numbers.type.value_or(preset.weights->type) == preset.weights->type)
      names.push_back(preset.name);
  if (names.empty()) return "";
  const char* type = !numbers.type ? "" : *numbers.type == NumberType::kInt ? " integer" : " floating-point";
  return fmt::format("{}-bit{} schemes: {}", numbers.bits, type, join(names));
}

/// What to write instead of an unknown name.
std::string instead_of(const std::string& name) {
  if (gguf::is_mixture(upper_case(name)))
    return "it is a scheme of GGUF files; oneshot takes it with an --output that ends in .gguf, and plans it with "
           "--dry-run";
  if (const std::vector<std::string> made = gguf::mixtures_of(upper_case(name)); !made.empty())
    return fmt::format("it is the type of single tensors of GGUF files, whose schemes are {}", join(made));
  if (std::string text = about_symmetry(name); !text.empty()) return text;
  if (const auto numbers = numbers_in_words(name))
    if (std::string text = schemes_with(*numbers); !text.empty()) return text;
  const std::string mixture = nearest_name(upper_case(name), gguf::mixture_names());
  std::vector<std::string> useful = preset_names();
  std::erase(useful, "UNQUANTIZED");  // refused in the next try
  if (!mixture.empty() && nearest_name(name, useful).empty())
    return fmt::format("did you mean {}, a scheme of GGUF files?", mixture);
  return nearest_or_all(name, useful);
}

}  // namespace

QuantizationScheme preset_scheme(const std::string& name) {
  const std::string upper = upper_case(name);
  for (const Preset& preset : presets()) {
    if (preset.name != upper) continue;
    QuantizationScheme scheme;
    scheme.weights = preset.weights;
    scheme.input_activations = preset.activations;
    return scheme;
  }
  throw RecipeError("[quant.preset] unknown scheme '{}'; {}", name, instead_of(name));
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  return names;
}

}  // namespace layerpress::quant
