#include <fmt/format.h>

#include "layerpress/modifier/arguments/argument.h"
#include "layerpress/modifier/quantizing/gptq_modifier.h"

namespace layerpress::modifier {
namespace {

constexpr const char* kPropagation = "error_propagation";

/// AutoRound's own arguments.
const std::vector<Argument> kAutoRoundArguments = {{"iters", "int"},
                                                   {"batch_size", "int"},
                                                   {"lr", "float | None"},
                                                   {"enable_torch_compile", "bool"},
                                                   {"device_ids", "str | None"},
                                                   {"disable_opt_rtn", "bool"}};

std::vector<Argument> autoround_arguments() {
  return joined(joined(QuantizingModifier::shared_arguments(), kAutoRoundArguments), {{kPropagation, "bool"}});
}

/// The arguments with which GPTQ does it.
OrderedJson as_gptq(OrderedJson arguments, const std::string& where) {
  (void)check_arguments(Json(arguments), where, autoround_arguments());
  for (const Argument& own : kAutoRoundArguments) arguments.erase(own.name);
  if (!arguments.contains(kPropagation)) arguments[kPropagation] = true;
  return arguments;
}

class AutoRoundModifier final : public GptqModifier {
 public:
  AutoRoundModifier(const OrderedJson& arguments, const std::string& where)
      : GptqModifier(as_gptq(arguments, where), where, kernels::column_block_solver, quant::Observer::kGptq) {
    const Json plain(arguments);
    (void)json_get_or<std::int64_t>(plain, "iters", where, 200);
    (void)json_get_or<std::int64_t>(plain, "batch_size", where, 8);
    (void)json_get_or<bool>(plain, "enable_torch_compile", where, true);
    (void)json_get_or<bool>(plain, "disable_opt_rtn", where, false);
    if (json_has(plain, "lr")) (void)json_get<double>(plain, "lr", where);
    if (json_has(plain, "device_ids")) (void)json_get<std::string>(plain, "device_ids", where);
    propagates_ = json_get_or<bool>(plain, kPropagation, where, true);
    for (const Argument& own : kAutoRoundArguments)
      if (json_has(plain, own.name.c_str())) without_effect_.push_back(own.name);
  }

  std::string type() const override { return "AutoRoundModifier"; }
  std::string note() const override {
    return fmt::format(
        "AutoRoundModifier is run as GPTQModifier with --quality 'best'{}, which changes the model's outputs less in a "
        "fraction of the time",
        propagates_ ? "" : " without error_propagation (which requires all tokens in all experts)");
  }

 private:
  bool propagates_ = true;
};

}  // namespace

/// AutoRoundModifier: GPTQ as --quality best runs it, with the observer gptq and error_propagation, under AutoRound's name. AutoRound's
/// own arguments (iters, batch_size, lr, enable_torch_compile, device_ids, disable_opt_rtn) are checked and have no effect;
/// error_propagation (true) is GPTQ's, and false in runs whose experts see the tokens that are routed to them only.
Kind autoround_modifier() { return {"AutoRoundModifier", make<AutoRoundModifier>, autoround_arguments()}; }

}  // namespace layerpress::modifier
