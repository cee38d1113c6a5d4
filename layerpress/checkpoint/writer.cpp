#include "layerpress/checkpoint/writer.h"

#include <ATen/Functions.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "layerpress/base/checksum.h"
#include "layerpress/base/error.h"
#include "layerpress/base/text.h"
#include "layerpress/checkpoint/shard_index.h"
#include "layerpress/checkpoint/strict_json.h"

namespace layerpress::checkpoint {

/// Where a tensor goes. `claimed` turns true when a thread begins to write it, `written` when its bytes are in the
/// file; from then on the place does not change.
struct CheckpointWriter::Place {
  TensorSpec spec;
  Shard* shard = nullptr;
  std::uint64_t offset = 0;
  bool claimed = false;
  bool written = false;
  std::string checksum{};
};

struct CheckpointWriter::Shard {
  std::string name;
  OutputFile file;
  bool has_unsynced = false;
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

void remove_file(const std::filesystem::path& path) {
  std::error_code failure;
  std::filesystem::remove(path, failure);
  if (failure) throw CheckpointError("[writer.open] {}: cannot be removed: {}", path.string(), failure.message());
}

/// Whether an earlier writer left the file complete in size and with this header.
bool is_reusable(const std::filesystem::path& path, std::uint64_t size, const std::string& header) {
  try {
    const OutputFile file(path, size, OutputFile::Mode::kReopen);
    std::string found(header.size(), '\0');
    file.read_at(0, found.data(), found.size());
    return found == header;
  } catch (const CheckpointError&) {
    return false;  // absent, cut short or unreadable: made anew
  }
}

std::string stored_checksum(const OutputFile& file, std::uint64_t offset, std::uint64_t length) {
  constexpr std::uint64_t kPiece = 8u << 20;
  std::vector<std::byte> piece(std::min(length, kPiece));
  Checksum checksum;
  for (std::uint64_t done = 0; done < length; done += piece.size()) {
    piece.resize(std::min(kPiece, length - done));
    file.read_at(offset + done, piece.data(), piece.size());
    checksum.add(piece.data(), piece.size());
  }
  return checksum.text();
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
    const bool reused = options.reopen && is_reusable(directory_ / name, size, header);
    if (options.reopen && !reused) remove_file(directory_ / name);
    const auto mode = reused ? OutputFile::Mode::kReopen : OutputFile::Mode::kCreate;
    shards_.push_back(std::unique_ptr<Shard>(new Shard{name, OutputFile(directory_ / name, size, mode)}));
    if (!reused) shards_.back()->file.write_at(0, header.data(), header.size());
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

CheckpointWriter::Place& CheckpointWriter::claim(const std::string& name, const char* doing) {
  const auto found = places_.find(name);
  if (found == places_.end()) throw InternalError("[writer.{}] tensor {} was not announced", doing, in_quotes(name));
  const std::lock_guard lock(mutex_);
  if (std::exchange(found->second.claimed, true))
    throw InternalError("[writer.{}] tensor {} is written a second time", doing, in_quotes(name));
  return found->second;
}

void CheckpointWriter::write(const std::string& name, const at::Tensor& tensor) {
  const auto found = places_.find(name);
  if (found != places_.end()) check_matches(found->second.spec, tensor);
  Place& place = claim(name, "write");
  // Every tensor has its own range of its file, so the bytes go out without the lock.
  const at::Tensor contiguous = tensor.detach().to(at::kCPU).contiguous();
  const std::uint64_t length = place.spec.nbytes();
  std::string checksum = checksum_of(contiguous.const_data_ptr(), length);
  place.shard->file.write_at(place.offset, contiguous.const_data_ptr(), length);
  constexpr std::uint64_t kWorthFlushing = 1u << 20;
  if (length >= kWorthFlushing) place.shard->file.flush_range(place.offset, length);
  const std::lock_guard lock(mutex_);
  place.checksum = std::move(checksum);
  place.written = true;
  place.shard->has_unsynced = true;
}

const CheckpointWriter::Place& CheckpointWriter::written_place(const std::string& name) const {
  const auto found = places_.find(name);
  const std::lock_guard lock(mutex_);
  if (found == places_.end() || !found->second.written)
    throw InternalError("[writer.read] tensor {} was not written", in_quotes(name));
  return found->second;
}

at::Tensor CheckpointWriter::read(const std::string& name) const {
  const Place& place = written_place(name);
  at::Tensor tensor = at::empty(place.spec.shape, place.spec.dtype);
  place.shard->file.read_at(place.offset, tensor.mutable_data_ptr(), place.spec.nbytes());
  return tensor;
}

std::string CheckpointWriter::checksum(const std::string& name) const { return written_place(name).checksum; }

bool CheckpointWriter::accept(const std::string& name, const std::string& checksum) {
  Place& place = claim(name, "accept");
  const bool matches = stored_checksum(place.shard->file, place.offset, place.spec.nbytes()) == checksum;
  const std::lock_guard lock(mutex_);
  place.claimed = place.written = matches;
  if (matches) place.checksum = checksum;
  return matches;
}

void CheckpointWriter::retract(const std::string& name) {
  const std::lock_guard lock(mutex_);
  Place& place = places_.at(name);
  place.claimed = place.written = false;
}

void CheckpointWriter::sync() {
  const std::lock_guard one_at_a_time(sync_mutex_);
  if (!std::exchange(directory_synced_, true)) sync_directory(directory_);
  for (const auto& shard : shards_) {
    {
      const std::lock_guard lock(mutex_);
      if (!std::exchange(shard->has_unsynced, false)) continue;
    }
    shard->file.sync();
  }
}

std::vector<std::string> CheckpointWriter::file_names() const {
  std::vector<std::string> names;
  for (const auto& shard : shards_) names.push_back(shard->name);
  return names;
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
