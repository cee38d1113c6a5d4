#include "layerpress/data/helper.h"

#include <stdlib.h>

#include <cstdlib>
#include <sstream>
#include <string_view>
#include <system_error>

#include "layerpress/base/error.h"
#include "layerpress/base/json.h"
#include "layerpress/base/machine.h"
#include "layerpress/data/child_process.h"
#include "layerpress/data/load_samples.h"

namespace layerpress::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInterpreterVariable = "LAYERPRESS_PYTHON";
constexpr const char* kHelperVariable = "LAYERPRESS_HELPER";

std::string environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

/// A fresh folder in the system's folder for temporary files, removed with all it holds.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::error_code failure;
    std::string pattern = (fs::temp_directory_path(failure) / "layerpress-XXXXXX").string();
    if (failure || ::mkdtemp(pattern.data()) == nullptr)
      throw DataError("[data.prepare] {}: cannot make a temporary directory; set TMPDIR to a writable one", pattern);
    path_ = pattern;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string request_text(const DatasetOptions& options, const fs::path& model_directory, const fs::path& output) {
  const Json request = {{"model", model_directory.string()},
                        {"dataset", options.dataset},
                        {"split", options.split},
                        {"text_column", options.text_column},
                        {"num_samples", options.num_samples},
                        {"max_seq_length", options.max_seq_length},
                        {"shuffle", options.shuffle},
                        {"seed", options.seed},
                        {"concatenate", options.concatenate},
                        {"output", output.string()}};
  try {
    return request.dump() + "\n";
  } catch (const Json::type_error&) {
    throw DataError("[data.prepare] a path or option of the dataset is not UTF-8; rename it");
  }
}

/// The last line of `text` that is not blank.
std::string_view last_line(std::string_view text) {
  const auto end = text.find_last_not_of(" \r\n\t");
  if (end == std::string_view::npos) return {};
  text = text.substr(0, end + 1);
  const auto newline = text.rfind('\n');
  return newline == std::string_view::npos ? text : text.substr(newline + 1);
}

/// The text behind `error: ` of the last line that begins so, empty when there is none.
std::string reported_error(const std::string& errors) {
  constexpr std::string_view kPrefix = "error: ";
  std::string reported;
  std::istringstream lines(errors);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(kPrefix)) reported = line.substr(kPrefix.size());
  return reported;
}

void check_success(const ChildResult& result, const std::string& interpreter) {
  if (result.exit_code == 0) return;
  const std::string reported = reported_error(result.errors);
  if (!reported.empty()) throw DataError("{}", reported);
  if (result.exit_code > 128)
    throw DataError("[data.prepare] the data helper was ended by signal {} ({}); is there enough memory?",
                    result.exit_code - 128, interpreter);
  throw DataError("[data.prepare] the data helper ended with code {} ({}): {}", result.exit_code, interpreter,
                  last_line(result.errors));
}

std::int64_t skipped_rows(const ChildResult& result) {
  const Json summary = Json::parse(last_line(result.output), nullptr, false);
  if (!summary.is_object() || !summary.contains("skipped_empty") || !summary["skipped_empty"].is_number_unsigned())
    throw DataError("[data.prepare] the data helper wrote no summary; check {} and {}", kInterpreterVariable,
                    kHelperVariable);
  return summary["skipped_empty"].get<std::int64_t>();
}

}  // namespace

std::string helper_interpreter() {
  if (std::string chosen = environment(kInterpreterVariable); !chosen.empty()) return chosen;
  const std::string recorded = LAYERPRESS_BUILD_PYTHON;
  std::error_code failure;
  // A recorded path may be gone on another machine; a bare name is looked up in PATH.
  const bool usable = recorded.find('/') == std::string::npos ? !recorded.empty() : fs::exists(recorded, failure);
  return usable ? recorded : "python3";
}

fs::path helper_script() {
  std::error_code failure;
  if (const std::string chosen = environment(kHelperVariable); !chosen.empty()) {
    if (fs::exists(chosen, failure)) return chosen;
    throw DataError("[data.prepare] {}: no such file; {} must name prepare.py", chosen, kHelperVariable);
  }
  const fs::path installed = fs::path(executable_directory()) / ".." / "share" / "layerpress" / "python" / "prepare.py";
  const fs::path in_source_tree = LAYERPRESS_BUILD_HELPER;
  for (const fs::path& candidate : {installed, in_source_tree})
    if (fs::exists(candidate, failure)) return candidate;
  throw DataError("[data.prepare] the data helper prepare.py is neither in {} nor in {}; set {} to its path",
                  installed.parent_path().lexically_normal().string(), in_source_tree.parent_path().string(),
                  kHelperVariable);
}

Selection prepare_with_helper(const DatasetOptions& options, const fs::path& model_directory,
                              const RunControl& control) {
  const std::string interpreter = helper_interpreter();
  const TemporaryDirectory directory;
  const fs::path output = directory.path() / "samples.safetensors";
  const std::string hint =
      fmt::format("set {} to a Python 3 that has the packages of requirements.txt", kInterpreterVariable);
  control.message(LogLevel::kInfo, fmt::format("[data] tokenizing {} with the tokenizer of {}", options.dataset,
                                               model_directory.string()));
  const ChildResult result = run_child({interpreter, "-s", helper_script().string()},
                                       request_text(options, model_directory, output), hint, control);
  check_success(result, interpreter);
  return {read_token_file(output), skipped_rows(result)};
}

}  // namespace layerpress::data
