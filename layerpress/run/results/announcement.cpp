#include "layerpress/run/results/announcement.h"

#include <fmt/format.h>

#include "layerpress/base/duration.h"
#include "layerpress/base/text.h"
#include "layerpress/plan/machine_rates.h"
#include "layerpress/run/compression/model_name.h"
#include "layerpress/run/results/result_facts.h"

namespace layerpress::run {
namespace {

std::string place_text(const setup::RunSetup& setup) {
  const std::string ranks = setup.ranks > 1 ? fmt::format("{} ranks, each on ", setup.ranks) : "";
  if (!setup.placement.device.is_cpu()) return ranks + setup.placement.device.str();
  return fmt::format("{}{} CPU {}", ranks, setup.threads, setup.threads == 1 ? "thread" : "threads");
}

std::string time_text(double seconds) {
  return seconds > 0 ? "about " + format_duration(seconds) : "less than 2 minutes";
}

std::string announcement_text(const Work& work, double seconds) {
  std::string text = work.all_samples > 0 ? fmt::format(", {} samples ({} tokens)", work.all_samples, work.all_tokens)
                                          : ", without data";
  const plan::Memory& peak = work.plan.memory.peak;
  text += fmt::format(", on {}; plan: {} of memory{}", place_text(work.setup), format_bytes(peak.host),
                      work.setup.ranks > 1 ? " for each rank" : "");
  if (peak.device > 0) text += fmt::format(", {} on the device", format_bytes(peak.device));
  return text + ", " + time_text(seconds);
}

}  // namespace

std::string compressed_words(const OneshotOptions& options, const setup::RunSetup& setup) {
  return fmt::format("{} to {}", last_part(std::filesystem::path(options.model)), scheme_names(setup));
}

void announce(const Rank& rank, const Work& work, const std::string& what, const std::filesystem::path& folder) {
  if (!rank.group.is_first()) return;
  const setup::RunSetup& setup = work.setup;
  rank.control.message(LogLevel::kInfo,
                       what + announcement_text(work, plan::planned_seconds(setup, work.plan, folder)));
  if (setup.pipeline->takes_data)
    rank.control.message(LogLevel::kInfo,
                         fmt::format("products in {}, values in {}, batches of up to {} tokens",
                                     setup::arithmetic_words(setup.placement), setup::dtype_word(setup.placement.dtype),
                                     work.plan.batch_tokens));
}

}  // namespace layerpress::run
