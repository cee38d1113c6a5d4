#include "layerpress/setup/opening/hub.h"

#include <string_view>
#include <system_error>

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/base/json.h"
#include "layerpress/base/text.h"
#include "layerpress/checkpoint/model_location.h"
#include "layerpress/checkpoint/strict_json.h"
#include "layerpress/setup/opening/helper_request.h"

namespace layerpress::setup {
namespace {

/// Says how far a transfer is, at every tenth.
class TenthsOfTransfer {
 public:
  explicit TenthsOfTransfer(const RunControl& control) : control_(control) {}

  void operator()(std::string_view line) {
    const Json report = Json::parse(line, nullptr, false);
    if (!report.is_object() || !report.contains("done") || !report.contains("total")) return;
    if (!report["done"].is_number_unsigned() || !report["total"].is_number_unsigned()) return;
    const auto done = report["done"].get<std::uint64_t>(), total = report["total"].get<std::uint64_t>();
    const std::uint64_t tenth =
        total == 0 ? 10 : static_cast<std::uint64_t>(10.0 * static_cast<double>(done) / static_cast<double>(total));
    if (tenth == said_) return;
    said_ = tenth;
    control_.message(LogLevel::kInfo, fmt::format("[hub] {} of {}", format_bytes(done), format_bytes(total)));
  }

 private:
  const RunControl& control_;
  std::uint64_t said_ = 0;
};

Json ask(const Json& request, const RunControl& control) {
  return ask_helper({"hub.py", "[hub]", request, /*gets_hub_token=*/true}, control, TenthsOfTransfer(control));
}

}  // namespace

void download_model(const std::string& model, const RunControl& control) {
  std::error_code failure;
  const auto named = checkpoint::parse_hub_model(model);
  if (!named || std::filesystem::exists(model, failure)) return;
  control.message(LogLevel::kInfo, fmt::format("[hub] looking for {}", model));
  const Json answer = ask({{"action", "download"},
                           {"model", named->id},
                           {"revision", named->revision.empty() ? Json() : Json(named->revision)}},
                          control);
  control.message(LogLevel::kInfo,
                  fmt::format("[hub] {}: {} files, {}", model, json_get_or<std::int64_t>(answer, "files", "hub.py", 0),
                              format_bytes(json_get_or<std::uint64_t>(answer, "bytes", "hub.py", 0))));
}

void check_upload(const std::string& repository, const RunControl& control) {
  const auto named = checkpoint::parse_hub_model(repository);
  if (!named || !named->revision.empty() || named->id.find('/') == std::string::npos)
    throw UsageError("[options] --push: {} is not a repository id; write ORG/NAME", checkpoint::in_quotes(repository));
  ask({{"action", "check"}, {"repository", repository}}, control);
}

std::string upload_folder(const std::filesystem::path& folder, const std::string& repository, bool make_public,
                          const RunControl& control) {
  control.message(LogLevel::kInfo, fmt::format("[hub] uploading {} to {}", folder.string(), repository));
  const Json answer =
      ask({{"action", "upload"}, {"folder", folder.string()}, {"repository", repository}, {"private", !make_public}},
          control);
  return json_get_or<std::string>(answer, "address", "hub.py", repository);
}

}  // namespace layerpress::setup
