#include "layerpress/pipeline/transforms.h"

#include "layerpress/kernels/finite.h"

namespace layerpress::pipeline {

void apply_transforms(const execution::RunContext& run, const std::vector<std::size_t>& transforms,
                      const compression::Assignments& assignments, residency::Onload& parameters,
                      StatisticsStore& statistics) {
  if (transforms.empty()) return;
  const auto phase = run.times.measure("transform");
  const compression::TransformInput input{
      run.graph, [&](const std::string& name) { return parameters.original(name); },
      [&](graph::ValueId value) -> const compression::Statistics& { return statistics.get(value); }};
  for (const std::size_t index : transforms) {
    const auto& [transform, site] = assignments.transforms[index];
    const at::Tensor scale = transform->scale(site, input);
    for (const auto& [name, parameter] : compression::scaled_parameters(site.place, scale, input)) {
      if (!kernels::all_finite(parameter))
        throw RecipeError(
            "[pipeline.transform] {}: tensor '{}' overflows its dtype; take a weaker smoothing or ignore it",
            transform->type(), name);
      parameters.change(name, parameter);
    }
    for (const graph::ScaledValue& scaled : site.place.values)
      statistics.divide_channels(scaled.value,
                                 compression::scale_of(scaled, scale, run.graph.values[scaled.value].features));
  }
}

void store_changed(const execution::RunContext& run, const std::vector<std::string>& names,
                   const residency::Onload& parameters, ResultSink& sink) {
  if (names.empty()) return;
  const auto phase = run.times.measure("write");
  for (const std::string& name : names) sink.on_tensor(name, parameters.original(name));
}

}  // namespace layerpress::pipeline
