#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace layerpress::dist {

/// Who this process is among those that were started together, as torchrun, Slurm and mpirun say it in the environment.
struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        ///< among the processes of this node
  int local_world_size = 1;  ///< processes of this node
  std::string master_address;
  int master_port = 0;
  bool has_agent_store = false;  ///< a launcher serves the store at the master's address; else rank 0 does
  std::string run;               ///< tells this start from others that use the same store
};

/// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_*; without RANK those of
/// Slurm and Open MPI, when MASTER_ADDR is set. Nothing when none of them says that there are ranks. Throws
/// DistributedError for values that are missing, no numbers, or contradict each other.
std::optional<Environment> read_environment();

/// Cores of this node that are this process's: the usable ones divided by the processes that share them; at least 1.
int usable_cores_per_rank();

}  // namespace layerpress::dist
