#pragma once

#include <string>
#include <string_view>

#include "layerpress/base/json.h"
#include "layerpress/data/calibration_set.h"
#include "layerpress/oneshot.h"
#include "layerpress/recipe/recipe.h"
#include "layerpress/setup/opening/open_model.h"

namespace layerpress::setup {

/// The properties in which two runs must agree for one to resume the other, as stored in the journal's first record:
/// software, kind of CPU, options that matter, the model's files (name, size, modification time, checksums of
/// config.json and of some bytes of every weight), the tokens, and the division of the work.
struct RunIdentity {
  Json options = Json::object();  ///< option name to value, without options that do not change the output
  std::string recipe;             ///< in the form of recipe.yaml
  Json software = Json::object();
  Json model = Json::object();
  Json dataset;                ///< null without data
  Json plan = Json::object();  ///< ranks, threads, batch_tokens
  std::size_t subgraphs = 0;
  Json decision;  ///< as RunSetup::decision; the recipe follows from it, so that it is not compared

  Json to_json() const;
};

/// What a finished result keeps of it, to be compared with difference(): nothing that depends on the machine.
RunIdentity identity_of_result(RunIdentity run, const OpenedModel& model);

/// Whether an option says what the output is, and not only where and how fast a run works. Not its place, the recipe and the
/// dataset, which are known by more than their names.
bool describes_output(std::string_view option);

Json identity_of_options(const OneshotOptions& options);
Json identity_of_software(const residency::Placement& placement);
Json identity_of_model(const OpenedModel& model);
std::string checksum_of_config(const OpenedModel& model);  ///< of config.json's contents
/// A sum over samples, independent of their order and division: the sums of parts add up.
std::uint64_t checksum_of_samples(const data::CalibrationSet& set);
Json identity_of_data(std::int64_t samples, std::int64_t tokens, std::uint64_t checksum);

/// The first difference between the run that wrote `header` and this one, or "" if one can resume the other.
std::string difference(const Json& header, const RunIdentity& now);

}  // namespace layerpress::setup
