#include "tests/fuzz/input.h"

#include <ATen/Parallel.h>
#include <c10/util/Logging.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <system_error>

#include "layerpress/base/error.h"
#include "layerpress/base/files/temporary_directory.h"

namespace layerpress::fuzz {

void prepare_process() {
  ::setenv("TMPDIR", input_folder().c_str(), 1);
  at::set_num_threads(1);
  FLAGS_caffe2_log_level = c10::GLOG_FATAL;
}

void require(bool holds, const std::string& what) {
  if (!holds) throw std::logic_error(what);
}

void feed(void (*target)(std::string_view input), std::string_view input) {
  try {
    target(input);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kInternal) throw;
    const std::string_view what = error.what();
    const auto is_control = [](unsigned char character) { return character < 0x20 || character == 0x7f; };
    require(std::none_of(what.begin(), what.end(), is_control), "a message with control characters");
    require(what.size() < 8192, "a message of many kilobytes");
  }
}

const std::filesystem::path& input_folder() {
  static const TemporaryDirectory folder(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "");
  return folder.path();
}

std::filesystem::path write_input(const std::string& name, std::string_view bytes) {
  std::filesystem::path path = input_folder() / name;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

std::pair<std::string_view, std::string_view> first_line(std::string_view input) {
  const std::size_t end = input.find('\n');
  if (end == std::string_view::npos) return {input, {}};
  return {input.substr(0, end), input.substr(end + 1)};
}

std::vector<std::string_view> lines_of(std::string_view input) {
  std::vector<std::string_view> lines;
  while (!input.empty()) {
    const auto [line, rest] = first_line(input);
    lines.push_back(line);
    input = rest;
  }
  return lines;
}

std::string safetensors_of(std::string_view input) {
  if (!input.starts_with('{')) return std::string(input);
  const auto [header, data] = first_line(input);
  std::string bytes;
  for (std::size_t i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> 8 * i & 0xff);
  return bytes.append(header).append(data);
}

Json described(std::string_view input) {
  // No deeper than what reads files allows: destroying a value recurses, too.
  try {
    return parse_json(input, "input");
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace layerpress::fuzz
