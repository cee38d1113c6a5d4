#include "layerpress/dist/environment.h"

#include <charconv>
#include <system_error>

#include "layerpress/base/error.h"
#include "layerpress/base/text.h"

namespace layerpress::dist {
namespace {

/// A launcher's variables for rank and world size.
struct Names {
  const char* rank;
  const char* world_size;
};

constexpr Names kTorchrun = {"RANK", "WORLD_SIZE"};
constexpr Names kLaunchers[] = {
    {"SLURM_PROCID", "SLURM_NTASKS"}, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"PMI_RANK", "PMI_SIZE"}};

/// The variable as a number from `least` to `most`.
int number(const char* name, int least, int most) {
  const std::string text = environment_variable(name);
  int value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || value < least || value > most)
    throw DistributedError("[dist.environment] {} is '{}'; it must be a number from {} to {}", name, text, least, most);
  return value;
}

const Names* launcher() {
  if (!environment_variable(kTorchrun.rank).empty() || !environment_variable(kTorchrun.world_size).empty())
    return &kTorchrun;
  if (environment_variable("MASTER_ADDR").empty()) return nullptr;
  for (const Names& names : kLaunchers)
    if (!environment_variable(names.rank).empty() && !environment_variable(names.world_size).empty()) return &names;
  return nullptr;
}

}  // namespace

std::optional<Environment> read_environment() {
  const Names* names = launcher();
  if (names == nullptr) return std::nullopt;
  constexpr int kMostRanks = 1 << 20;
  Environment environment;
  environment.world_size = number(names->world_size, 1, kMostRanks);
  environment.rank = number(names->rank, 0, environment.world_size - 1);
  if (environment.world_size == 1) return environment;
  environment.master_address = environment_variable("MASTER_ADDR");
  if (environment.master_address.empty())
    throw DistributedError(
        "[dist.environment] {} says {} processes, but MASTER_ADDR is not set; start them with torchrun, or set "
        "MASTER_ADDR and MASTER_PORT to where rank 0 is",
        names->world_size, environment.world_size);
  environment.master_port = number("MASTER_PORT", 1, 65535);
  const std::string agent = environment_variable("TORCHELASTIC_USE_AGENT_STORE");
  environment.has_agent_store = agent == "True" || agent == "1";
  environment.run =
      environment_variable("TORCHELASTIC_RUN_ID") + "/" + environment_variable("TORCHELASTIC_RESTART_COUNT");
  return environment;
}

std::string unused_launcher() {
  if (!environment_variable("MASTER_ADDR").empty()) return "";
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const std::string size = environment_variable(name); !size.empty() && size != "1")
      return fmt::format("{} says {} processes", name, size);
  return "";
}

}  // namespace layerpress::dist
