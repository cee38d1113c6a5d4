#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace layerpress::dist {

/// This process among those started together, according to the environment variables of torchrun, Slurm or mpirun.
struct Environment {
  int rank = 0;
  int world_size = 1;
  std::string master_address;
  int master_port = 0;
  bool has_agent_store = false;  ///< the launcher serves the store at the master's address; otherwise rank 0 does
  std::string run;               ///< distinguishes this start from others on the same store
};

/// Reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_*. Without RANK, reads the numbers of Slurm, Open MPI
/// or MPICH, if MASTER_ADDR is set. Which ranks share a machine is found out when they meet, because not all launchers
/// report it, or report it correctly. Returns nothing if no launcher's variables are set. Throws DistributedError if
/// values are missing, not numbers, or contradictory.
std::optional<Environment> read_environment();

/// What a launcher says of its processes, each of which works alone because MASTER_ADDR is missing; "": nothing.
std::string unused_launcher();

}  // namespace layerpress::dist
