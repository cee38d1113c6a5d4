#include "layerpress/gguf/importance.h"

#include <ATen/ATen.h>

#include <cstring>
#include <memory>
#include <string_view>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/gguf/placed_values.h"

namespace layerpress::gguf {
namespace {

constexpr const char* kImportanceType = "imatrix";

/// Files of the old format begin with the number of their entries; each begins with the length of its name, and the name.
bool is_old_format(const MappedFile& file) {
  constexpr std::uint64_t kNumbers = 2 * sizeof(std::int32_t), kLongestName = 256;
  if (file.size() < kNumbers) return false;
  std::int32_t numbers[2];
  std::memcpy(numbers, file.data(), sizeof(numbers));
  const auto length = static_cast<std::uint64_t>(numbers[1]);
  if (numbers[0] < 1 || numbers[1] < 1 || length > kLongestName || length > file.size() - kNumbers) return false;
  return std::string_view(reinterpret_cast<const char*>(file.data()) + kNumbers, length).ends_with(".weight");
}

/// fp32 as torch has it; the tensor keeps the file mapped.
at::Tensor mapped_tensor(const std::shared_ptr<const MappedFile>& file, std::uint64_t place, const TensorInfo& tensor) {
  auto* bytes = const_cast<std::byte*>(file->data() + place);  // NOLINT: from_blob has no const form; nobody writes
  const std::vector<std::int64_t> shape = {tensor.rows(), tensor.shape.back()};
  if (place % sizeof(float) == 0)
    return at::from_blob(
        bytes, shape, [file](void*) {}, at::TensorOptions(at::kFloat));
  at::Tensor copy = at::empty(shape, at::kFloat);
  std::memcpy(copy.mutable_data_ptr(), bytes, copy.nbytes());
  return copy;
}

}  // namespace

at::Tensor InputPlace::ordered(const at::Tensor& figures, bool back) const {
  return with_tiled_columns(figures, order, back);
}

std::vector<InputPlace> input_places(const Architecture& architecture, const std::string& weight,
                                     std::int64_t columns) {
  std::vector<InputPlace> places;
  for (const TensorPlace& place : architecture.place(weight).places)
    if (!place.transposed_first && !place.transposed_last && !place.stacked_parts)
      places.push_back({place.name, place.expert.value_or(0), place.expert ? architecture.experts : 1, columns,
                        place.tiled_columns});
  return places;
}

Metadata importance_metadata(const ImportanceOrigin& origin) {
  return {{"general.type", std::string(kImportanceType)},
          {"imatrix.datasets", origin.datasets},
          {"imatrix.chunk_count", origin.chunks},
          {"imatrix.chunk_size", origin.chunk_size}};
}

ImportanceFile ImportanceFile::open(const std::filesystem::path& path) {
  const std::shared_ptr<const MappedFile> mapped = MappedFile::open(path);
  if (is_old_format(*mapped))
    throw CheckpointError(
        "[gguf.importance] {}: has the old format of importance files (.dat); make a GGUF of it with llama-imatrix "
        "--in-file {} -o importance.gguf",
        path.string(), path.string());
  const FileHeader header = read_header(mapped->data(), mapped->size(), path.string());
  const auto refuse = [&](const std::string& what) {
    throw CheckpointError("[gguf.importance] {}: {}; pass a file of --imatrix or llama-imatrix", path.string(), what);
  };
  const auto* type = find_value<std::string>(header.metadata, "general.type");
  if (type == nullptr || *type != kImportanceType) refuse("is a GGUF, but not an importance file");
  ImportanceFile file;
  file.path_ = path.string();
  const auto number = [&](const char* key) {
    const auto* value = find_value<std::uint32_t>(header.metadata, key);
    return value == nullptr ? 0 : *value;
  };
  file.origin_ = {{}, number("imatrix.chunk_count"), number("imatrix.chunk_size")};
  if (const auto* names = find_value<std::vector<std::string>>(header.metadata, "imatrix.datasets"))
    file.origin_.datasets = *names;
  for (const TensorInfo& tensor : header.tensors) {
    const bool sums = tensor.name.ends_with(kSumsSuffix), counts = tensor.name.ends_with(kCountsSuffix);
    if (!sums && !counts) continue;
    const at::Tensor values =
        tensor.type->name() == "F32" ? mapped_tensor(mapped, header.data + tensor.offset, tensor) : at::Tensor();
    if (!values.defined() || !at::isfinite(values).logical_and_(values >= 0).all().item<bool>())
      refuse(fmt::format("{} has values that are no sums of squares or counts in F32", in_words(tensor.name)));
    Entry& entry = file.entries_[tensor.name.substr(0, tensor.name.rfind('.'))];
    if (sums)
      entry.sums = values;
    else
      entry.counts = values.view({-1});
  }
  for (const auto& [name, entry] : file.entries_)
    if (!entry.sums.defined() || !entry.counts.defined() || entry.counts.numel() != entry.sums.size(0))
      refuse(fmt::format("{} lacks sums or counts, or a count for each matrix", in_words(name)));
  return file;
}

std::optional<ImportanceEntry> ImportanceFile::find(const InputPlace& place) const {
  const auto found = entries_.find(place.tensor);
  if (found == entries_.end()) return std::nullopt;
  const Entry& entry = found->second;
  if (entry.sums.size(1) != place.columns || entry.sums.size(0) != place.matrices)
    throw CheckpointError(
        "[gguf.importance] {}: {} has {} matrices of {} columns, but the model's has {} of {}; it is another model's",
        path_, place.tensor, entry.sums.size(0), entry.sums.size(1), place.matrices, place.columns);
  if (entry.sums[place.matrix].eq(0).all().item<bool>()) return std::nullopt;
  return ImportanceEntry{place.ordered(entry.sums[place.matrix], /*back=*/true),
                         entry.counts[place.matrix].item<float>()};
}

}  // namespace layerpress::gguf
