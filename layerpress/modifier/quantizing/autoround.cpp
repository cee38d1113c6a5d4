#include "layerpress/modifier/quantizing/autoround.h"

#include "layerpress/modifier/arguments/lifecycle_arguments.h"
#include "layerpress/modifier/quantizing/gptq_modifier.h"

namespace layerpress::modifier {
namespace {

/// The arguments with which GPTQ does it.
OrderedJson as_gptq(OrderedJson arguments, const std::string& where) {
  if (!arguments.is_object()) return arguments;  // GPTQ reports the error
  std::vector<std::string> known = names_of(QuantizingModifier::shared_arguments());
  for (const Argument& own : autoround_arguments()) known.push_back(own.name);
  (void)check_arguments(Json(arguments), where, known);
  for (const Argument& own : autoround_arguments()) arguments.erase(own.name);
  arguments["error_propagation"] = true;
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
    for (const Argument& own : autoround_arguments())
      if (json_has(plain, own.name.c_str())) note_without_effect(own.name);
  }

  std::string type() const override { return "AutoRoundModifier"; }
  std::string note() const override {
    return "AutoRoundModifier is run as GPTQModifier with --quality 'best', which changes the model's outputs less in "
           "a "
           "fraction of the time";
  }
};

}  // namespace

std::vector<Argument> autoround_arguments() {
  return {{"iters", "int"},
          {"batch_size", "int"},
          {"lr", "float | None"},
          {"enable_torch_compile", "bool"},
          {"device_ids", "str | None"},
          {"disable_opt_rtn", "bool"}};
}

std::unique_ptr<compression::Quantizer> make_autoround_modifier(const OrderedJson& arguments,
                                                                const std::string& where) {
  return std::make_unique<AutoRoundModifier>(arguments, where);
}

}  // namespace layerpress::modifier
