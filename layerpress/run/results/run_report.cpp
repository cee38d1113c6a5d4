#include "layerpress/run/results/run_report.h"

#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/base/files/missing_folder.h"
#include "layerpress/base/text.h"
#include "layerpress/data/load_samples.h"
#include "layerpress/run/compression/model_name.h"
#include "layerpress/run/results/reproduction.h"
#include "layerpress/setup/opening/helper_request.h"

namespace layerpress::run {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNoPage = "none";

bool is_asked_for(const OneshotOptions& options) { return !options.report.empty() && options.report != kNoPage; }

/// Beside the summary, if that is a file; empty for no page.
fs::path default_place(const OneshotOptions& options) {
  std::error_code failure;
  if (!options.report.empty() || options.summary.empty()) return {};
  const fs::path page = fs::path(options.summary).replace_extension(".html");
  const bool is_file = fs::symlink_status(options.summary, failure).type() == fs::file_type::regular;
  return is_file && page != options.summary ? page : fs::path();
}

/// The script that draws charts in a browser: that of an installation, or this build's. Empty if there is none.
fs::path charts_script() {
  std::error_code failure;
  const fs::path installed = data::helper_script().parent_path() / "layerpress_report" / "charts.js";
  for (const fs::path& candidate : {installed, fs::path(LAYERPRESS_BUILD_CHARTS)})
    if (fs::exists(candidate, failure)) return candidate;
  return {};
}

void require_charts() {
  if (charts_script().empty())
    throw IoError(
        "[report] this build draws no charts, because the Python package 'vl-convert-python' was missing; install it "
        "with pip install vl-convert-python and build again");
}

void ask(Json request, const RunControl& control) {
  request["charts"] = charts_script().string();
  setup::ask_helper({"report.py", "[report]", request}, control);
}

/// A page may be passed on, so it names no folders of this machine.
std::string shown_dataset(const std::string& dataset) {
  const std::string known = public_dataset(dataset);
  return known.empty() ? last_part(dataset) : known;
}

/// A command that names the output, as it is written beside the output.
std::string beside(std::string command, const std::string& output) {
  const std::string full = shell_word(output);
  if (const std::size_t place = command.rfind(full); place != std::string::npos)
    command.replace(place, full.size(), shell_word(last_part(output)));
  return command;
}

void draw(const fs::path& page, const OneshotOptions& options, const RunControl& control,
          const OneshotSummary& summary) {
  require_charts();
  Json details = summary.details;
  details["model"] = details["model_name"];
  details["output"] = last_part(options.output);
  details["serving"]["command"] = beside(details["serving"]["command"].get<std::string>(), options.output);
  details["dataset"] = shown_dataset(options.dataset);
  ask({{"action", "draw"},
       {"output", page.string()},
       {"replaces", is_asked_for(options) ? "anything" : "pages"},
       {"summary", std::move(details)}},
      control);
  control.message(LogLevel::kInfo, "[report] " + page.string());
}

void draw_by_default(const OneshotOptions& options, const RunControl& control, const OneshotSummary& summary) {
  const fs::path page = default_place(options);
  if (page.empty() || summary.already_complete) return;
  try {
    draw(page, options, control, summary);
  } catch (const InterruptedError&) {
    throw;
  } catch (const Error& error) {
    control.message(LogLevel::kWarning, fmt::format("{}; no page was drawn", error.what()));
  }
}

}  // namespace

void check_report(const OneshotOptions& options) {
  if (!is_asked_for(options)) return;
  std::error_code failure;
  const fs::path page = options.report;
  if (fs::exists(page, failure) && !fs::is_regular_file(page, failure))
    throw UsageError("[options] --report: {} cannot be written, because it is not a file; name a file", options.report);
  if (const fs::path ending = page.extension(); ending != ".html" && ending != ".htm")
    throw UsageError("[options] --report: {} is no name of a page; give one that ends in .html, or none",
                     options.report);
  require_writable("--report", page);
  require_charts();
}

void write_report(const OneshotOptions& options, const dist::Group& group, const RunControl& control,
                  const OneshotSummary& summary) {
  if (!group.is_first()) return;
  if (!is_asked_for(options)) return draw_by_default(options, control, summary);
  if (summary.already_complete)
    return control.message(LogLevel::kWarning, "[report] the run had nothing to do, so no page was drawn");
  try {
    draw(options.report, options, control, summary);
  } catch (const IoError& error) {
    throw IoError("{}; the output is complete in {}", error.what(), options.output);
  }
}

void check_report(const EvaluateOptions& options, const RunControl& control) {
  if (options.report.empty()) return;
  require_charts();
  ask({{"action", "check_page"}, {"output", options.report}}, control);
}

void add_to_report(const EvaluateOptions& options, const Evaluation& evaluation, const RunControl& control) {
  if (options.report.empty()) return;
  Json figures = evaluation.to_json();
  figures["dataset"] = shown_dataset(options.dataset);
  figures["reference"] = options.reference.empty() ? "" : name_of_model(options.reference).shown;
  ask({{"action", "evaluate"}, {"output", options.report}, {"evaluation", std::move(figures)}}, control);
}

}  // namespace layerpress::run
