#include "layerpress/setup/rank_agreement.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <random>
#include <system_error>
#include <thread>

#include "layerpress/base/file.h"
#include "layerpress/base/files/checksum.h"
#include "layerpress/checkpoint/companion_files.h"
#include "layerpress/data/row_slice.h"

namespace layerpress::setup {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenName = ".layerpress-ranks";

/// Size and checksum of both ends: enough to detect different data or builds without reading everything on every rank.
Json fingerprint(const fs::path& path) {
  std::error_code failure;
  if (!fs::is_regular_file(path, failure)) return nullptr;
  const auto file = MappedFile::open(path);
  constexpr std::uint64_t kEnd = 1 << 20;
  const std::uint64_t length = std::min(file->size(), kEnd);
  Checksum checksum;
  checksum.add(file->data(), length);
  checksum.add(file->data() + file->size() - length, length);
  return {{"size", file->size()}, {"checksum", checksum.text()}};
}

/// Hosts may have their own copies with different modification times, but the contents must be the same.
Json model_files(const OpenedModel& model) {
  Json files = Json::object();
  const checkpoint::Checkpoint& stored = *model.checkpoint;
  for (const fs::path& path : stored.weight_files()) files[path.filename().string()] = fingerprint(path);
  if (!stored.directory().empty())
    for (const fs::path& path : stored.companion_files())
      if (checkpoint::is_preprocessing_file(path)) files[path.string()] = fingerprint(stored.directory() / path);
  files["config.json"] = checksum_of_config(model);
  return files;
}

Json start_of(const OneshotOptions& options, bool is_plan) {
  Json start = {{"--dry-run", is_plan}};
  const Json asked = identity_of_options(options);
  for (const auto& [name, value] : asked.items())
    if (name != "dataset-split") start["--" + name] = value;
  start["--output"] = options.output;
  start["--resume"] = options.resume;
  start["--overwrite"] = options.overwrite;
  start["--push"] = options.push;
  start["--download"] = options.download;
  start["--dataset"] = options.own_dataset ? "of each rank" : options.dataset;
  return start;
}

Json request_of(const OneshotOptions& options, const RunSetup& setup) {
  Json request = Json::object();
  const Json software = identity_of_software(setup.placement);
  request["the program"] = {{"version", software["layerpress"]},
                            {"torch", software["torch"]},
                            {"instruction set", software["instruction set"]},
                            {"binary", fingerprint("/proc/self/exe")}};
  request["the computing dtype"] = software["dtype"];
  request["the kind of device"] = software["device"];
  request["the model"] = model_files(setup.model);
  request["the recipe"] = recipe::to_yaml(setup.recipe);
  if (!options.own_dataset) request["the dataset's file"] = fingerprint(options.dataset);
  return request;
}

/// "--scheme is "W4A16" on rank 0 and "W8A8" on rank 2"; long values are not shown.
std::string difference_of(const Json& first, const Json& other, int rank) {
  for (const auto& [name, value] : first.items()) {
    const Json found = other.contains(name) ? other[name] : Json();
    if (found == value) continue;
    if (value.is_object() && found.is_object())
      for (const Json& parts : {value, found})
        for (const auto& [part, inner] : parts.items())
          if (!found.contains(part) || !value.contains(part) || found[part] != value[part])
            return fmt::format("{} ({}) differs between rank 0 and rank {}", name, part, rank);
    const std::string a = value.dump(), b = found.dump();
    if (a.size() + b.size() > 200) return fmt::format("{} differs between rank 0 and rank {}", name, rank);
    return fmt::format("{} is {} on rank 0 and {} on rank {}", name, a, b, rank);
  }
  return "";
}

std::string random_token() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

/// Whether the folder contains the token; on shared storage, new files may appear a little later.
bool sees_token(const fs::path& folder, const std::string& token, dist::Group& group) {
  for (int attempt = 0; attempt < 25; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    group.check();
    try {
      std::error_code failure;
      if (!fs::exists(folder / kTokenName, failure)) continue;
      if (read_text_file(folder / kTokenName) == token) return true;
    } catch (const Error&) {
      // Not there yet.
    }
  }
  return false;
}

struct NamedSlice {
  std::string name;
  std::int64_t start, stop;
};

NamedSlice parse(const std::string& split) {
  const data::RowSlice slice = data::parse_row_slice(split);
  return {split.substr(0, split.find('[')), slice.start, slice.stop.value_or(std::numeric_limits<std::int64_t>::max())};
}

void require_same(const Json& own, dist::Group& group) {
  const std::vector<std::string> all = group.all_gather_text(own.dump(-1, ' ', true, Json::error_handler_t::replace));
  const Json first = Json::parse(all.front());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const std::string found = difference_of(first, Json::parse(all[rank]), static_cast<int>(rank));
    if (!found.empty())
      throw DistributedError("[dist.start] ranks do not agree: {}; start all of them with the same", found);
  }
}

}  // namespace

void require_same_start(const OneshotOptions& options, bool is_plan, dist::Group& group) {
  if (group.size() > 1) require_same(start_of(options, is_plan), group);
}

void require_same_request(const OneshotOptions& options, const RunSetup& setup, dist::Group& group) {
  if (group.size() > 1) require_same(request_of(options, setup), group);
}

DataDivision agree_on_data(const std::string& split, dist::Group& group) {
  const std::vector<std::string> all = group.all_gather_text(split);
  if (std::all_of(all.begin(), all.end(), [&](const std::string& other) { return other == split; }))
    return {false, split};
  std::vector<NamedSlice> slices;
  for (const std::string& other : all) slices.push_back(parse(other));
  std::int64_t start = std::numeric_limits<std::int64_t>::max(), stop = 0;
  for (std::size_t a = 0; a < slices.size(); ++a) {
    if (slices[a].name != slices.front().name)
      throw DistributedError("[dist.start] ranks do not agree: --dataset-split is {} on rank 0 and {} on rank {}",
                             all.front(), all[a], a);
    if (slices[a].start >= slices[a].stop) continue;
    start = std::min(start, slices[a].start);
    stop = std::max(stop, slices[a].stop);
    for (std::size_t b = a + 1; b < slices.size(); ++b)
      if (slices[b].start < slices[b].stop && slices[a].start < slices[b].stop && slices[b].start < slices[a].stop)
        throw DistributedError(
            "[dist.start] --dataset-split: {} on rank {} and {} on rank {} overlap; give every rank different rows, or "
            "all ranks the same split",
            all[a], a, all[b], b);
  }
  return {true, fmt::format("{}[{}:{}]", slices.front().name, std::min(start, stop), stop)};
}

void require_shared_folder(const fs::path& folder, dist::Group& group) {
  if (group.size() == 1) return;
  const std::string token = group.broadcast_text(group.is_first() ? random_token() : "", 0);
  if (group.is_first()) write_text_file(folder / kTokenName, token);
  group.barrier();
  const std::vector<std::string> seen = group.all_gather_text(sees_token(folder, token, group) ? "yes" : "no");
  std::error_code ignored;
  if (group.is_first()) fs::remove(folder / kTokenName, ignored);
  for (std::size_t rank = 0; rank < seen.size(); ++rank)
    if (seen[rank] != "yes")
      throw DistributedError(
          "[dist.start] rank {} does not see the output folder {} that rank 0 made; put --output on storage that all "
          "hosts share",
          rank, folder.string());
}

std::int64_t agree_on_least(std::int64_t own, dist::Group& group) {
  std::int64_t least = own;
  for (const at::Tensor& other : group.all_gather(at::full({1}, own, at::kLong)))
    least = std::min(least, other.item<std::int64_t>());
  return least;
}

std::vector<std::vector<std::int64_t>> RankLoaders::all_gather(const std::vector<std::int64_t>& own) {
  std::string bytes(own.size() * sizeof(std::int64_t), '\0');
  std::memcpy(bytes.data(), own.data(), bytes.size());
  std::vector<std::vector<std::int64_t>> all;
  for (const std::string& other : group_.all_gather_text(bytes)) {
    all.emplace_back(other.size() / sizeof(std::int64_t));
    std::memcpy(all.back().data(), other.data(), all.back().size() * sizeof(std::int64_t));
  }
  return all;
}

}  // namespace layerpress::setup
