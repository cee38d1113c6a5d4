#include "layerpress/recipe/run_identity.h"

#include <sys/stat.h>

#include <set>

#include "layerpress/base/checksum.h"
#include "layerpress/base/file.h"
#include "layerpress/kernels/instruction_set.h"

namespace layerpress::recipe {
namespace {

/// Options that say where and how fast, not what; and those that other parts of the identity stand for.
const std::set<std::string>& options_left_out() {
  static const std::set<std::string> kNames = {"output",
                                               "recipe",
                                               "dataset",
                                               "threads",
                                               "overwrite",
                                               "resume",
                                               "summary",
                                               "dry-run",
                                               "json",
                                               "device",
                                               "dtype",
                                               "memory-budget",
                                               "device-memory-budget",
                                               "sequential-offload-device",
                                               "offload-dir"};
  return kNames;
}

std::string shown(const Json& value) { return value.is_null() ? "not given" : value.dump(); }

/// The first key with another value, as "<kind> KEY was A and is B".
std::string first_difference(const Json& then, const Json& now, const std::string& kind) {
  for (const auto& [key, value] : now.items()) {
    const Json before = then.is_object() && then.contains(key) ? then[key] : Json();
    if (before != value) return fmt::format("{}{} was {} and is {}", kind, key, shown(before), shown(value));
  }
  return "";
}

}  // namespace

Json RunIdentity::to_json() const {
  return {{"record", "header"}, {"format", 1},          {"options", options},
          {"recipe", recipe},   {"software", software}, {"model", model},
          {"dataset", dataset}, {"plan", plan},         {"subgraphs", subgraphs}};
}

Json identity_of_options(const OneshotOptions& options) {
  Json json = Json::object();
  OneshotOptions::visit(options, [&](const char* name, const auto& value, const char*) {
    if (options_left_out().count(name) == 0) json[name] = value;
  });
  return json;
}

Json identity_of_software(const runtime::Placement& placement) {
  return {{"layerpress", LAYERPRESS_VERSION},
          {"torch", LAYERPRESS_TORCH_VERSION},
          {"instruction set", kernels::instruction_set()},
          {"device", c10::DeviceTypeName(placement.device.type(), /*lower_case=*/true)},
          {"dtype", dtype_word(placement.dtype)}};
}

Json identity_of_model(const OpenedModel& model) {
  Json files = Json::object();
  for (const std::filesystem::path& path : model.checkpoint->weight_files()) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) throw CheckpointError("[oneshot] {}: cannot be looked at", path.string());
    files[path.filename().string()] = {
        {"size", status.st_size}, {"modified", fmt::format("{}.{:09}", status.st_mtim.tv_sec, status.st_mtim.tv_nsec)}};
  }
  const std::string config = model.checkpoint->config().dump();
  files["config.json"] = checksum_of(config.data(), config.size());
  return files;
}

Json identity_of_data(const data::CalibrationSet& set) {
  Checksum checksum;
  checksum.add(set.tokens.data(), set.tokens.size() * sizeof(set.tokens[0]));
  checksum.add(set.sample_offsets.data(), set.sample_offsets.size() * sizeof(set.sample_offsets[0]));
  return {{"samples", set.sample_count()}, {"tokens", set.token_count()}, {"checksum", checksum.text()}};
}

std::string difference(const Json& header, const RunIdentity& now) {
  const Json then = header.is_object() ? header : Json::object();
  const auto part = [&](const char* name) { return then.contains(name) ? then[name] : Json(); };
  if (part("format") != 1) return "its journal was written by another version";
  if (std::string found = first_difference(part("software"), now.software, "the "); !found.empty()) return found;
  for (const auto& [name, file] : now.model.items())
    if (!part("model").is_object() || part("model").value(name, Json()) != file)
      return fmt::format("the model's file {} changed", name);
  if (part("model").size() != now.model.size()) return "the model has fewer files than then";
  if (std::string found = first_difference(part("options"), now.options, "--"); !found.empty()) return found;
  if (part("recipe") != now.recipe) return "the recipe is another one";
  if (part("subgraphs") != now.subgraphs) return "the model is cut differently";
  if (part("dataset") != now.dataset) return "the dataset's tokens differ";
  return "";
}

}  // namespace layerpress::recipe
