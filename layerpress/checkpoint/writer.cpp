#include "layerpress/checkpoint/writer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/base/text.h"
#include "layerpress/checkpoint/shard_index.h"
#include "layerpress/checkpoint/strict_json.h"

namespace layerpress::checkpoint {

/// Where a tensor goes. `claimed` turns true when a thread begins to write it, `written` when its bytes are in the
/// file.
struct CheckpointWriter::Place {
  TensorSpec spec;
  Shard* shard = nullptr;
  std::uint64_t offset = 0;
  bool claimed = false;
  bool written = false;
};

struct CheckpointWriter::Shard {
  std::string name;
  OutputFile file;
};

namespace {

using ShardSpecs = std::vector<TensorSpec>;

std::vector<ShardSpecs> divide_into_shards(const std::vector<TensorSpec>& specs, std::uint64_t max_shard_bytes) {
  std::vector<ShardSpecs> shards(1);
  std::uint64_t filled = 0;
  for (const TensorSpec& spec : specs) {
    if (!shards.back().empty() && filled + spec.nbytes() > max_shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(spec);
    filled += spec.nbytes();
  }
  for (ShardSpecs& shard : shards)
    std::stable_sort(shard.begin(), shard.end(), [](const TensorSpec& a, const TensorSpec& b) {
      return c10::elementSize(a.dtype) > c10::elementSize(b.dtype);
    });
  return shards;
}

std::string shard_name(std::size_t number, std::size_t count) {
  return count == 1 ? kSingleFileName : fmt::format("model-{:05}-of-{:05}.safetensors", number, count);
}

std::uint64_t data_bytes(const ShardSpecs& shard) {
  std::uint64_t bytes = 0;
  for (const TensorSpec& spec : shard) bytes += spec.nbytes();
  return bytes;
}

void check_matches(const TensorSpec& spec, const at::Tensor& tensor) {
  if (tensor.scalar_type() != spec.dtype || tensor.sizes() != at::IntArrayRef(spec.shape))
    throw InternalError("[writer.write] tensor {} was announced as {} [{}] and comes as {} [{}]", in_quotes(spec.name),
                        at::toString(spec.dtype), fmt::join(spec.shape, ", "), at::toString(tensor.scalar_type()),
                        fmt::join(tensor.sizes(), ", "));
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::filesystem::path directory, const std::vector<TensorSpec>& specs,
                                   Options options)
    : directory_(std::move(directory)) {
  const std::vector<ShardSpecs> divided = divide_into_shards(specs, options.max_shard_bytes);
  for (const ShardSpecs& shard_specs : divided) {
    const std::string header = safetensors_header(shard_specs);
    const std::string name = shard_name(shards_.size() + 1, divided.size());
    const std::uint64_t size = header.size() + data_bytes(shard_specs);
    shards_.push_back(std::unique_ptr<Shard>(new Shard{name, OutputFile(directory_ / name, size)}));
    shards_.back()->file.write_at(0, header.data(), header.size());
    std::uint64_t offset = header.size();
    for (const TensorSpec& spec : shard_specs) {
      if (!places_.emplace(spec.name, Place{spec, shards_.back().get(), offset}).second)
        throw InternalError("[writer.open] tensor {} is announced twice", in_quotes(spec.name));
      offset += spec.nbytes();
      total_bytes_ += spec.nbytes();
      total_parameters_ += static_cast<std::uint64_t>(spec.numel());
    }
  }
}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::write(const std::string& name, const at::Tensor& tensor) {
  const auto found = places_.find(name);
  if (found == places_.end()) throw InternalError("[writer.write] tensor {} was not announced", in_quotes(name));
  Place& place = found->second;
  check_matches(place.spec, tensor);
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(place.claimed, true))
      throw InternalError("[writer.write] tensor {} is written a second time", in_quotes(name));
  }
  // Every tensor has its own range of its file, so the bytes go out without the lock.
  const at::Tensor contiguous = tensor.detach().to(at::kCPU).contiguous();
  const std::uint64_t length = place.spec.nbytes();
  place.shard->file.write_at(place.offset, contiguous.const_data_ptr(), length);
  constexpr std::uint64_t kWorthFlushing = 1u << 20;
  if (length >= kWorthFlushing) place.shard->file.flush_range(place.offset, length);
  const std::lock_guard lock(mutex_);
  place.written = true;
}

void CheckpointWriter::finish() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> absent;
  Json weight_map = Json::object();
  for (const auto& [name, place] : places_) {
    if (!place.written) absent.push_back(in_quotes(name));
    weight_map[name] = place.shard->name;
  }
  if (!absent.empty()) {
    const std::size_t count = absent.size();
    absent.resize(std::min<std::size_t>(count, 5));
    throw InternalError("[writer.finish] {} tensors were announced and not written: {}{}", count, join(absent),
                        count > absent.size() ? ", ..." : "");
  }
  for (const auto& shard : shards_) shard->file.sync_and_close();
  if (shards_.size() == 1) return;
  const Json index = {{"metadata", {{"total_parameters", total_parameters_}, {"total_size", total_bytes_}}},
                      {"weight_map", std::move(weight_map)}};
  write_text_file(directory_ / kIndexName, index.dump(2) + "\n");
}

}  // namespace layerpress::checkpoint
