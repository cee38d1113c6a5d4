#include "layerpress/run/run_report.h"

#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/setup/helper_request.h"

namespace layerpress::run {
namespace {

void ask(const Json& request, const RunControl& control) {
  setup::ask_helper({"report.py", "[report]", request}, control);
}

}  // namespace

void check_report(const OneshotOptions& options, const dist::Group& group, const RunControl& control) {
  if (!options.report.empty() && group.is_first()) ask({{"action", "check"}, {"output", options.report}}, control);
}

void write_report(const OneshotOptions& options, const dist::Group& group, const RunControl& control,
                  const OneshotSummary& summary) {
  if (options.report.empty() || !group.is_first()) return;
  if (summary.already_complete) {
    control.message(LogLevel::kWarning, "[report] nothing was done, so there is nothing to draw");
    return;
  }
  Json details = summary.details;
  details["dataset"] = options.dataset;
  try {
    ask({{"action", "draw"}, {"output", options.report}, {"summary", std::move(details)}}, control);
  } catch (const IoError& error) {
    throw IoError("{}; the output is complete in {}", error.what(), options.output);
  }
  control.message(LogLevel::kInfo, "[report] " + options.report);
}

void check_report(const EvaluateOptions& options, const RunControl& control) {
  if (!options.report.empty()) ask({{"action", "check_page"}, {"output", options.report}}, control);
}

void add_to_report(const EvaluateOptions& options, const Evaluation& evaluation, const RunControl& control) {
  if (options.report.empty()) return;
  Json figures = evaluation.to_json();
  figures["dataset"] = options.dataset;
  figures["reference"] = options.reference;
  ask({{"action", "evaluate"}, {"output", options.report}, {"evaluation", std::move(figures)}}, control);
}

}  // namespace layerpress::run
