#include <algorithm>

#include "layerpress/base/text.h"
#include "layerpress/cli/commands.h"
#include "layerpress/verify.h"

namespace layerpress::cli {
namespace {

/// As many lines of one kind as people read; --json has all.
constexpr std::size_t kShown = 20;

std::string lines_of(const Json& findings, const std::string& word) {
  std::string text;
  for (std::size_t i = 0; i < std::min(findings.size(), kShown); ++i)
    text += fmt::format("{} [{}] {}: {}\n", word, findings[i].value("check", ""), findings[i].value("where", ""),
                        findings[i].value("what", ""));
  if (findings.size() > kShown) text += fmt::format("{} {} more; --json lists all\n", word, findings.size() - kShown);
  return text;
}

std::string as_text(const Json& result) {
  std::string text = lines_of(result["warnings"], "warning:") + lines_of(result["faults"], "fault:");
  if (result.contains("worst") && !result["worst"].empty()) {
    text += "greatest differences from the source, relative to its weights\n";
    for (const Json& worst : result["worst"])
      text += fmt::format("  {:.4f} {}\n", worst.value("error", 0.0), worst.value("module", ""));
  }
  const std::string tensors = result.contains("tensors")
                                  ? fmt::format("{}, {} of weights, {} quantized ({}), ",
                                                counted(result.value("tensors", std::size_t{0}), "tensor"),
                                                format_bytes(result.value("bytes", std::uint64_t{0})),
                                                result.value("quantized", 0), result.value("format", ""))
                                  : std::string();
  return text + fmt::format("{}: {}{}, {}, {:.1f} s\n", result.value("model", ""), tensors,
                            counted(result["faults"].size(), "fault"), counted(result["warnings"].size(), "warning"),
                            result.value("seconds", 0.0));
}

}  // namespace

int run_verify(const CommandLine& line, const RunControl& control) {
  const Json result = verify(line.verify, control);
  end_progress(control);
  fmt::print("{}", line.json ? result.dump(2) + "\n" : as_text(result));
  return result["faults"].empty() ? 0 : 1;
}

}  // namespace layerpress::cli
