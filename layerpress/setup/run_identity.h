#pragma once

#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/data/calibration_set.h"
#include "layerpress/oneshot.h"
#include "layerpress/recipe/recipe.h"
#include "layerpress/setup/open_model.h"

namespace layerpress::setup {

/// What makes two runs the same, as the journal's first record holds it: software, kind of CPU, options that matter, the
/// model's files (name, size, time of change, checksum of config.json), the tokens, and how the work is divided.
struct RunIdentity {
  Json options = Json::object();  ///< option name to value; those that change no byte are left out
  std::string recipe;             ///< as recipe.yaml
  Json software = Json::object();
  Json model = Json::object();
  Json dataset;                ///< null without data
  Json plan = Json::object();  ///< ranks, threads, batch_tokens
  std::size_t subgraphs = 0;

  Json to_json() const;
};

Json identity_of_options(const OneshotOptions& options);
Json identity_of_software(const residency::Placement& placement);
Json identity_of_model(const OpenedModel& model);
std::string checksum_of_config(const OpenedModel& model);  ///< of config.json's contents
/// A sum over samples, in any order and divided in any way: parts' sums add up.
std::uint64_t checksum_of_samples(const data::CalibrationSet& set);
Json identity_of_data(std::int64_t samples, std::int64_t tokens, std::uint64_t checksum);

/// Names the first difference between the run that wrote `header` and this one, or "" when one can continue the other.
std::string difference(const Json& header, const RunIdentity& now);

}  // namespace layerpress::setup
