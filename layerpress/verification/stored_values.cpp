#include "layerpress/verification/stored_values.h"

#include <ATen/ATen.h>

#include <cmath>

#include "layerpress/base/error.h"
#include "layerpress/base/text.h"
#include "layerpress/quant/compressed_weight.h"
#include "layerpress/source/source_format.h"

namespace layerpress::verification {
namespace {

/// Elements that are looked at together, so that a check needs little memory.
constexpr std::int64_t kElements = 16 << 20;
/// A scale so much greater than the median of its weight's makes one group drown the others.
constexpr double kGreatestToMedian = 1e4;
/// Shares of codes at the ends of their range and of groups with one code only. Real weights stay far below both.
constexpr double kMostSaturated = 0.4;
constexpr double kManySaturatedScales = 0.1;
constexpr double kMostConstant = 0.5;
constexpr double kManyConstant = 0.02;

struct Extremes {
  double least = 0, greatest = 0;
  bool finite = true;
};

at::Tensor readable(const at::Tensor& values) {
  return at::isFloat8Type(values.scalar_type()) ? values.to(at::kFloat) : values;
}

Extremes extremes_of(const at::Tensor& tensor) {
  Extremes found;
  const at::Tensor flat = tensor.reshape({-1});
  for (std::int64_t first = 0; first < flat.numel(); first += kElements) {
    const at::Tensor part = readable(flat.slice(0, first, std::min(first + kElements, flat.numel())));
    const auto [least, greatest] = part.aminmax();
    const double low = least.item<double>(), high = greatest.item<double>();
    found.finite = found.finite && std::isfinite(low) && std::isfinite(high);
    found.least = first == 0 ? low : std::min(found.least, low);
    found.greatest = first == 0 ? high : std::max(found.greatest, high);
  }
  return found;
}

bool is_scale(const std::string& suffix) { return suffix.ends_with("_scale") || suffix.ends_with("_scale_inv"); }
/// Parts that are floats but no scales: codes, or values.
bool holds_codes(const std::string& suffix) {
  return suffix == "weight" || suffix == "weight_packed" || suffix == "qweight" || suffix == "qzeros" ||
         suffix == "blocks";
}

/// Powers of two are stored as exponents; 255 means NaN.
void check_exponents(const at::Tensor& bytes, const std::string& name, Findings& findings) {
  if (bytes.eq(255).any().item<bool>()) findings.fault("scale", name, "holds NaN (exponent 255)");
}

/// Symmetric integers; tools choose such scales only if nothing but weights is quantized.
bool may_have_negative_scales(const quant::QuantizationScheme& scheme) {
  return scheme.weights && scheme.weights->is_symmetric_integer() && !scheme.input_activations;
}

/// `may_be_negative`: a scale and codes of the other sign say the same.
void check_scale(const at::Tensor& scale, const std::string& name, bool may_be_negative, Findings& findings) {
  if (scale.numel() == 0) return;
  if (scale.scalar_type() == at::kByte) return check_exponents(scale, name, findings);
  if (scale.scalar_type() == at::kFloat8_e8m0fnu) return check_exponents(scale.view(at::kByte), name, findings);
  const at::Tensor values = may_be_negative ? scale.to(at::kFloat).abs() : scale.to(at::kFloat);
  const Extremes found = extremes_of(values);
  if (!found.finite) return findings.fault("scale", name, "holds NaN or infinity");
  if (found.least < 0) return findings.fault("scale", name, fmt::format("holds a negative scale, {:.4g}", found.least));
  if (found.greatest == 0) return findings.fault("scale", name, "holds zeros only");
  if (const double share =
          scale.scalar_type() == at::kFloat8_e4m3fn ? values.ge(448).to(at::kFloat).mean().item<double>() : 0;
      share > kManySaturatedScales)
    findings.warning("saturated", name,
                     fmt::format("{:.0f} % of its scales are the greatest that fp8 has", 100 * share));
  const at::Tensor positive = values.masked_select(values.gt(0));
  const double median = positive.median().item<double>();
  if (found.greatest > kGreatestToMedian * median)
    findings.fault(
        "scale", name,
        fmt::format("its greatest scale, {:.4g}, is {:.0f} times its median", found.greatest, found.greatest / median));
}

bool has_two_ends(const quant::QuantizationArgs& args) { return args.num_bits > 2; }

/// Which codes are at the ends of the range.
at::Tensor saturated(const quant::QuantizationArgs& args, const at::Tensor& codes) {
  if (args.type == quant::NumberType::kInt)
    return codes.le(args.minimum_code()).logical_or(codes.ge(args.maximum_code()));
  // The lower bits of a code of 4 are its size, of which 7 is the greatest.
  if (args.num_bits == 4) return codes.to(at::kByte).bitwise_and(7).eq(7);
  return codes.to(at::kFloat).abs().ge(448);
}

/// The share of codes at the ends of the range, without groups whose scales make all of their values nothing: GPTQ may leave any code
/// in a group whose weights are zeros.
double saturated_share(const quant::QuantizationArgs& args, const quant::QuantizedWeight& weight) {
  constexpr double kNothing = 1e-9;
  at::Tensor ends = saturated(args, weight.codes);
  const at::Tensor& scale = weight.scale;
  if (scale.defined() && scale.dim() == 2 && scale.size(0) == ends.size(0) && ends.size(1) % scale.size(1) == 0) {
    const at::Tensor size = scale.scalar_type() == at::kByte ? at::exp2(scale.to(at::kFloat) - 127)  // exponents (E8M0)
                                                             : scale.to(at::kFloat).abs();
    ends = ends.reshape({ends.size(0), scale.size(1), -1})
               .logical_and(size.ge(kNothing * size.max().item<double>()).unsqueeze(2));
  }
  return ends.to(at::kFloat).mean().item<double>();
}

/// The groups all of whose codes are equal, [groups].
at::Tensor constant_groups(const at::Tensor& codes, std::int64_t size) {
  const at::Tensor groups = (at::isFloat8Type(codes.scalar_type()) ? codes.view(at::kByte) : codes).reshape({-1, size});
  const auto [least, greatest] = groups.aminmax(1);
  return least.eq(greatest);
}

double share_of(const at::Tensor& mask) { return mask.to(at::kFloat).mean().item<double>(); }

/// Of codes that are not known apart from their values, such as a GGUF's blocks.
void check_decoded(const source::StoredWeight& weight, Findings& findings) {
  const Extremes found = extremes_of(weight.dequantize(at::kFloat));
  if (!found.finite)
    findings.fault("codes", weight.name, "stands for NaN or infinity");
  else if (found.least == 0 && found.greatest == 0)
    findings.warning("constant", weight.name, "stands for zeros only");
}

/// Zeros may be meant, as where weights were pruned.
void check_constant(const source::StoredWeight& weight, const at::Tensor& codes, std::int64_t group_size,
                    Findings& findings) {
  const std::int64_t columns = codes.size(1);
  const std::int64_t size = group_size > 0 && columns % group_size == 0 ? group_size : columns;
  if (size < 8) return;
  const at::Tensor constant = constant_groups(codes, size);
  if (share_of(constant) <= kManyConstant) return;
  const at::Tensor zeros = weight.dequantize(at::kFloat).reshape({-1, size}).eq(0).all(1);
  const double of_zeros = share_of(zeros), others = share_of(constant.logical_and(zeros.logical_not()));
  const std::string one_code = fmt::format("{:.1f} % of its groups have one code only", 100 * others);
  if (of_zeros == 1)
    findings.warning("constant", weight.name, "stands for zeros only");
  else if (others > kMostConstant)
    findings.fault("constant", weight.name, one_code);
  else if (others > kManyConstant)
    findings.warning("constant", weight.name, one_code);
}

}  // namespace

void check_plain(const checkpoint::Checkpoint& stored, const std::string& name, Findings& findings) {
  const checkpoint::StoredTensor& spec = stored.spec(name);
  if (spec.numel() == 0 || !at::isFloatingType(spec.dtype)) return;
  const at::Tensor tensor = stored.tensor(name);
  const std::string suffix = last_part(name);
  // Models have parameters of such names, too.
  if (is_scale(suffix) && (source::describes_activations(name) || suffix.starts_with("weight_"))) {
    check_scale(tensor, name, /*may_be_negative=*/false, findings);
  } else {
    const Extremes found = extremes_of(tensor);
    if (!found.finite)
      findings.fault("values", name, "holds NaN or infinity");
    else if (spec.shape.size() > 1 && found.least == 0 && found.greatest == 0)
      findings.warning("values", name, "holds zeros only");
  }
  stored.release(name);
}

void check_scales(const checkpoint::Checkpoint& stored, const source::StoredWeight& weight, Findings& findings) {
  for (const std::string& part : weight.parts) {
    const std::string suffix = last_part(part);
    if (holds_codes(suffix) || !stored.contains(part)) continue;
    if (is_scale(suffix) || suffix == "scales")
      check_scale(stored.tensor(part), part, may_have_negative_scales(weight.scheme), findings);
  }
}

void check_codes(const source::StoredWeight& weight, Findings& findings) {
  quant::QuantizedWeight quantized;
  try {
    if (!weight.read || !weight.scheme.weights) return check_decoded(weight, findings);
    quantized = weight.read();
  } catch (const CheckpointError& error) {
    return findings.fault("codes", weight.name, error.what());
  }
  const quant::QuantizationArgs& args = *weight.scheme.weights;
  // The least and the greatest weight of a group are there.
  const double most =
      kMostSaturated + (args.group_size.value_or(0) > 0 ? 2.0 / static_cast<double>(*args.group_size) : 0);
  if (const double share = has_two_ends(args) ? saturated_share(args, quantized) : 0; share > most)
    findings.fault("saturated", weight.name,
                   fmt::format("{:.0f} % of its codes are at the ends of their range", 100 * share));
  check_constant(weight, quantized.codes, args.group_size.value_or(-1), findings);
}

}  // namespace layerpress::verification
