#include "layerpress/checkpoint/safetensors.h"

#include <ATen/Functions.h>

#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/base/json.h"
#include "layerpress/checkpoint/file_layout.h"
#include "layerpress/checkpoint/safetensors_header.h"
#include "layerpress/checkpoint/strict_json.h"

namespace layerpress::checkpoint {

std::shared_ptr<const SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  const std::shared_ptr<const MappedFile> file = MappedFile::open(path);
  SafetensorsHeader header = read_safetensors_header(*file);
  const std::shared_ptr<SafetensorsFile> opened(new SafetensorsFile(file));
  opened->tensors_ = std::move(header.tensors);
  opened->metadata_ = std::move(header.metadata);
  return opened;
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    throw CheckpointError("[safetensors.tensor] {}: holds no tensor {}", path().string(), in_quotes(name));
  return tensor(found->second);
}

std::string safetensors_entry(const TensorSpec& tensor, std::uint64_t begin, std::uint64_t end) {
  return fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", Json(tensor.name).dump(),
                     dtype_name(tensor.dtype), Json(tensor.shape).dump(), begin, end);
}

std::string safetensors_header(const std::vector<TensorSpec>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  // Written member by member, because the tensors must appear in the order of their bytes.
  std::string text = "{\"__metadata__\":" + Json(metadata).dump();
  std::uint64_t begin = 0;
  for (const TensorSpec& tensor : tensors) {
    const std::uint64_t end = begin + tensor.nbytes();
    text += safetensors_entry(tensor, begin, end);
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
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  const FileLayout layout = safetensors_file(std::move(specs), metadata);
  replace_file(path, layout.size, [&](OutputFile& file) {
    file.write_at(0, layout.header.data(), layout.header.size());
    for (const StoredTensor& place : layout.tensors) {
      const at::Tensor tensor = tensors.at(place.name).detach().to(at::kCPU).contiguous();
      file.write_at(place.offset, tensor.const_data_ptr(), place.nbytes());
    }
  });
}

}  // namespace layerpress::checkpoint
