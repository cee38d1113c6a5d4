#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "layerpress/base/text.h"
#include "layerpress/cli/commands.h"
#include "layerpress/cli/run_on_ranks.h"
#include "layerpress/cli/text/plan_text.h"
#include "layerpress/cli/text/style.h"
#include "layerpress/cli/text/wrapped_text.h"
#include "layerpress/distributed.h"
#include "layerpress/oneshot.h"

namespace layerpress::cli {
namespace {

void show_plan(const CommandLine& line, const RunControl& control, Distributed& ranks) {
  const Json plan = plan_oneshot(line.oneshot, control, &ranks);
  end_progress(control);
  if (ranks.is_first()) fmt::print("{}", line.json ? plan.dump(2) + "\n" : plan_text(plan));
}

void print_upload(const OneshotSummary& summary) {
  if (!summary.uploaded.empty()) fmt::print("uploaded to {}\n", summary.uploaded);
}

/// A line of the result: what it says is wrapped beside its name.
void print_fact(const std::string& name, const std::string& text) {
  const std::string left = fmt::format("  {:<7}", name);
  fmt::print("{}{}", left, wrapped_words(text, left.size(), {.indent = left.size()}));
}

void print_errors(const Json& worst) {
  if (worst.empty()) return;
  const bool outputs = worst.front().contains("relative_output_error");
  const char* key = outputs ? "relative_output_error" : "weight_error";
  print_fact("error", fmt::format("worst modules, relative to their {}:", outputs ? "outputs" : "weights"));
  for (const Json& group : worst) {
    std::vector<std::string> names = group["modules"].get<std::vector<std::string>>();
    for (std::size_t i = 1; i < names.size(); ++i) names[i] = last_part(names[i]);
    print_fact("", fmt::format("{:.4f} {}", group[key].get<double>(), join(names)));
  }
}

/// What the choice and the schemes beside it lose when all weights are rounded at once.
void print_measured(const Json& mixed) {
  if (!json_has(mixed, "measured_kl")) return;  // a run that an earlier version began
  std::vector<std::string> points = {fmt::format("this choice {:.3g}", mixed["measured_kl"].get<double>())};
  for (const Json& scheme : mixed["uniform"])
    if (json_has(scheme, "measured_kl"))
      points.push_back(fmt::format("{} alone ({:.2f} bits) {:.3g}", scheme["scheme"].get<std::string>(),
                                   scheme["bits"].get<double>(), scheme["measured_kl"].get<double>()));
  print_fact("", "measured, rounded to nearest: " + join(points));
}

/// What was chosen, and what other limits would have cost.
void print_mixed_precision(const Json& mixed) {
  if (mixed.is_null()) return;
  std::vector<std::string> chosen, points;
  for (const Json& scheme : mixed["schemes"])
    chosen.push_back(fmt::format("{} {}", scheme["modules"].get<std::size_t>(), scheme["scheme"].get<std::string>()));
  const Json vocabulary = mixed.value("vocabulary", Json());  // earlier runs chose without one
  const std::string beside =
      vocabulary.is_null() ? "" : fmt::format(", the vocabulary in {}", vocabulary["scheme"].get<std::string>());
  print_fact("mixed",
             fmt::format("{} at {:.3f} bits per weight{}; predicted KL divergence {:.3g} nats per token", join(chosen),
                         mixed["bits"].get<double>(), beside, mixed["predicted_kl"].get<double>()));
  for (const Json& point : mixed["curve"])
    points.push_back(fmt::format("{:.2f}: {:.3g}", point["bits"].get<double>(), point["predicted_kl"].get<double>()));
  print_fact("", "predicted for other bits: " + join(points));
  print_measured(mixed);
}

/// The most memory that a rank took.
std::uint64_t peak_bytes(const Json& ranks) {
  std::uint64_t peak = 0;
  for (const Json& rank : ranks) peak = std::max(peak, rank["peak_anonymous_bytes"].get<std::uint64_t>());
  return peak;
}

void print_summary(const OneshotSummary& summary) {
  if (summary.already_complete) {
    fmt::print("{}: already complete\n", summary.output);
    print_upload(summary);
    return;
  }
  const Json& details = summary.details;
  const auto scheme = details["scheme"].get<std::string>();
  const std::string head =
      summary.modules == 0 ? fmt::format("{}: {}, no module compressed", summary.output, scheme)
                           : fmt::format("{}: {} in {}", summary.output, counted(summary.modules, "module"), scheme);
  const std::string fallbacks = summary.fallbacks == 0 ? "" : fmt::format(", {} with a fallback", summary.fallbacks);
  const std::size_t outsized = details["outsized_errors"].size(), findings = details["findings"].size();
  const std::string errors = outsized == 0 ? "" : fmt::format(", {} with an error above 100 %", outsized);
  const std::string faults = findings == 0 ? "" : fmt::format(", {} findings of verify", findings);
  fmt::print("{}\n", styled(head + fallbacks + errors + faults, Style::kBold, STDOUT_FILENO));
  const auto before = details["source_bytes"].get<std::uint64_t>();
  print_fact("size", fmt::format("{} -> {} ({})", format_bytes(before), format_bytes(summary.output_bytes),
                                 details["size_change"].get<std::string>()));
  print_mixed_precision(details["mixed_precision"]);
  print_errors(details["worst_modules"]);
  print_fact("time",
             fmt::format("{}, peak memory {}{}", format_duration(summary.seconds),
                         format_bytes(peak_bytes(details["ranks"])), details["ranks"].size() > 1 ? " on a rank" : ""));
  fmt::print("  serve  {}\n", details["serving"]["command"].get<std::string>());  // in one piece, to be copied
  print_fact("needs", details["serving"]["hardware"].get<std::string>());
  print_upload(summary);
}

/// Prints the command that resumes the run, if the run has left finished work.
void print_resume_command(const CommonOptions& common, const OneshotOptions& options, int ranks) {
  try {
    if (can_resume(options.output))
      say(fmt::format("continue{} with: {} --resume\n", ranks > 1 ? ", on any number of ranks," : "",
                      common.command_line));
  } catch (const Error&) {
    // Only the error that ended the run is shown.
  }
}

/// Whether the same command can go on: what was asked for, the recipe and the data were not refused.
bool may_go_on(ErrorKind kind) {
  return kind != ErrorKind::kUsage && kind != ErrorKind::kRecipe && kind != ErrorKind::kData;
}

}  // namespace

int run_oneshot(const CommandLine& line, const RunControl& control) {
  const auto work = [&](Distributed& ranks) {
    if (line.dry_run) return show_plan(line, control, ranks);
    const OneshotSummary summary = oneshot(line.oneshot, control, &ranks);
    end_progress(control);
    if (ranks.is_first()) print_summary(summary);
  };
  return run_on_ranks(line.oneshot.timeout, control, work, [&](ErrorKind kind, const Distributed& ranks) {
    if (may_go_on(kind)) print_resume_command(line.common, line.oneshot, ranks.size());
  });
}

}  // namespace layerpress::cli
