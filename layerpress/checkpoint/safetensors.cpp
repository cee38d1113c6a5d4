#include "layerpress/checkpoint/safetensors.h"

#include <ATen/Functions.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/base/json.h"
#include "layerpress/checkpoint/safetensors_header.h"
#include "layerpress/checkpoint/strict_json.h"

namespace layerpress::checkpoint {
namespace {

const StoredTensor& find_tensor(const SafetensorsFile& file, const std::string& name) {
  const auto found = file.tensors().find(name);
  if (found == file.tensors().end())
    throw CheckpointError("[safetensors.tensor] {}: holds no tensor {}", file.path().string(), in_quotes(name));
  return found->second;
}

/// The tensors in an order that aligns each to its element size: largest elements first, then by name.
std::vector<TensorSpec> aligned_order(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  std::stable_sort(specs.begin(), specs.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return c10::elementSize(a.dtype) > c10::elementSize(b.dtype);
  });
  return specs;
}

void write_tensors(const std::filesystem::path& path, const std::vector<TensorSpec>& specs, const std::string& header,
                   const std::map<std::string, at::Tensor>& tensors) {
  std::uint64_t size = header.size();
  for (const TensorSpec& spec : specs) size += spec.nbytes();
  OutputFile file(path, size);
  file.write_at(0, header.data(), header.size());
  std::uint64_t offset = header.size();
  for (const TensorSpec& spec : specs) {
    const at::Tensor tensor = tensors.at(spec.name).detach().to(at::kCPU).contiguous();
    file.write_at(offset, tensor.const_data_ptr(), spec.nbytes());
    offset += spec.nbytes();
  }
  file.sync_and_close();
}

}  // namespace

std::shared_ptr<const SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  const std::shared_ptr<const MappedFile> file = MappedFile::open(path);
  SafetensorsHeader header = read_safetensors_header(*file);
  const std::shared_ptr<SafetensorsFile> opened(new SafetensorsFile(file));
  opened->tensors_ = std::move(header.tensors);
  opened->metadata_ = std::move(header.metadata);
  return opened;
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const { return tensor(find_tensor(*this, name)); }

std::string safetensors_header(const std::vector<TensorSpec>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  // Written member by member, because the tensors must appear in the order of their bytes.
  std::string text = "{\"__metadata__\":" + Json(metadata).dump();
  std::uint64_t begin = 0;
  for (const TensorSpec& tensor : tensors) {
    const std::uint64_t end = begin + tensor.nbytes();
    text += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", Json(tensor.name).dump(),
                        dtype_name(tensor.dtype), Json(tensor.shape).dump(), begin, end);
    begin = end;
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  return length + text;
}

void write_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::vector<TensorSpec> specs = aligned_order(tensors);
  const std::filesystem::path temporary = path.string() + fmt::format(".tmp.{}", ::getpid());
  std::error_code failure;
  std::filesystem::remove(temporary, failure);
  try {
    write_tensors(temporary, specs, safetensors_header(specs, metadata), tensors);
    std::filesystem::rename(temporary, path, failure);
    if (failure) throw IoError("[safetensors.write] {}: {}", path.string(), failure.message());
  } catch (...) {
    std::filesystem::remove(temporary, failure);
    throw;
  }
}

}  // namespace layerpress::checkpoint
