#include "layerpress/cli/commands.h"
#include "layerpress/prepare.h"

namespace layerpress::cli {

int run_prepare(const CommandLine& line, const RunControl& control) {
  const Prepared prepared = prepare(line.prepare, control);
  end_progress(control);
  fmt::print("{}: {} samples, {} tokens\n", line.prepare.output, prepared.samples, prepared.tokens);
  return 0;
}

}  // namespace layerpress::cli
