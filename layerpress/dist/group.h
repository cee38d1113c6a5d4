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

class CoreBinding;
struct MeetingOptions;

/// The element-wise reduction of all ranks' tensors. A maximum that involves NaN is unspecified.
enum class Reduction { kSum, kMax };

/// The processes that work on one run. Of size 1 it is a normal group whose operations return at once.
///
/// All ranks call the collective operations in the same order, each from one thread. Tensors are contiguous. Tensors on
/// devices are staged through host memory, unless connect_devices() has found a direct way. An operation waits until
/// all ranks have reached it, as long as they are alive. A rank that ends, or does nothing for the time-out, ends all
/// of them: every operation, and check(), then throws DistributedError naming that rank, its step and the cause. A rank
/// that waits for others, uses the processor or calls check() is alive.
class Group : public Supervisor {
 public:
  /// An operation in progress. Its tensor is in use until wait() returns.
  class Pending {
   public:
    Pending() = default;
    Pending(Pending&&) = default;
    Pending& operator=(Pending&&) = default;
    /// Throws DistributedError.
    void wait();

   private:
    friend class Group;
    struct State;
    std::shared_ptr<State> state_;  // of this object alone
  };

  /// A single process.
  Group();
  /// Meets the other ranks at the store. Throws DistributedError if they do not join within the time-out, and the
  /// exceptions of control.check_stop(). What fails after they have met is a failure() of the group, which the first
  /// operation throws. Work of the calling thread counts as a sign of life.
  Group(const Environment& environment, std::chrono::milliseconds timeout, const RunControl& control = {});
  ~Group() override;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return environment_.rank; }
  int size() const { return environment_.world_size; }
  /// Rank and size among the ranks of this machine.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  /// This rank's share of cores: each core that it may use is divided among the ranks of this machine that may also use
  /// it.
  int cores() const { return cores_; }
  bool is_first() const { return rank() == 0; }
  /// Keeps this process, which computes with `threads`, on cores that no other rank uses, as long as the result lives and
  /// other processes do not crowd these cores. Null where ranks have no cores of their own, or fewer than threads.
  std::shared_ptr<CoreBinding> bind_threads(int threads);

  /// Lets tensors on GPUs travel from GPU to GPU by NCCL if every rank computes on a GPU of its own; `own` is this
  /// rank's device. Collective; does nothing after it has succeeded. Returns the reason why tensors are staged through
  /// host memory instead, or "" if they are not. Throws DistributedError if NCCL fails.
  std::string connect_devices(const at::Device& own);

  /// Joins the tensors of all ranks (same shape and dtype), in place: by default adds them.
  void all_reduce(const at::Tensor& tensor, Reduction reduction = Reduction::kSum);
  Pending start_all_reduce(const at::Tensor& tensor, Reduction reduction = Reduction::kSum);
  /// The same, but only `root` gets the result; elsewhere the tensor's contents are unspecified afterwards.
  Pending start_reduce(const at::Tensor& tensor, int root, Reduction reduction = Reduction::kSum);
  /// The tensors of all ranks (same shape and dtype) in the order of ranks.
  std::vector<at::Tensor> all_gather(const at::Tensor& own);
  /// The texts of all ranks, of any length, in the order of ranks.
  std::vector<std::string> all_gather_text(const std::string& own);
  void broadcast(const at::Tensor& tensor, int root);
  std::string broadcast_text(const std::string& own, int root);
  void barrier();

  /// Tells all ranks why this one ends, unless another was first. check() then throws InterruptedError for kOnRequest,
  /// DamagedWeightsError for kHopeless, and DistributedError otherwise. Does nothing in a group of one. Never throws.
  void fail(const std::string& cause, FailureKind kind = FailureKind::kError) noexcept;
  /// The reason why the ranks end, if they do: "rank 3: ..." or "rank 3 (host, process 17) ...". First checks all ranks
  /// again.
  std::string failure() const;
  /// Whether this rank reports the failure for its machine.
  bool reports_failure() const;

  /// Supervisor: records the current step for other ranks' messages; checks that all ranks are alive.
  void on_step(const std::string& step) override;
  void check() override;

  /// Bytes that this rank has sent in collective operations, according to their algorithms' formulas
  /// (docs/distributed.md).
  std::uint64_t sent_bytes() const { return sent_bytes_; }
  /// Seconds spent waiting in collective operations.
  double waited_seconds() const { return waited_seconds_; }

 private:
  struct Connections;
  std::unique_ptr<Connections> connect(MeetingOptions meeting);
  template <typename Launch>
  Pending start(const at::Tensor& tensor, Launch&& launch);
  /// For two ranks: sends `own` and receives the other's tensor into `other`, on the host.
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
  std::unique_ptr<Connections> connections_;  // null in a group of one
  std::weak_ptr<CoreBinding> binding_;
  std::uint64_t operations_ = 0;
  std::uint64_t sent_bytes_ = 0;
  double waited_seconds_ = 0;
};

}  // namespace layerpress::dist
