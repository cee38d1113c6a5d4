#include "layerpress/dist/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "layerpress/base/error.h"

namespace layerpress::dist {
namespace {

/// Sets exactly these of the variables that matter, and puts back what was there.
class Variables {
 public:
  explicit Variables(const std::map<std::string, std::string>& wanted) {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_STEP_NUM_TASKS",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "SLURM_LOCALID",
                             "SLURM_NTASKS_PER_NODE",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "TORCHELASTIC_USE_AGENT_STORE",
                             "TORCHELASTIC_RUN_ID",
                             "TORCHELASTIC_RESTART_COUNT"}) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      ::unsetenv(name);
      names_.push_back(name);
    }
    for (const auto& [name, value] : wanted) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const std::string& name : names_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::map<std::string, std::string> before_;
  std::vector<std::string> names_;
};

std::string refusal() {
  try {
    (void)read_environment();
  } catch (const DistributedError& error) {
    return error.what();
  }
  return "";
}

TEST(Environment, SaysNothingOfOneProcess) {
  const Variables none(std::map<std::string, std::string>{});
  EXPECT_FALSE(read_environment().has_value());
}

TEST(Environment, OfTorchrun) {
  const Variables variables({{"RANK", "3"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "node-0"},
                             {"MASTER_PORT", "29400"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"TORCHELASTIC_RUN_ID", "x"},
                             {"TORCHELASTIC_RESTART_COUNT", "1"}});
  const auto environment = read_environment();
  ASSERT_TRUE(environment.has_value());
  EXPECT_EQ(environment->rank, 3);
  EXPECT_EQ(environment->world_size, 8);
  EXPECT_EQ(environment->master_address, "node-0");
  EXPECT_EQ(environment->master_port, 29400);
  EXPECT_TRUE(environment->has_agent_store);
  EXPECT_EQ(environment->run, "x/1");
}

TEST(Environment, OfSlurmAndMpiNeedsAnAddress) {
  {
    const Variables batch_job({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}});
    EXPECT_FALSE(read_environment().has_value());
    EXPECT_EQ(unused_launcher(), "");  // sbatch runs its script once
  }
  for (const char* size : {"OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE"}) {
    const Variables forgotten(std::map<std::string, std::string>{{size, "3"}});
    EXPECT_FALSE(read_environment().has_value());
    EXPECT_EQ(unused_launcher(), std::string(size) + " says 3 processes");
    const Variables addressed(std::map<std::string, std::string>{{size, "3"}, {"MASTER_ADDR", "a"}});
    EXPECT_EQ(unused_launcher(), "");
  }
  {
    const Variables slurm({{"SLURM_PROCID", "2"},
                           {"SLURM_NTASKS", "4"},
                           {"SLURM_LOCALID", "0"},
                           {"MASTER_ADDR", "a"},
                           {"MASTER_PORT", "1234"}});
    EXPECT_EQ(read_environment()->rank, 2);
    EXPECT_FALSE(read_environment()->has_agent_store);
  }
  const Variables mpi({{"OMPI_COMM_WORLD_RANK", "1"},
                       {"OMPI_COMM_WORLD_SIZE", "2"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                       {"MASTER_ADDR", "a"},
                       {"MASTER_PORT", "1234"}});
  EXPECT_EQ(read_environment()->rank, 1);
}

TEST(Environment, RefusesWhatCannotBe) {
  {
    const Variables alone(std::map<std::string, std::string>{{"RANK", "0"}});
    EXPECT_NE(refusal().find("WORLD_SIZE is ''"), std::string::npos) << refusal();
  }
  {
    const Variables outside({{"RANK", "2"}, {"WORLD_SIZE", "2"}});
    EXPECT_NE(refusal().find("RANK is '2'; it must be a number from 0 to 1"), std::string::npos) << refusal();
  }
  {
    const Variables words({{"RANK", "first"}, {"WORLD_SIZE", "2"}});
    EXPECT_NE(refusal().find("RANK is 'first'"), std::string::npos);
  }
  {
    const Variables nowhere({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
    EXPECT_NE(refusal().find("MASTER_ADDR is not set"), std::string::npos);
  }
  const Variables port({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "99999"}});
  EXPECT_NE(refusal().find("MASTER_PORT is '99999'"), std::string::npos);
}

TEST(Environment, OneRankNeedsNoAddress) {
  const Variables variables({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(read_environment()->world_size, 1);
}

}  // namespace
}  // namespace layerpress::dist
