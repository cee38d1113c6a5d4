#include "layerpress/checkpoint/writer.h"

#include <ATen/Functions.h>
#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/base/files/checksum.h"
#include "layerpress/base/files/descriptor.h"
#include "layerpress/base/text.h"
#include "layerpress/checkpoint/shard_index.h"
#include "layerpress/checkpoint/strict_json.h"

namespace layerpress::checkpoint {

/// The position of a tensor. `claimed` becomes true when a thread begins to write it; `written` becomes true when its
/// bytes are in the file. From then on the position does not change.
struct CheckpointWriter::Place {
  TensorSpec spec;
  Shard* shard = nullptr;
  std::uint64_t offset = 0;
  bool own = true;
  bool claimed = false;
  bool written = false;
  std::string checksum{};
};

struct CheckpointWriter::Shard {
  std::string name;
  std::uint64_t size = 0;
  std::unique_ptr<OutputFile> file{};  // into which this writer writes
  Descriptor other_file{};             // into which it does not, opened on the first read
  bool has_unsynced = false;
};

namespace {

void check_matches(const TensorSpec& spec, const at::Tensor& tensor) {
  if (tensor.scalar_type() != spec.dtype || tensor.sizes() != at::IntArrayRef(spec.shape))
    throw InternalError("[writer.write] tensor {} was announced as {} [{}] but is {} [{}]", in_quotes(spec.name),
                        at::toString(spec.dtype), fmt::join(spec.shape, ", "), at::toString(tensor.scalar_type()),
                        fmt::join(tensor.sizes(), ", "));
}

void remove_file(const std::filesystem::path& path) {
  std::error_code failure;
  std::filesystem::remove(path, failure);
  if (failure) throw IoError("[writer.open] {}: cannot be removed: {}", path.string(), failure.message());
}

/// Whether an earlier writer left a file with the full size and this header.
bool is_reusable(const std::filesystem::path& path, std::uint64_t size, const std::string& header) {
  try {
    const OutputFile file(path, size, OutputFile::Mode::kReopen);
    std::string found(header.size(), '\0');
    file.read_at(0, found.data(), found.size());
    return found == header;
  } catch (const IoError&) {
    return false;  // missing, truncated or unreadable: created again
  }
}

/// The file of an own set, created unless an earlier writer has left it.
std::unique_ptr<OutputFile> own_file(const std::filesystem::path& path, const FileLayout& layout, bool reopen) {
  const bool reused = reopen && is_reusable(path, layout.size, layout.header);
  if (reopen && !reused) remove_file(path);
  const auto mode = reused ? OutputFile::Mode::kReopen : OutputFile::Mode::kCreate;
  auto file = std::make_unique<OutputFile>(path, layout.size, mode);
  if (!reused) file->write_at(0, layout.header.data(), layout.header.size());
  return file;
}

Descriptor open_written_by_other(const std::filesystem::path& path, std::uint64_t size) {
  Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (descriptor.value() < 0 || ::fstat(descriptor.value(), &status) != 0)
    throw IoError("[writer.read] {}: {}; another process writes this file; give all processes the same folder",
                  path.string(), errno_text());
  if (!S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) != size)
    throw IoError("[writer.read] {}: has {} bytes instead of {}; was it changed? Start over", path.string(),
                  status.st_size, size);
  return descriptor;
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

CheckpointWriter::CheckpointWriter(std::filesystem::path directory, const CheckpointLayout& layout,
                                   const Options& options)
    : directory_(std::move(directory)), has_index_(layout.has_index) {
  int sets = 0;
  for (const FileLayout& file : layout.files) {
    sets = std::max(sets, file.set + 1);
    for (const int set : file.set_of_tensor) sets = std::max(sets, set + 1);
  }
  if (!options.own.empty() && std::ssize(options.own) < sets)
    throw InternalError("[writer.open] files of {} sets, of which {} are known to be own or not", sets,
                        options.own.size());
  for (const FileLayout& file : layout.files) add_shard(file, options);
}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::add_shard(const FileLayout& layout, const Options& options) {
  const auto owns = [&](int set) { return options.own.empty() || options.own[static_cast<std::size_t>(set)]; };
  const std::vector<int>& sets = layout.set_of_tensor;
  const std::filesystem::path path = directory_ / layout.name;
  shards_.push_back(std::make_unique<Shard>(Shard{layout.name, layout.size}));
  Shard& shard = *shards_.back();
  if (owns(layout.set)) {
    shard.file = own_file(path, layout, options.reopen);
    if (!sets.empty()) shard.file->share();
  } else if (std::any_of(sets.begin(), sets.end(), owns)) {
    shard.file = std::make_unique<OutputFile>(path, layout.size, OutputFile::Mode::kJoin);
  }
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const StoredTensor& tensor = layout.tensors[i];
    const bool own = owns(sets.empty() ? layout.set : sets.at(i));
    if (!places_.emplace(tensor.name, Place{tensor, &shard, tensor.offset, own}).second)
      throw InternalError("[writer.open] tensor {} is announced twice", in_quotes(tensor.name));
    total_bytes_ += tensor.nbytes();
    total_parameters_ += static_cast<std::uint64_t>(tensor.numel());
  }
}

const CheckpointWriter::Place& CheckpointWriter::announced_place(const std::string& name, const char* doing) const {
  const auto found = places_.find(name);
  if (found == places_.end()) throw InternalError("[writer.{}] tensor {} was not announced", doing, in_quotes(name));
  return found->second;
}

bool CheckpointWriter::owns(const std::string& name) const { return announced_place(name, "owns").own; }

CheckpointWriter::Place& CheckpointWriter::claim(const std::string& name, const char* doing, bool own) {
  if (owns(name) != own)
    throw InternalError("[writer.{}] tensor {} is {}", doing, in_quotes(name), own ? "another writer's" : "own");
  Place& place = places_.at(name);
  const std::lock_guard lock(mutex_);
  if (std::exchange(place.claimed, true))
    throw InternalError("[writer.{}] tensor {} is written a second time", doing, in_quotes(name));
  return place;
}

void CheckpointWriter::write(const std::string& name, const at::Tensor& tensor) {
  check_matches(announced_place(name, "write").spec, tensor);
  Place& place = claim(name, "write", /*own=*/true);
  // Every tensor has its own range of its file, so the bytes are written without the lock.
  const at::Tensor contiguous = tensor.detach().to(at::kCPU).contiguous();
  const std::uint64_t length = place.spec.nbytes();
  std::string checksum = checksum_of(contiguous.const_data_ptr(), length);
  place.shard->file->write_at(place.offset, contiguous.const_data_ptr(), length);
  constexpr std::uint64_t kWorthFlushing = 1u << 20;
  if (length >= kWorthFlushing) place.shard->file->flush_range(place.offset, length);
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
  if (place.shard->file != nullptr)
    place.shard->file->read_at(place.offset, tensor.mutable_data_ptr(), place.spec.nbytes());
  else
    read_from_other(*place.shard, place.offset, tensor.mutable_data_ptr(), place.spec.nbytes());
  return tensor;
}

void CheckpointWriter::read_from_other(Shard& shard, std::uint64_t offset, void* bytes, std::uint64_t length) const {
  const std::filesystem::path path = directory_ / shard.name;
  {
    const std::lock_guard lock(mutex_);
    if (shard.other_file.value() < 0) shard.other_file = open_written_by_other(path, shard.size);
  }
  if (read_fully(shard.other_file.value(), offset, bytes, length)) return;
  throw IoError("[writer.read] {}: bytes {} to {} cannot be read: {}", path.string(), offset, offset + length,
                errno == 0 ? "the file ends before" : errno_text());
}

std::string CheckpointWriter::checksum(const std::string& name) const { return written_place(name).checksum; }

bool CheckpointWriter::accept(const std::string& name, const std::string& checksum) {
  Place& place = claim(name, "accept", /*own=*/true);
  const bool matches = stored_checksum(*place.shard->file, place.offset, place.spec.nbytes()) == checksum;
  const std::lock_guard lock(mutex_);
  place.claimed = place.written = matches;
  if (matches) place.checksum = checksum;
  return matches;
}

void CheckpointWriter::adopt(const std::string& name, const std::string& checksum) {
  Place& place = claim(name, "adopt", /*own=*/false);
  const std::lock_guard lock(mutex_);
  place.checksum = checksum;
  place.written = true;
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
    shard->file->sync();
  }
}

std::uint64_t CheckpointWriter::file_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& shard : shards_) bytes += shard->size;
  return bytes;
}

std::vector<std::string> CheckpointWriter::file_names() const {
  std::vector<std::string> names;
  for (const auto& shard : shards_) names.push_back(shard->name);
  return names;
}

void CheckpointWriter::finish() {
  {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> absent;
    for (const auto& [name, place] : places_)
      if (place.own && !place.written) absent.push_back(in_quotes(name));
    if (!absent.empty())
      throw InternalError("[writer.finish] {} tensors were announced but not written: {}", absent.size(),
                          join_first(absent, 5));
    for (const auto& shard : shards_)
      if (shard->file != nullptr) shard->file->sync_and_close();
  }
  if (std::all_of(shards_.begin(), shards_.end(), [](const auto& shard) { return shard->file != nullptr; }))
    write_index();
}

void CheckpointWriter::write_index() {
  const std::lock_guard lock(mutex_);
  if (!has_index_ || shards_.size() == 1 || index_written_) return;
  Json weight_map = Json::object();
  for (const auto& [name, place] : places_) weight_map[name] = place.shard->name;
  const Json index = {{"metadata", {{"total_parameters", total_parameters_}, {"total_size", total_bytes_}}},
                      {"weight_map", std::move(weight_map)}};
  write_text_file(directory_ / kIndexName, index.dump(2) + "\n");
  index_written_ = true;
}

}  // namespace layerpress::checkpoint
