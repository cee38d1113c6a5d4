// print_logits MODEL TOKENS.safetensors OUT.safetensors [--dtype float32] [--quantize-activations] [--export]
// Runs a plain or compressed checkpoint on a token file, all samples packed in one batch, and writes what the graph gives
// for each token as fp32 tensor "logits" [tokens, vocabulary], for tests that compare it with other programs.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "layerpress/base/error.h"
#include "layerpress/checkpoint/safetensors.h"
#include "layerpress/data/calibration_set.h"
#include "layerpress/execution/body_run.h"
#include "layerpress/setup/assignment/rounded_inputs.h"
#include "layerpress/setup/opening/open_model.h"

namespace {

using namespace layerpress;

at::Tensor logits_of(const std::string& model_name, const std::string& token_file, const std::string& dtype,
                     bool rounds, bool exported) {
  setup::OpenedModel model = setup::open_model(
      model_name,
      {.graph = exported ? "export" : "auto", .device = "cpu", .dtype = dtype, .dequantize_for_computing = true});
  if (rounds) setup::round_inputs(model);
  const residency::Placement placement = setup::choose_placement("cpu", dtype, model.stored_dtype);
  const data::CalibrationSet set = data::read_token_file(token_file);
  if (set.token_count() == 0) throw DataError("[print_logits] {}: holds no tokens; give at least one", token_file);
  const std::vector<execution::Batch> batches = setup::make_batches(set, std::int64_t{1} << 40, model.traced.graph);
  const auto weights = model.weights();
  PhaseTimes times;
  const RunControl control;
  dist::Group alone;
  const execution::RunContext run{model.traced.graph, *weights, placement, batches, control, times, alone};
  execution::BodyRun body(run, setup::cut_model(model.traced, {}), model.traced.graph.output);
  for (std::size_t s = 0; s < body.size(); ++s) body.run(s);
  return body.results().front().to(at::kFloat);
}

int run(std::vector<std::string> arguments) {
  const bool rounds = std::erase(arguments, "--quantize-activations") != 0;
  const bool exported = std::erase(arguments, "--export") != 0;
  if (arguments.size() != 3 && !(arguments.size() == 5 && arguments[3] == "--dtype"))
    throw UsageError(
        "[print_logits] usage: print_logits MODEL TOKENS.safetensors OUT.safetensors [--dtype float32] "
        "[--quantize-activations] [--export]");
  const c10::InferenceMode inference;
  setup::set_threads(0);
  const std::string dtype = arguments.size() == 5 ? arguments[4] : "auto";
  checkpoint::write_safetensors(arguments[2],
                                {{"logits", logits_of(arguments[0], arguments[1], dtype, rounds, exported)}});
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
