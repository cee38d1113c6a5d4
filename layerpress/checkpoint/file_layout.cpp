#include "layerpress/checkpoint/file_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/checkpoint/shard_index.h"

namespace layerpress::checkpoint {
namespace {

/// A file's tensors before they have places.
struct FileContent {
  int set = 0;
  std::vector<TensorSpec> tensors{};
};

void check_sets(const std::vector<TensorSpec>& specs, const FileDivision& division) {
  const bool complete =
      division.sets > 0 && (division.set_of_spec.empty() || division.set_of_spec.size() == specs.size());
  const auto outside = [&](int set) { return set < 0 || set >= division.sets; };
  if (!complete || std::any_of(division.set_of_spec.begin(), division.set_of_spec.end(), outside))
    throw InternalError("[writer.open] {} tensors do not divide into {} sets as given", specs.size(), division.sets);
}

std::string file_name(std::size_t number, std::size_t count) {
  return count == 1 ? kSingleFileName : fmt::format("model-{:05}-of-{:05}.safetensors", number, count);
}

std::vector<FileContent> divide_into_files(const std::vector<TensorSpec>& specs, const FileDivision& division) {
  check_sets(specs, division);
  std::vector<FileContent> files;
  for (int set = 0; set < division.sets; ++set) {
    std::uint64_t filled = 0;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if ((division.set_of_spec.empty() ? 0 : division.set_of_spec[i]) != set) continue;
      if (files.empty() || files.back().set != set || filled + specs[i].nbytes() > division.max_shard_bytes) {
        files.push_back({set});
        filled = 0;
      }
      files.back().tensors.push_back(specs[i]);
      filled += specs[i].nbytes();
    }
  }
  if (files.empty()) files.emplace_back();  // a checkpoint without tensors still has a file
  return files;
}

}  // namespace

FileLayout safetensors_file(std::vector<TensorSpec> tensors, const std::map<std::string, std::string>& metadata) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return c10::elementSize(a.dtype) > c10::elementSize(b.dtype);
  });
  FileLayout file;
  file.header = safetensors_header(tensors, metadata);
  file.size = file.header.size();
  for (const TensorSpec& spec : tensors) {
    file.tensors.push_back({spec, file.size});
    file.size += spec.nbytes();
  }
  return file;
}

CheckpointLayout safetensors_layout(const std::vector<TensorSpec>& specs, const FileDivision& division) {
  std::vector<FileContent> contents = divide_into_files(specs, division);
  CheckpointLayout layout;
  for (FileContent& content : contents) {
    FileLayout file = safetensors_file(std::move(content.tensors));
    file.name = file_name(layout.files.size() + 1, contents.size());
    file.set = content.set;
    layout.files.push_back(std::move(file));
  }
  return layout;
}

}  // namespace layerpress::checkpoint
