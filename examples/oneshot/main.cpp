// Compresses a model through the C++ API: oneshot_example MODEL OUTPUT [DATASET]
#include <layerpress/base/error.h>
#include <layerpress/oneshot.h>

#include <cstdio>
#include <string_view>

namespace {

/// Prints one line per subgraph and per message. A graphical program would update its progress bars here.
class PrintedProgress : public layerpress::EventSink {
 public:
  void on_message(layerpress::LogLevel, const std::string& text) override { std::printf("%s\n", text.c_str()); }
  void on_step(std::uint64_t done, std::uint64_t total, const std::string& step) override {
    if (done < total) std::printf("%llu of %llu: %s\n", done + 1ULL, total + 0ULL, step.c_str());
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4 || std::string_view(argv[1]) == "--help") {
    std::printf(
        "usage: oneshot_example MODEL OUTPUT [DATASET]\n"
        "4-bit weights: GPTQ calibrated on DATASET, round-to-nearest without one\n");
    return argc == 2 && std::string_view(argv[1]) == "--help" ? 0 : 2;
  }
  layerpress::OneshotOptions options;
  options.model = argv[1];
  options.output = argv[2];
  options.group_size = 64;
  if (argc == 4)
    options.dataset = argv[3];
  else
    options.algorithm = "rtn";

  PrintedProgress progress;
  try {
    const layerpress::OneshotSummary summary = layerpress::oneshot(options, {.events = &progress});
    std::printf("%s: %lld modules in %.2f s\n", summary.output.c_str(), static_cast<long long>(summary.modules),
                summary.seconds);
  } catch (const layerpress::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return error.kind() == layerpress::ErrorKind::kUsage ? 2 : 1;
  }
  return 0;
}
