#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "layerpress/base/progress.h"
#include "layerpress/dist/environment.h"
#include "layerpress/dist/failure.h"

namespace layerpress::dist {

/// The processes that work on one run. Of size 1 it is a normal group whose operations return at once.
///
/// All ranks call the collective operations in the same order, each from one thread. Tensors are contiguous; those on
/// another device than the CPU are staged through host memory, unless connect_devices() has found a direct way. An operation
/// waits until all ranks have come to it, as long as they are alive: a rank that does nothing for the time-out, or ends, ends
/// them all, and every operation (and check()) throws DistributedError naming that rank, its step and what happened. A rank
/// that waits for the others, uses the processor or calls check() is alive.
class Group : public Supervisor {
 public:
  /// An operation under way. Its tensor is in use until wait() returns.
  class Pending {
   public:
    Pending();
    Pending(Pending&&) noexcept;
    Pending& operator=(Pending&&) noexcept;
    ~Pending();
    /// Throws DistributedError.
    void wait();

   private:
    friend class Group;
    struct State;
    std::unique_ptr<State> state_;
  };

  /// One process by itself.
  Group();
  /// Meets the other ranks at the store. Throws DistributedError when they do not come within the time-out, and what
  /// control.check_stop() throws. The calling thread is the one whose work counts as a sign of life.
  Group(const Environment& environment, std::chrono::milliseconds timeout, const RunControl& control = {});
  ~Group() override;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return environment_.rank; }
  int size() const { return environment_.world_size; }
  /// Among the ranks of this machine.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  /// Cores that are this rank's: every core that it may use, divided by the ranks of this machine that may use it, too.
  int cores() const { return cores_; }
  bool is_first() const { return rank() == 0; }

  /// Lets tensors on GPUs travel between them by NCCL where every rank computes on a GPU of its own; `own` is this rank's
  /// device. Collective; does nothing once it has succeeded. Returns why tensors are staged through host memory instead, ""
  /// when they are not. Throws DistributedError where NCCL fails.
  std::string connect_devices(const at::Device& own);

  /// Adds the tensors of all ranks (same shape and dtype), in place.
  void all_reduce(const at::Tensor& tensor);
  Pending start_all_reduce(const at::Tensor& tensor);
  /// The same, but only `root` gets the sum; elsewhere the tensor's contents are unspecified afterwards.
  Pending start_reduce(const at::Tensor& tensor, int root);
  /// The tensors of all ranks (same shape and dtype) in the order of ranks.
  std::vector<at::Tensor> all_gather(const at::Tensor& own);
  /// The texts of all ranks, of any length, in the order of ranks.
  std::vector<std::string> all_gather_text(const std::string& own);
  void broadcast(const at::Tensor& tensor, int root);
  std::string broadcast_text(const std::string& own, int root);
  void barrier();

  /// Tells all ranks why this one ends, unless another was faster. check() then throws InterruptedError for kOnRequest,
  /// DamagedWeightsError for kHopeless, DistributedError else. Does nothing alone. Never throws.
  void fail(const std::string& cause, FailureKind kind = FailureKind::kError) noexcept;
  /// Why the ranks end, if they do: "rank 3: ..." or "rank 3 (host, process 17) ...". Looks once more at who is still there.
  std::string failure() const;
  /// Whether this rank is the one of its machine to say so.
  bool reports_failure() const;

  /// Supervisor: what this rank is at, for messages of others; and whether all ranks are still there.
  void on_step(const std::string& step) override;
  void check() override;

  /// Bytes that this rank has sent in collective operations, by their algorithms' formulas (docs/distributed.md).
  std::uint64_t sent_bytes() const { return sent_bytes_; }
  /// Seconds spent waiting in operations.
  double waited_seconds() const { return waited_seconds_; }

 private:
  struct Connections;
  template <typename Launch>
  Pending start(const at::Tensor& tensor, Launch&& launch);
  /// Between two ranks: sends `own` and receives the other's into `other`, on the host.
  Pending start_exchange(const at::Tensor& own, at::Tensor& other);
  bool travels_directly(const at::Tensor& tensor) const;
  std::vector<at::Tensor> all_gather_directly(const at::Tensor& own);
  void look();
  void wait(Pending::State& state);
  bool close_devices();
  void leave();
  Environment environment_;
  int local_rank_ = 0, local_size_ = 1, cores_ = 1;
  RunControl control_;
  std::unique_ptr<Connections> connections_;  // null alone
  std::uint64_t operations_ = 0;
  std::uint64_t sent_bytes_ = 0;
  double waited_seconds_ = 0;
};

}  // namespace layerpress::dist
