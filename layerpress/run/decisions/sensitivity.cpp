#include "layerpress/run/decisions/sensitivity.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "layerpress/base/file.h"
#include "layerpress/base/files/missing_folder.h"
#include "layerpress/base/text.h"
#include "layerpress/modifier/sensitivity.h"
#include "layerpress/recipe/candidate_schemes.h"
#include "layerpress/run/compression/model_name.h"
#include "layerpress/run/decisions/measuring_run.h"
#include "layerpress/run/decisions/scheme_comparison.h"
#include "layerpress/setup/assignment/unmatched_entries.h"

namespace layerpress::run {
namespace {

/// Options that say how a run compresses have no meaning here.
void check_options(const OneshotOptions& options) {
  const OneshotOptions defaults;
  const auto refuse = [](const char* name, const std::string& value, const std::string& usual) {
    if (value != usual)
      throw UsageError("[options] --sensitivity compares --schemes, each rounded as it is by default; leave out --{}",
                       name);
  };
  refuse("recipe", options.recipe, defaults.recipe);
  refuse("algorithm", options.algorithm, defaults.algorithm);
  refuse("scheme", options.scheme, defaults.scheme);
  refuse("observer", options.observer, defaults.observer);
  refuse("quality", options.quality, defaults.quality);
  refuse("imatrix", options.imatrix, defaults.imatrix);
  if (options.dataset.empty())
    throw UsageError("[options] --sensitivity: the inputs of the linears are measured on data; add --dataset");
}

/// Warns of what the user's lists name in vain.
void say_unmatched(const setup::RunSetup& setup, const RunControl& control) {
  const OneshotOptions defaults;
  for (const setup::UnmatchedEntry& entry : setup::unmatched_entries(setup.model, setup.modifiers)) {
    const std::vector<std::string>& usual = entry.list == "ignore" ? defaults.ignore : defaults.targets;
    if (std::find(usual.begin(), usual.end(), entry.entry) == usual.end())
      control.message(LogLevel::kWarning, fmt::format("--{}: {} matches no module{}{}", entry.list, entry.entry,
                                                      entry.hint.empty() ? "" : "; ", entry.hint));
  }
  if (!setup.model.source_format.empty())
    control.message(LogLevel::kInfo, fmt::format("the source is quantized ({}): the errors are relative to its "
                                                 "dequantized weights",
                                                 setup.model.source_format));
}

double bits_of(std::uint64_t bytes, std::int64_t elements) {
  return 8 * static_cast<double>(bytes) / static_cast<double>(elements);
}

/// Of one scheme over all modules.
struct Total {
  std::uint64_t bytes = 0;
  double errors = 0, greatest = -1;
  std::int64_t count = 0;  // of modules with an error
  std::string greatest_in;

  void add(const std::string& module, std::uint64_t stored, const std::optional<double>& error) {
    bytes += stored;
    if (!error) return;
    errors += *error, ++count;
    if (*error > greatest) greatest = *error, greatest_in = module;
  }

  Json to_json(std::int64_t elements, const quant::QuantizationScheme& scheme) const {
    return {{"bits", bits_of(bytes, elements)},
            {"mean_error", count > 0 ? Json(errors / static_cast<double>(count)) : Json()},
            {"greatest_error", count > 0 ? Json(greatest) : Json()},
            {"greatest_in", count > 0 ? Json(greatest_in) : Json()},
            {"rounds_inputs", scheme.input_activations.has_value()}};
  }
};

/// The figures as JSON.
Json report_of(const setup::RunSetup& setup, const std::vector<std::string>& names,
               const std::vector<const quant::QuantizationScheme*>& schemes, const Measurement& measurement) {
  const MeasuredLinears linears = linears_of(setup);
  std::vector<Total> totals(names.size());
  std::int64_t elements = 0;
  Json modules = Json::array();
  for (const compression::ModuleReport& report : measurement.reports) {
    const compression::LinearShape& linear = linears.at(report.module).shape;
    elements += linear.rows * linear.columns;
    const std::vector<std::optional<double>> errors = modifier::relative_errors(report);
    Json own = Json::object();
    for (std::size_t c = 0; c < names.size(); ++c) {
      const std::uint64_t bytes = stored_bytes(*schemes[c], linear);
      totals[c].add(report.module, bytes, errors[c]);
      own[names[c]] = {{"error", errors[c] ? Json(*errors[c]) : Json()},
                       {"bits", bits_of(bytes, linear.rows * linear.columns)}};
    }
    modules.push_back({{"module", report.module},
                       {"rows", linear.rows},
                       {"columns", linear.columns},
                       {"tokens", report.tokens},
                       {"output_power", report.figures.front()},
                       {"schemes", std::move(own)}});
  }
  Json all = Json::object();
  for (std::size_t c = 0; c < names.size(); ++c) all[names[c]] = totals[c].to_json(elements, *schemes[c]);
  return {{"model", setup.model.checkpoint->location().string()},
          {"samples", measurement.samples},
          {"tokens", measurement.tokens},
          {"order", names},
          {"schemes", std::move(all)},
          {"modules", std::move(modules)}};
}

}  // namespace

Json sensitivity(const OneshotOptions& options, const std::vector<std::string>& schemes, const RunControl& control,
                 dist::Group& group) {
  const c10::InferenceMode inference;
  if (schemes.empty())
    throw UsageError("[options] --sensitivity: no scheme to compare; add --schemes, such as NVFP4,FP8_DYNAMIC,W4A16");
  recipe::check_candidates(options, schemes, /*takes_none=*/false);
  check_options(options);
  if (group.is_first() && !options.summary.empty()) require_summary(options.summary);
  Rank rank{options, control, group};
  const SchemeComparison comparison = set_up_comparison(rank, schemes);
  const setup::RunSetup& setup = comparison.setup();
  say_unmatched(setup, control);
  const Measurement measurement =
      measure(rank, setup,
              fmt::format("{}: {} linears in {}", last_part(std::filesystem::path(options.model)),
                          setup.assignments.linears.size(), join(schemes)),
              load_calibration(rank, setup, setup::agree_on_data(options.dataset_split, group)));
  Json report = report_of(setup, schemes, comparison.schemes, measurement);
  report["seconds"] = rank.timer.seconds();
  report["peak_anonymous_bytes"] = rank.sampler.peak_bytes();
  report["planned_bytes"] = measurement.planned_bytes;
  if (group.is_first() && !options.summary.empty()) write_text_file(options.summary, report.dump(2) + "\n");
  return report;
}

}  // namespace layerpress::run
