// Compresses a model on all processes that torchrun has started: llama3_ddp_example MODEL OUTPUT DATASET [SAMPLES]
#include <layerpress/base/error.h>
#include <layerpress/distributed.h>
#include <layerpress/offloaded_model.h>
#include <layerpress/oneshot.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

namespace {

/// Only the first rank prints, one line per layer.
class FirstRankProgress : public layerpress::EventSink {
 public:
  explicit FirstRankProgress(bool speaks) : speaks_(speaks) {}
  void on_message(layerpress::LogLevel, const std::string& text) override {
    if (speaks_) std::printf("%s\n", text.c_str());
  }
  void on_step(std::uint64_t done, std::uint64_t total, const std::string& step) override {
    if (speaks_ && done < total) std::printf("%llu of %llu: %s\n", done + 1ULL, total + 0ULL, step.c_str());
  }

 private:
  bool speaks_;
};

/// All processes of a node map the checkpoint's files: one copy in memory, without coordination.
void describe(const std::string& folder) {
  const auto model = layerpress::load_offloaded_model(folder);
  double bytes = 0;
  for (const std::string& name : model.names()) bytes += static_cast<double>(model.parameter(name).nbytes());
  std::printf("%s: %zu parameters, %.2f GB\n", folder.c_str(), model.names().size(), bytes / 1e9);
}

void compress(const layerpress::OneshotOptions& options, layerpress::Distributed& ranks) {
  if (ranks.is_first()) describe(options.model);
  FirstRankProgress progress(ranks.is_first());
  const layerpress::OneshotSummary summary = layerpress::oneshot(options, {.events = &progress}, &ranks);
  if (ranks.is_first())
    std::printf("%s: %lld modules in %.2f s on %d ranks\n", summary.output.c_str(),
                static_cast<long long>(summary.modules), summary.seconds, ranks.size());
}

int exit_code(const layerpress::Error& error) { return error.kind() == layerpress::ErrorKind::kUsage ? 2 : 1; }

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4 || argc > 5 || std::string_view(argv[1]) == "--help") {
    std::printf(
        "usage: torchrun --no-python --nproc-per-node RANKS llama3_ddp_example MODEL OUTPUT DATASET [SAMPLES]\n"
        "4-bit weights by GPTQ; each process calibrates on its part of SAMPLES (512) rows of DATASET\n");
    return argc == 2 && std::string_view(argv[1]) == "--help" ? 0 : 2;
  }
  std::unique_ptr<layerpress::Distributed> ranks;
  try {
    ranks = layerpress::init_dist();
    layerpress::OneshotOptions options;
    options.model = argv[1];
    options.output = argv[2];
    options.dataset = argv[3];
    options.num_calibration_samples = argc == 5 ? std::atoll(argv[4]) : 512;
    options.scheme = "W4A16";
    options.group_size = 64;
    options.dataset_split = layerpress::get_rank_partition(*ranks, "train", options.num_calibration_samples);
    compress(options, *ranks);
  } catch (const layerpress::Error& error) {
    if (!ranks) {
      std::fprintf(stderr, "error: %s\n", error.what());
      return exit_code(error);
    }
    ranks->fail(error.what());  // so that no other rank waits for this one
    const std::string cause = ranks->failure();
    if (ranks->reports_failure()) std::fprintf(stderr, "error: %s\n", cause.empty() ? error.what() : cause.c_str());
    return exit_code(error);
  }
  return 0;
}
