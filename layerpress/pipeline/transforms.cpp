#include "layerpress/pipeline/transforms.h"

#include "layerpress/kernels/finite.h"

namespace layerpress::pipeline {
namespace {

const schedule::TrialStages& stages_of(const schedule::Step& step, std::size_t transform) {
  for (const schedule::TrialStages& trial : step.trials)
    if (trial.transform == transform) return trial;
  throw InternalError("[pipeline.transform] the schedule has no trial for transform {}", transform);
}

}  // namespace

void apply_transforms(const execution::RunContext& run, const schedule::Step& step,
                      const compression::Assignments& assignments, residency::Onload& parameters,
                      StatisticsStore& statistics, const TrialRunner& trials) {
  if (step.transforms.empty()) return;
  const auto phase = run.times.measure("transform");
  std::uint64_t done = 0;
  for (const std::size_t index : step.transforms) {
    run.control.phase("transform", done++, step.transforms.size());
    run.control.check_stop();
    const auto& [transform, site] = assignments.transforms[index];
    const compression::TransformInput input{
        run.graph, [&](const std::string& name) { return parameters.original(name); },
        [&](graph::ValueId value) -> const compression::Statistics& { return statistics.get(value); },
        [&](graph::NodeId linear) { return assignments.scheme_of(linear); },
        [&, index](const compression::Trial& trial) { return trials.run(stages_of(step, index), trial, parameters); }};
    const at::Tensor scale = transform->scale(site, input);
    for (const auto& [name, parameter] : compression::scaled_parameters(site.place, scale, input)) {
      if (!kernels::all_finite(parameter))
        throw RecipeError(
            "[pipeline.transform] {}: tensor '{}' overflows its dtype; take a weaker smoothing or ignore it",
            transform->type(), name);
      parameters.change(name, parameter);
    }
    for (const graph::ScaledValue& scaled : site.place.values)
      statistics.divide_channels(
          scaled.value, compression::scale_of(scaled.channels, scale, run.graph.values[scaled.value].features));
  }
}

void store_changed(const execution::RunContext& run, const std::vector<std::string>& names,
                   const residency::Onload& parameters, ResultSink& sink) {
  if (names.empty()) return;
  const auto phase = run.times.measure("write");
  for (const std::string& name : names) sink.on_tensor(name, parameters.original(name));
}

}  // namespace layerpress::pipeline
