#include "layerpress/data/helper.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/base/files/temporary_directory.h"
#include "layerpress/base/json.h"
#include "layerpress/base/system/child_process.h"
#include "layerpress/base/system/machine.h"
#include "layerpress/base/text.h"
#include "layerpress/data/load_samples.h"

namespace layerpress::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInterpreterVariable = "LAYERPRESS_PYTHON";
constexpr const char* kHelperVariable = "LAYERPRESS_HELPER";

/// The helper counts to this, which is more than any dataset has.
std::int64_t countable(std::int64_t number) {
  return std::min<std::int64_t>(number, std::numeric_limits<std::int32_t>::max());
}

Json whole_request(const DatasetOptions& options, const fs::path& model_directory) {
  if (!options.has_tokenizer)
    throw DataError(
        "[data.prepare] {}: the model's file has no tokenizer that can be used; make a token file with the original "
        "model (layerpress prepare), and pass that",
        options.dataset);
  return {{"model", model_directory.string()},
          {"dataset", options.dataset},
          {"split", options.split},
          {"text_column", options.text_column},
          {"num_samples", countable(options.num_samples)},
          {"max_seq_length", countable(options.max_seq_length)},
          {"shuffle", options.shuffle},
          {"seed", options.seed},
          {"concatenate", options.concatenate},
          {"use_loss_mask", options.use_loss_mask}};
}

Json rows_request(const DatasetOptions& options, const fs::path& model_directory, const Positions& positions) {
  Json request = whole_request(options, model_directory);
  request["concatenate"] = false;  // the caller joins the rows
  request["uncut"] = options.concatenate;
  request["rows"] = {countable(positions.first), countable(positions.last)};
  return request;
}

std::string request_text(const Json& request) {
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

void check_success(const ChildResult& result, const std::string& interpreter) {
  if (result.exit_code == 0) return;
  const std::string reported = reported_error(result.errors);
  if (!reported.empty()) throw DataError("{}", reported);
  if (result.exit_code > 128)
    throw DataError("[data.prepare] the data helper was killed by signal {} ({}); is there enough memory?",
                    result.exit_code - 128, interpreter);
  throw DataError("[data.prepare] the data helper ended with code {} ({}): {}", result.exit_code, interpreter,
                  last_line(result.errors));
}

[[noreturn]] void refuse_summary() {
  throw DataError("[data.prepare] the data helper wrote no summary; check {} and {}", kInterpreterVariable,
                  kHelperVariable);
}

/// A count in the helper's summary.
std::int64_t summary_count(const Json& summary, const char* name) {
  if (!summary.is_object() || !summary.contains(name) || !summary[name].is_number_unsigned()) refuse_summary();
  return summary[name].get<std::int64_t>();
}

/// The helper's result: the samples and its summary.
struct HelperAnswer {
  CalibrationSet set;
  Json summary;
};

HelperAnswer run_helper(Json request, const RunControl& control) {
  const std::string interpreter = helper_interpreter();
  const TemporaryDirectory directory;
  const fs::path output = directory.path() / "samples.safetensors";
  request["output"] = output.string();
  const std::string hint =
      fmt::format("set {} to a Python 3 that has the packages of requirements.txt", kInterpreterVariable);
  const ChildResult result = run_child(
      {{interpreter, "-s", helper_script().string()}, request_text(request), hint, /*gets_hub_token=*/true}, control);
  check_success(result, interpreter);
  HelperAnswer answer{read_token_file(output), Json::parse(last_line(result.output), nullptr, false)};
  if (json_has(answer.summary, "cut_to"))
    control.message(
        LogLevel::kWarning,
        fmt::format("[data] texts are cut to {} tokens, the tokenizer's model_max_length, not to "
                    "--max-seq-length {}",
                    summary_count(answer.summary, "cut_to"), request["max_seq_length"].get<std::int64_t>()));
  const bool masked = !answer.set.loss_mask.empty() || answer.set.tokens.empty();
  if (request["use_loss_mask"].get<bool>() && !masked) refuse_summary();
  return answer;
}

}  // namespace

std::string helper_interpreter() {
  if (std::string chosen = environment_variable(kInterpreterVariable); !chosen.empty()) return chosen;
  const std::string recorded = LAYERPRESS_BUILD_PYTHON;
  std::error_code failure;
  // The recorded path may not exist on another machine; a bare name is looked up in PATH.
  const bool usable = recorded.find('/') == std::string::npos ? !recorded.empty() : fs::exists(recorded, failure);
  return usable ? recorded : "python3";
}

fs::path helper_script() {
  std::error_code failure;
  if (const std::string chosen = environment_variable(kHelperVariable); !chosen.empty()) {
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
  control.message(LogLevel::kInfo, fmt::format("[data] tokenizing with the tokenizer of {}", model_directory.string()));
  HelperAnswer answer = run_helper(whole_request(options, model_directory), control);
  return {std::move(answer.set), summary_count(answer.summary, "skipped_empty")};
}

RowPart prepare_rows_with_helper(const DatasetOptions& options, const fs::path& model_directory,
                                 const Positions& positions, const RunControl& control) {
  control.message(LogLevel::kInfo, fmt::format("[data] tokenizing selected rows {} to {} with the tokenizer of {}",
                                               positions.first + 1, positions.last, model_directory.string()));
  HelperAnswer answer = run_helper(rows_request(options, model_directory, positions), control);
  const std::int64_t rows = summary_count(answer.summary, "rows");
  if (rows > positions.size() || rows < answer.set.sample_count()) refuse_summary();
  return {std::move(answer.set), rows};
}

}  // namespace layerpress::data
