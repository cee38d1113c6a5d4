#include "layerpress/setup/run_identity.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>

#include "layerpress/base/file.h"
#include "layerpress/base/files/checksum.h"
#include "layerpress/kernels/instruction_set.h"

namespace layerpress::setup {
namespace {

constexpr int kFormat = 4;  // format of the journal

/// Of the names and bytes of all tensors: samples of each, about `samples` in all; everything where they meet.
std::string checksum_of_tensors(const checkpoint::Checkpoint& checkpoint, std::size_t samples) {
  constexpr std::size_t kSample = 4096;  // bytes
  std::size_t bytes_in_all = 0;
  for (const std::string& name : checkpoint.names()) bytes_in_all += checkpoint.tensor(name).nbytes();
  const std::size_t distance = std::max(bytes_in_all / samples, kSample);
  Checksum checksum;
  for (const std::string& name : checkpoint.names()) {
    const at::Tensor tensor = checkpoint.tensor(name);
    checksum.add(name.data(), name.size());
    const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
    for (std::size_t first = 0; first < tensor.nbytes(); first += distance)
      checksum.add(bytes + first, std::min(tensor.nbytes() - first, kSample));
  }
  return checksum.text();
}

/// Training changes all of a weight, and reading it all takes long.
std::string checksum_of_weights(const OpenedModel& model) {
  constexpr std::size_t kSamples = 1 << 14;
  return checksum_of_tensors(*model.stored, kSamples);
}

/// "" and groups of 0 stand for options that were not given.
std::string shown(const std::string& key, const Json& value) {
  const bool is_given = !value.is_null() && value != Json("") && (value != 0 || !key.ends_with("group-size"));
  return is_given ? value.dump() : "not given";
}

/// The first key with a different value, as "<kind> KEY was A and is B".
std::string first_difference(const Json& then, const Json& now, const std::string& kind) {
  for (const auto& [key, value] : now.items()) {
    const Json before = then.is_object() && then.contains(key) ? then[key] : Json();
    if (before != value) return fmt::format("{}{} was {} and is {}", kind, key, shown(key, before), shown(key, value));
  }
  return "";
}

}  // namespace

Json RunIdentity::to_json() const {
  Json json = {{"record", "header"}, {"format", kFormat},    {"options", options},
               {"recipe", recipe},   {"software", software}, {"model", model},
               {"dataset", dataset}, {"plan", plan},         {"subgraphs", subgraphs}};
  if (!decision.is_null()) json["decision"] = decision;
  return json;
}

RunIdentity identity_of_result(RunIdentity run, const OpenedModel& model) {
  run.software = {{"dtype", run.software["dtype"]}};
  run.model = {{"config.json", checksum_of_config(model)}, {"weights", run.model["weights"]}};
  run.plan = Json::object();
  if (run.decision.is_object()) run.decision.erase("seconds");  // a result's bytes say nothing of times
  return run;
}

bool describes_output(std::string_view option) {
  constexpr std::array<std::string_view, 16> kOthers = {"output",
                                                        "recipe",
                                                        "dataset",
                                                        "threads",
                                                        "overwrite",
                                                        "resume",
                                                        "timeout",
                                                        "push",
                                                        "push-public",
                                                        "summary",
                                                        "report",
                                                        "device",
                                                        "memory-budget",
                                                        "device-memory-budget",
                                                        "sequential-offload-device",
                                                        "offload-dir"};
  return std::find(kOthers.begin(), kOthers.end(), option) == kOthers.end();
}

Json identity_of_options(const OneshotOptions& options) {
  Json json = Json::object();
  OneshotOptions::visit(options, [&](const char* name, const auto& value, const char*) {
    const std::string_view option = name;  // the dtype is said with the software
    if (describes_output(option) && option != "download" && option != "dtype") json[name] = value;
  });
  json["imatrix"] = !options.imatrix.empty();
  if (!options.from_imatrix.empty()) {
    const auto file = MappedFile::open(options.from_imatrix);
    json["from-imatrix"] = checksum_of(file->data(), file->size());
  }
  return json;
}

Json identity_of_software(const residency::Placement& placement) {
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
    if (::stat(path.c_str(), &status) != 0) throw IoError("[oneshot] {}: cannot be examined", path.string());
    files[path.filename().string()] = {
        {"size", status.st_size}, {"modified", fmt::format("{}.{:09}", status.st_mtim.tv_sec, status.st_mtim.tv_nsec)}};
  }
  files["config.json"] = checksum_of_config(model);
  files["weights"] = checksum_of_weights(model);  // times can be restored
  if (model.checkpoint->directory().empty()) {    // in memory, no file's time of modification vouches for the values
    constexpr std::size_t kEverywhere = std::numeric_limits<std::size_t>::max();
    files["tensors"] = checksum_of_tensors(*model.checkpoint, kEverywhere);
  }
  if (!model.quantized.empty())
    files["quantization"] = {{"config", model.checkpoint->quantization_config()},
                             {"dtype", dtype_word(model.checkpoint->spec(model.quantized.begin()->first).dtype)},
                             {"kept", model.kept.size()}};
  return files;
}

std::string checksum_of_config(const OpenedModel& model) {
  const std::string config = model.checkpoint->config().dump();
  return checksum_of(config.data(), config.size());
}

namespace {

void add(const at::Tensor& tensor, Checksum& checksum) {
  const at::Tensor bytes = tensor.contiguous();
  checksum.add(bytes.const_data_ptr(), bytes.nbytes());
}

void add_embeddings(const data::GivenEmbeddings& given, Checksum& checksum) {
  if (!given.are_there()) return;
  for (const at::Tensor& tensor : {given.places, given.values, given.positions, given.added, given.groups})
    if (tensor.defined()) add(tensor, checksum);
}

void add_images(const data::SampleImages& images, Checksum& checksum) {
  checksum.add(images.aspect_ratios.data(), images.aspect_ratios.size() * sizeof(images.aspect_ratios[0]));
  add(images.mask, checksum);
  for (const at::Tensor& pixels : images.pixels) add(pixels, checksum);
}

}  // namespace

std::uint64_t checksum_of_samples(const data::CalibrationSet& set) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i + 1 < set.sample_offsets.size(); ++i) {
    const std::int64_t first = set.sample_offsets[i], tokens = set.sample_offsets[i + 1] - first;
    Checksum checksum;
    checksum.add(set.tokens.data() + first, static_cast<std::size_t>(tokens) * sizeof(set.tokens[0]));
    if (!set.loss_mask.empty()) checksum.add(set.loss_mask.data() + first, static_cast<std::size_t>(tokens));
    if (set.image_count(static_cast<std::int64_t>(i)) > 0) add_images(set.images[i], checksum);
    if (!set.images.empty()) add_embeddings(set.images[i].embeddings, checksum);
    sum += std::stoull(checksum.text(), nullptr, 16);
  }
  return sum;
}

Json identity_of_data(std::int64_t samples, std::int64_t tokens, std::uint64_t checksum) {
  return {{"samples", samples}, {"tokens", tokens}, {"checksum", fmt::format("{:016x}", checksum)}};
}

std::string difference(const Json& header, const RunIdentity& now) {
  const Json then = header.is_object() ? header : Json::object();
  const auto part = [&](const char* name) { return then.contains(name) ? then[name] : Json(); };
  if (part("format") != kFormat) return "its journal was written by another version";
  if (std::string found = first_difference(part("software"), now.software, "the "); !found.empty()) return found;
  // Before the model, whose config and tensors a recipe may change.
  if (std::string found = first_difference(part("options"), now.options, "--"); !found.empty()) return found;
  if (part("recipe") != now.recipe) return "the recipe is another one";
  for (const auto& [name, file] : now.model.items())
    if (!part("model").is_object() || part("model").value(name, Json()) != file)
      return name == "weights" ? "the model's weights differ"
                               : fmt::format("the model's file {} changed, or the time of its last change", name);
  if (part("model").size() != now.model.size()) return "the model has fewer files than then";
  if (part("subgraphs") != now.subgraphs) return "the model is cut differently";
  if (part("dataset") != now.dataset) return "the dataset's tokens differ, or its images";
  return "";
}

}  // namespace layerpress::setup
