// On disk: u64 little-endian n | n bytes of JSON | data.
// The JSON maps each tensor's name to {"dtype": word, "shape": [extents], "data_offsets": [begin, end]}, offsets
// counted from the start of the data; "__metadata__" maps strings to strings. The tensors fill the data without gap or
// overlap.
#include "layerpress/checkpoint/safetensors_header.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "layerpress/checkpoint/element_types.h"
#include "layerpress/checkpoint/strict_json.h"

namespace layerpress::checkpoint {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kLongestHeader = 100'000'000;
constexpr std::size_t kMostDimensions = 64;  // limit of ATen's operators
constexpr std::string_view kMetadataKey = "__metadata__";

/// The position of the data in the file, and the file's name for messages.
struct DataRegion {
  std::string file;
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
};

[[noreturn]] void refuse_tensor(const DataRegion& region, std::string_view tensor, const std::string& what) {
  throw CheckpointError("[safetensors.open] {}: tensor {} {}", region.file, in_quotes(tensor), what);
}

std::uint64_t read_header_length(const MappedFile& file) {
  const std::string path = file.path().string();
  if (file.size() == 0) throw CheckpointError("[safetensors.open] {}: the file is empty; download it again", path);
  const std::string_view start(reinterpret_cast<const char*>(file.data()), std::min<std::uint64_t>(file.size(), 64));
  if (start.starts_with("version https://git-lfs"))
    throw CheckpointError("[safetensors.open] {}: a Git LFS pointer, not the weights; run `git lfs pull` there", path);
  if (file.size() < kLengthBytes)
    throw CheckpointError("[safetensors.open] {}: {} bytes are too few for a safetensors file; download it again", path,
                          file.size());
  std::uint64_t length = 0;
  for (std::uint64_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<std::uint64_t>(file.data()[i]);
  if (length > kLongestHeader)
    throw CheckpointError("[safetensors.open] {}: a header of {} bytes, at most {} are allowed; is it safetensors?",
                          path, length, kLongestHeader);
  if (length > file.size() - kLengthBytes)
    throw CheckpointError("[safetensors.open] {}: the header ends at byte {}, the file has {}; download it again", path,
                          length + kLengthBytes, file.size());
  return length;
}

std::uint64_t read_count(const Json& value, const DataRegion& region, std::string_view tensor, const char* member) {
  constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kLargest)
    refuse_tensor(
        region, tensor,
        fmt::format("has {} in its {}: expected non-negative integers", in_quotes(value.dump().substr(0, 40)), member));
  return value.get<std::uint64_t>();
}

const Json& array_member(const Json& entry, const char* member, const DataRegion& region, std::string_view tensor) {
  const auto found = entry.find(member);
  if (found == entry.end() || !found->is_array())
    refuse_tensor(region, tensor, fmt::format("has no list '{}'", member));
  return *found;
}

at::ScalarType read_dtype(const Json& entry, const DataRegion& region, std::string_view tensor) {
  const auto found = entry.find("dtype");
  if (found == entry.end() || !found->is_string()) refuse_tensor(region, tensor, "has no 'dtype'");
  const auto& word = found->get_ref<const std::string&>();
  const auto dtype = dtype_named(word);
  if (!dtype)
    refuse_tensor(region, tensor, fmt::format("has dtype {}; supported are {}", in_quotes(word), dtype_names()));
  return *dtype;
}

std::vector<std::int64_t> read_shape(const Json& entry, const DataRegion& region, std::string_view tensor) {
  const Json& extents = array_member(entry, "shape", region, tensor);
  if (extents.size() > kMostDimensions)
    refuse_tensor(region, tensor,
                  fmt::format("has {} dimensions, at most {} are allowed", extents.size(), kMostDimensions));
  std::vector<std::int64_t> shape;
  for (const Json& extent : extents)
    shape.push_back(static_cast<std::int64_t>(read_count(extent, region, tensor, "shape")));
  return shape;
}

/// Bytes of a tensor. Extents of 0 count as 1 in the overflow check, because strides are computed that way.
std::uint64_t checked_size(const StoredTensor& tensor, const DataRegion& region) {
  auto product = static_cast<std::int64_t>(c10::elementSize(tensor.dtype));
  for (const std::int64_t extent : tensor.shape)
    if (__builtin_mul_overflow(product, std::max<std::int64_t>(extent, 1), &product))
      refuse_tensor(region, tensor.name,
                    fmt::format("has a shape whose size overflows: [{}]", fmt::join(tensor.shape, ", ")));
  return tensor.nbytes();
}

StoredTensor read_tensor(const std::string& name, const Json& entry, const DataRegion& region) {
  if (!entry.is_object()) refuse_tensor(region, name, "is not described by an object");
  StoredTensor tensor;
  tensor.name = name;
  tensor.dtype = read_dtype(entry, region, name);
  tensor.shape = read_shape(entry, region, name);
  const std::uint64_t size = checked_size(tensor, region);
  const Json& offsets = array_member(entry, "data_offsets", region, name);
  if (offsets.size() != 2) refuse_tensor(region, name, fmt::format("has {} data_offsets, not 2", offsets.size()));
  const std::uint64_t begin = read_count(offsets[0], region, name, "data_offsets");
  const std::uint64_t end = read_count(offsets[1], region, name, "data_offsets");
  if (begin > end) refuse_tensor(region, name, fmt::format("begins at {}, after its end at {}", begin, end));
  if (end > region.size)
    refuse_tensor(region, name,
                  fmt::format("ends at byte {} of the data, which has {}; the file is cut off, download it "
                              "again",
                              end, region.size));
  if (end - begin != size)
    refuse_tensor(region, name,
                  fmt::format("takes {} bytes, its shape [{}] of {} needs {}", end - begin,
                              fmt::join(tensor.shape, ", "), dtype_name(tensor.dtype), size));
  tensor.offset = region.begin + begin;
  return tensor;
}

std::map<std::string, std::string> read_metadata(const Json& entry, const DataRegion& region) {
  std::map<std::string, std::string> metadata;
  if (!entry.is_object()) throw CheckpointError("[safetensors.open] {}: '__metadata__' is not an object", region.file);
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string())
      throw CheckpointError("[safetensors.open] {}: '__metadata__' member {} is not a string", region.file,
                            in_quotes(key));
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

/// Refuses overlaps, holes and data that does not belong to any tensor.
void check_coverage(const std::map<std::string, StoredTensor>& tensors, const DataRegion& region) {
  std::vector<const StoredTensor*> in_file_order;
  for (const auto& [name, tensor] : tensors) in_file_order.push_back(&tensor);
  const auto place = [](const StoredTensor* tensor) { return std::pair(tensor->offset, tensor->nbytes()); };
  std::sort(in_file_order.begin(), in_file_order.end(),
            [&](const StoredTensor* a, const StoredTensor* b) { return place(a) < place(b); });
  std::uint64_t covered = region.begin;
  const StoredTensor* previous = nullptr;
  for (const StoredTensor* tensor : in_file_order) {
    if (tensor->offset < covered)
      refuse_tensor(region, tensor->name, fmt::format("overlaps tensor {}", in_quotes(previous->name)));
    if (tensor->offset > covered)
      refuse_tensor(region, tensor->name, fmt::format("leaves a hole of {} bytes before it", tensor->offset - covered));
    covered += tensor->nbytes();
    previous = tensor;
  }
  if (covered != region.begin + region.size)
    throw CheckpointError("[safetensors.open] {}: {} bytes at the end belong to no tensor", region.file,
                          region.begin + region.size - covered);
}

}  // namespace

SafetensorsHeader read_safetensors_header(const MappedFile& file) {
  const std::uint64_t length = read_header_length(file);
  const DataRegion region{file.path().string(), kLengthBytes + length, file.size() - kLengthBytes - length};
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  const Json root = parse_strict_json(text, region.file + " (header)");
  if (!root.is_object()) throw CheckpointError("[safetensors.open] {}: the header is not an object", region.file);
  SafetensorsHeader header;
  for (const auto& [name, entry] : root.items()) {
    if (name == kMetadataKey)
      header.metadata = read_metadata(entry, region);
    else
      header.tensors.emplace(name, read_tensor(name, entry, region));
  }
  check_coverage(header.tensors, region);
  return header;
}

}  // namespace layerpress::checkpoint
