#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace layerpress::dist {

/// Who this process is among those that were started together, as torchrun, Slurm and mpirun say it in the environment.
struct Environment {
  int rank = 0;
  int world_size = 1;
  std::string master_address;
  int master_port = 0;
  bool has_agent_store = false;  ///< a launcher serves the store at the master's address; else rank 0 does
  std::string run;               ///< tells this start from others that use the same store
};

/// Reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_*; without RANK the numbers of Slurm, Open MPI or MPICH, when
/// MASTER_ADDR is set. Who shares a machine is found out when the ranks meet: launchers do not all say it, nor rightly. Nothing when none of them says that there are ranks. Throws
/// DistributedError for values that are missing, no numbers, or contradict each other.
std::optional<Environment> read_environment();

}  // namespace layerpress::dist
