// convert_blocks JOBS: decodes blocks and rounds weights, for tests that compare them with other programs. Each line of the file JOBS is
//   decode TYPE COLUMNS BLOCKS - TARGET          raw bytes of whole rows to fp32
//   round TYPE COLUMNS WEIGHT IMPORTANCE TARGET  fp32 to raw bytes; IMPORTANCE is a file of fp32 or "-"
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "layerpress/base/error.h"
#include "layerpress/gguf/blocks/block_rows.h"

namespace {

using namespace layerpress;

at::Tensor read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw IoError("[convert_blocks] {}: cannot be read", path);
  const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(tensor.data_ptr<std::uint8_t>()));
  return tensor;
}

void write_bytes(const std::string& path, const at::Tensor& tensor) {
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(tensor.const_data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  if (!file.flush()) throw IoError("[convert_blocks] {}: cannot be written", path);
}

struct Job {
  std::string verb, type, source, importance, target;
  std::int64_t columns = 0;
};

void run(const Job& job) {
  const gguf::BlockType* type = gguf::find_block_type(job.type);
  if (type == nullptr) throw UsageError("[convert_blocks] no type is named {}", job.type);
  const at::Tensor bytes = read_bytes(job.source);
  if (job.verb == "decode") {
    write_bytes(job.target, gguf::decode_rows(*type, bytes.view({-1, type->row_bytes(job.columns)}), job.columns));
  } else {
    const at::Tensor importance = job.importance == "-" ? at::Tensor() : read_bytes(job.importance).view(at::kFloat);
    write_bytes(job.target, gguf::round_rows(*type, bytes.view(at::kFloat).view({-1, job.columns}), importance));
  }
}

}  // namespace

int main(int count, char** arguments) {
  try {
    std::ifstream jobs(count == 2 ? arguments[1] : "");
    if (!jobs) throw UsageError("[convert_blocks] the jobs cannot be read");
    Job job;
    while (jobs >> job.verb >> job.type >> job.columns >> job.source >> job.importance >> job.target) run(job);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
