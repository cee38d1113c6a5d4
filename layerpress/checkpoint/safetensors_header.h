#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "layerpress/base/file.h"
#include "layerpress/checkpoint/safetensors.h"

namespace layerpress::checkpoint {

/// The header of a safetensors file, validated against the file's size.
struct SafetensorsHeader {
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Reads and validates the header of `file`, see SafetensorsFile::open.
SafetensorsHeader read_safetensors_header(const MappedFile& file);

}  // namespace layerpress::checkpoint
