// Facts as of vLLM 0.33: its features/quantization page, and the kernels of its compressed-tensors schemes.
#include "layerpress/target/vllm_hardware.h"

#include <algorithm>
#include <array>
#include <optional>

#include "layerpress/base/text.h"
#include "layerpress/target/vllm_kernels.h"

namespace layerpress::target {
namespace {

using quant::NumberType;
using quant::QuantizationScheme;
using quant::Strategy;

enum class Generation { kTuring, kAmpere, kAda, kHopper, kBlackwell };
constexpr std::array kGenerations{"Turing", "Ampere", "Ada", "Hopper", "Blackwell"};
constexpr Generation kNewest = Generation::kBlackwell;

enum class Processor { kAny, kAmx, kNone };

/// GPUs from `first` to `last` compute as the scheme says. vLLM runs it on older ones, from `weights_only` on, with
/// activations in 16 bits.
struct Requirement {
  Generation first = Generation::kTuring;
  Generation last = kNewest;
  Generation weights_only = Generation::kTuring;
  Processor processor = Processor::kAny;
};

constexpr Requirement kOnlyHopper{Generation::kHopper, Generation::kHopper, Generation::kHopper, Processor::kNone};

Requirement from(Generation first, Generation weights_only, Processor processor) {
  return {.first = first, .last = kNewest, .weights_only = weights_only, .processor = processor};
}

Requirement integer_requirement(const QuantizationScheme& scheme) {
  if (!scheme.input_activations) {
    const bool on_processors = scheme.weights->num_bits == 4;
    return from(Generation::kAmpere, Generation::kAmpere, on_processors ? Processor::kAny : Processor::kNone);
  }
  return {Generation::kTuring, Generation::kHopper, Generation::kTuring, Processor::kAny};
}

Requirement float_requirement(const QuantizationScheme& scheme) {
  const bool grouped =
      scheme.weights->strategy == Strategy::kGroup || scheme.weights->strategy == Strategy::kTensorGroup;
  if (!scheme.input_activations) return from(Generation::kAmpere, Generation::kAmpere, Processor::kNone);
  // Groups are those of NVFP4, MXFP4 and MXFP8, whose products only Blackwell has.
  if (grouped) return from(Generation::kBlackwell, Generation::kAmpere, Processor::kNone);
  return from(Generation::kAda, Generation::kAmpere, Processor::kAmx);
}

Requirement requirement_of(const QuantizationScheme& scheme) {
  return scheme.weights->type == NumberType::kFloat ? float_requirement(scheme) : integer_requirement(scheme);
}

/// What satisfies both.
Requirement both(const Requirement& a, const Requirement& b) {
  return {std::max(a.first, b.first), std::min(a.last, b.last), std::max(a.weights_only, b.weights_only),
          std::max(a.processor, b.processor)};
}

std::string name_of(Generation generation) { return kGenerations[static_cast<std::size_t>(generation)]; }

/// "Turing, Ampere, Ada or Hopper"
std::string names(Generation first, Generation last) {
  std::vector<std::string> all;
  for (auto g = static_cast<std::size_t>(first); g < static_cast<std::size_t>(last); ++g)
    all.emplace_back(kGenerations[g]);
  return all.empty() ? name_of(last) : join(all) + " or " + name_of(last);
}

std::string gpu_text(const Requirement& need) {
  if (need.last != kNewest) return "an NVIDIA GPU of the " + names(need.first, need.last) + " generation";
  // Ada and Hopper came out together: "Ada or later" would leave a doubt about Hopper.
  const std::string first = need.first == Generation::kAda ? "Ada/Hopper" : name_of(need.first);
  std::string text = "an NVIDIA GPU of the " + first + " generation or later";
  if (need.weights_only < need.first) {
    const auto before = static_cast<Generation>(static_cast<int>(need.first) - 1);
    text += " (" + names(need.weights_only, before) + ": slower, with activations in 16 bits)";
  }
  return text;
}

std::string hardware_text(const Requirement& need) {
  if (need.first > need.last)
    return "no GPU that vLLM knows: " + name_of(need.first) + " for one of its schemes, at most " + name_of(need.last) +
           " for another";
  const char* processor = need.processor == Processor::kNone  ? ""
                          : need.processor == Processor::kAmx ? ", or an x86 CPU with AMX"
                                                              : ", or an x86 CPU";
  return gpu_text(need) + processor;
}

/// Whether transformers loads no experts in this scheme: of integers, it merges those that are packed and symmetric.
bool transformers_lacks_experts(const QuantizationScheme& scheme) {
  return scheme.weights && scheme.weights->type == NumberType::kInt &&
         (scheme.input_activations || !scheme.weights->symmetric);
}

}  // namespace

Serving vllm_serving(const std::string& output, const std::vector<CompressedShape>& modules,
                     const CompressedParts& parts) {
  const auto unserved = [&](const std::string& gap) -> Serving {
    constexpr const char* kUnknown = "an engine that is not known: ";
    if (gap.starts_with(kNotInTransformers))
      return {"no vLLM kernel, and transformers does not run it", kUnknown + gap};
    if (parts.experts && std::ranges::any_of(modules, transformers_lacks_experts, &CompressedShape::scheme))
      return {"no vLLM kernel, and transformers loads no such experts", kUnknown + gap};
    return {"no vLLM kernel; load it with transformers", "transformers with compressed-tensors: " + gap};
  };
  if (const auto gap = parts.cache ? vllm_cache_gap(*parts.cache) : std::nullopt) return unserved(*gap);
  std::optional<Requirement> need;
  for (const auto& [scheme, rows, columns] : modules) {
    if (!scheme.weights) continue;
    const std::optional<std::string> gap = vllm_kernel_gap(scheme, rows, columns);
    const bool hopper_only = gap && gap->find(kHopperOnly) != std::string::npos;
    const bool has_integers = scheme.weights->type == NumberType::kInt;
    if (gap && !hopper_only) return unserved(*gap);
    Requirement own = hopper_only ? kOnlyHopper : requirement_of(scheme);
    if (parts.embeddings || (parts.experts && has_integers)) own.processor = Processor::kNone;
    need = need ? both(*need, own) : own;
  }
  return {"vllm serve " + shell_word(output), need ? hardware_text(*need) : "what the uncompressed model needs"};
}

}  // namespace layerpress::target
