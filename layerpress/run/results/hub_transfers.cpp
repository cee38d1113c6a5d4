#include "layerpress/run/results/hub_transfers.h"

#include "layerpress/base/error.h"
#include "layerpress/base/file.h"
#include "layerpress/setup/opening/hub.h"

namespace layerpress::run {

void check_upload(const OneshotOptions& options, const dist::Group& group, const RunControl& control) {
  if (options.push_public && options.push.empty()) throw UsageError("[options] --push-public requires --push ORG/NAME");
  if (!options.push.empty() && group.is_first()) setup::check_upload(options.push, control);
}

void fetch_model(const OneshotOptions& options, dist::Group& group, const RunControl& control) {
  if (!options.download || options.model_in_memory) return;
  if (group.local_rank() == 0) setup::download_model(options.model, control);
  group.barrier();
}

void upload(const OneshotOptions& options, dist::Group& group, const RunControl& control, OneshotSummary& summary) {
  if (options.push.empty()) return;
  if (group.is_first()) {
    try {
      summary.uploaded = setup::upload_folder(options.output, options.push, options.push_public, control);
    } catch (const IoError& error) {
      throw IoError("{}; the output is complete in {}: the same command with --resume uploads it", error.what(),
                    options.output);
    } catch (const InterruptedError&) {
      throw InterruptedError(
          "stopped on request; the output is complete in {}: the same command with --resume uploads it",
          options.output);
    }
    summary.details["uploaded"] = summary.uploaded;
    if (!options.summary.empty()) write_text_file(options.summary, summary.details.dump(2) + "\n");
  }
  group.barrier();
}

}  // namespace layerpress::run
