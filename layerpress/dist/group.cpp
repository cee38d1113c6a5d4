#include "layerpress/dist/group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/base/system/machine.h"
#include "layerpress/dist/bounded.h"
#include "layerpress/dist/core_binding.h"
#include "layerpress/dist/device_backend.h"
#include "layerpress/dist/device_collectives.h"
#include "layerpress/dist/heartbeat.h"
#include "layerpress/dist/rendezvous.h"

namespace layerpress::dist {

using namespace std::chrono_literals;

/// Passes the end of an operation from its own thread to the waiting one.
struct Completion {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;

  void wait(const std::function<void()>& look) {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, 50ms, [&] { return done; })) look();
  }
};

namespace {

void require_plain(const at::Tensor& tensor) {
  if (!tensor.is_contiguous()) throw InternalError("[dist.group] a tensor of a collective operation is not contiguous");
}

c10d::ReduceOp operation_of(Reduction reduction) {
  return reduction == Reduction::kMax ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
}

/// Reduces `other` into `tensor`.
void join(at::Tensor& tensor, const at::Tensor& other, Reduction reduction) {
  if (reduction == Reduction::kMax)
    at::maximum_out(tensor, tensor, other);
  else
    tensor.add_(other);
}

std::string failed_between_devices(const std::exception& error) {
  return "failed in an operation between GPUs: " + cause_of(error);
}

}  // namespace

struct Group::Connections {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::Store> beats;  // the heartbeat's, which no library waits in
  std::unique_ptr<Heartbeat> heartbeat;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
  std::unique_ptr<DeviceCollectives> devices;  // null: device tensors are staged
  MeetingOptions meeting;
  std::vector<Peer> peers;
  bool serves_store = false;
};

struct Group::Pending::State {
  Group* group = nullptr;
  at::Tensor target;  // where the result belongs
  at::Tensor staged;  // the operation's own tensor
  at::Tensor other;   // to be joined with it afterwards, if defined
  Reduction reduction = Reduction::kSum;
  bool direct = false;  // from device to device
  c10::intrusive_ptr<c10d::Work> work;
  std::uint64_t operation = 0;
  std::shared_ptr<Completion> completion = std::make_shared<Completion>();
};

void Group::Pending::wait() {
  if (!state_) return;
  state_->group->wait(*state_);
  state_.reset();
}

Group::Group() : cores_(usual_threads()) {}

Group::Group(const Environment& environment, std::chrono::milliseconds timeout, const RunControl& control)
    : environment_(environment), cores_(usual_threads()), control_(control) {
  control_.supervisor = nullptr;
  if (size() == 1) return;
  MeetingOptions meeting{timeout, [this] { control_.check_stop(); }};
  try {
    connections_ = connect(meeting);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw DistributedError("[dist.join] rank {}: the ranks' store at {}:{} no longer answers: {}", rank(),
                           environment.master_address, environment.master_port, cause_of(error));
  }
  meeting.wait_on = [this] {
    control_.check_stop();
    check();
  };
  // From here on, the ranks tell each other what fails, and one of them reports it: the next operation throws it.
  try {
    connections_->gloo = connect_gloo(c10::make_intrusive<c10d::PrefixStore>("gloo", connections_->store), environment,
                                      connections_->peers, meeting);
  } catch (const InterruptedError& error) {
    fail(error.what(), FailureKind::kOnRequest);
  } catch (const std::exception& error) {
    fail(error.what());
  }
  connections_->meeting = meeting;
}

/// Meets the other ranks and begins to watch them.
std::unique_ptr<Group::Connections> Group::connect(MeetingOptions meeting) {
  auto connections = std::make_unique<Connections>();
  connections->serves_store = !environment_.has_agent_store && is_first();
  const auto plain = connect_store(environment_, connections->serves_store, meeting);
  const std::string prefix = meeting_prefix(*plain, environment_);
  connections->store = c10::make_intrusive<c10d::PrefixStore>(prefix, plain);
  connections->peers = meet(connections->store, environment_, meeting);
  const Peer& own = connections->peers[static_cast<std::size_t>(rank())];
  const std::vector<int> local = ranks_of_machine(connections->peers, own);
  local_size_ = static_cast<int>(local.size());
  local_rank_ = static_cast<int>(std::find(local.begin(), local.end(), rank()) - local.begin());
  cores_ = cores_of(connections->peers, own);
  // A beat must not wait longer for an answer than others wait for the beat.
  const std::chrono::milliseconds timeout = meeting.timeout;
  meeting.timeout = std::max<std::chrono::milliseconds>(timeout / 2, 1s);
  connections->beats = c10::make_intrusive<c10d::PrefixStore>(prefix, connect_store(environment_, false, meeting));
  connections->heartbeat =
      std::make_unique<Heartbeat>(connections->beats, connections->peers, rank(), timeout,
                                  environment_.has_agent_store ? "the launcher" : connections->peers.front().name());
  return connections;
}

Group::~Group() { leave(); }

/// Ends the connections, and keeps the store alive until all other ranks have left.
void Group::leave() {
  if (!connections_) return;
  const bool devices_closed = !connections_->devices || close_devices();
  const bool failed = connections_->heartbeat->has_failed();
  const bool ended = connections_->heartbeat->stop();
  if (connections_->serves_store && ended) {
    const auto until = std::chrono::steady_clock::now() + (failed ? 3s : 10s);
    std::vector<std::string> keys;
    for (int other = 0; other < size(); ++other) keys.push_back(fmt::format("{}/{}", failed ? "seen" : "left", other));
    try {
      // A library that still connects ranks may hold the other connection until its time-out.
      while (!connections_->beats->check(keys) && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(20ms);
    } catch (const std::exception&) {
      // The store is no longer needed.
    }
  }
  // Operations that never end hold threads that cannot be joined.
  if (failed || !ended || !devices_closed) keep_forever(std::move(connections_));
  connections_.reset();
}

/// Ends the connections between devices. Ranks of one machine wait for each other there.
bool Group::close_devices() {
  const Heartbeat::Waiting waiting(*connections_->heartbeat, operations_ + 1);
  return connections_->devices->close([this] { check(); });
}

std::shared_ptr<CoreBinding> Group::bind_threads(int threads) {
  if (!connections_) return nullptr;
  const Peer& own = connections_->peers[static_cast<std::size_t>(rank())];
  const std::vector<int> cores = own_cores(connections_->peers, own, usable_cores());
  if (cores.empty() || threads > static_cast<int>(cores.size())) return nullptr;
  auto binding = std::make_shared<CoreBinding>(cores);
  binding_ = binding;
  return binding;
}

std::string Group::connect_devices(const at::Device& own) {
  if (!connections_ || connections_->devices) return "";
  std::vector<RankDevice> ranks;
  for (const std::string& text : all_gather_text(describe_device(own).to_text()))
    ranks.push_back(RankDevice::from_text(text));
  if (std::string reason = reason_for_staging(ranks); !reason.empty()) return reason;
  try {
    // On one machine, NCCL needs the network at most for its handshake.
    const std::string interfaces = on_one_host(ranks) ? "" : network_interfaces(environment_, connections_->peers);
    connections_->devices = std::make_unique<DeviceCollectives>(
        make_device_backend(c10::make_intrusive<c10d::PrefixStore>("nccl", connections_->store), rank(), size(),
                            interfaces),
        own, [heartbeat = connections_->heartbeat.get()] { return heartbeat->failure().has_value(); });
    connections_->devices->connect(connections_->meeting);
  } catch (const std::exception& error) {
    fail(error.what());
    throw;
  }
  return "";
}

bool Group::travels_directly(const at::Tensor& tensor) const {
  return connections_ && connections_->devices && tensor.is_cuda();
}

/// Called repeatedly while waiting.
void Group::look() {
  if (connections_->heartbeat->has_failed())
    check();
  else
    control_.check_stop();
}

void Group::wait(Pending::State& state) {
  if (!state.work) return;
  Heartbeat& heartbeat = *connections_->heartbeat;
  const Timer timer;
  const Heartbeat::Waiting waiting(heartbeat, state.operation);
  try {
    if (state.direct) {
      connections_->devices->wait(*state.work, [this] { look(); });
    } else {
      state.completion->wait([this] { look(); });
      state.work->wait(kForever);
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    // A lost rank shows as a lost connection.
    state.direct ? heartbeat.find_lost(failed_between_devices(error)) : heartbeat.find_lost();
    check();
    throw;
  }
  waited_seconds_ += timer.seconds();
  if (state.other.defined()) join(state.staged, state.other, state.reduction);
  if (!state.target.is_same(state.staged)) state.target.copy_(state.staged);
}

namespace {

/// Calls back into `completion` when the work is done.
void notify_when_done(c10d::Work& work, const std::shared_ptr<Completion>& completion) {
  work.getFuture()->addCallback([completion](c10::ivalue::Future&) {
    {
      const std::lock_guard lock(completion->mutex);
      completion->done = true;
    }
    completion->changed.notify_all();
  });
}

/// The part of a ring's traffic that each rank sends.
double ring_share(int size) { return static_cast<double>(size - 1) / size; }

}  // namespace

template <typename Launch>
Group::Pending Group::start(const at::Tensor& tensor, Launch&& launch) {
  require_plain(tensor);
  Pending pending;
  if (!connections_) return pending;
  check();
  pending.state_ = std::make_shared<Pending::State>();
  Pending::State& state = *pending.state_;
  state.group = this;
  state.operation = ++operations_;
  state.target = tensor;
  state.direct = travels_directly(tensor);
  state.staged = tensor.is_cpu() || state.direct ? tensor : tensor.to(at::kCPU);
  std::vector<at::Tensor> tensors = {state.staged};
  if (!state.direct) {
    state.work = launch(*connections_->gloo, tensors);
    notify_when_done(*state.work, state.completion);
    return pending;
  }
  // NCCL connects ranks on first use, and waits for them.
  const Heartbeat::Waiting waiting(*connections_->heartbeat, state.operation);
  try {
    state.work = launch(connections_->devices->backend(), tensors);
  } catch (const std::exception& error) {
    connections_->heartbeat->find_lost(failed_between_devices(error));
    check();
    throw;
  }
  return pending;
}

Group::Pending Group::start_exchange(const at::Tensor& own, at::Tensor& other) {
  sent_bytes_ += own.nbytes();
  return start(own, [&](c10d::Backend& backend, std::vector<at::Tensor>& tensors) {
    at::Tensor sent = tensors.front().view(-1), received = at::empty_like(sent);
    other = received.view(own.sizes());
    std::vector<std::int64_t> counts(2);  // everything goes to and comes from the other rank
    counts[1 - static_cast<std::size_t>(rank())] = sent.numel();
    std::vector<std::int64_t> received_counts = counts;  // c10d moves from both
    c10d::AllToAllOptions options;
    options.timeout = kForever;
    return backend.alltoall_base(received, sent, received_counts, counts, options);
  });
}

Group::Pending Group::start_all_reduce(const at::Tensor& tensor, Reduction reduction) {
  if (size() == 2 && !travels_directly(tensor)) {
    // One message each way instead of a ring's four, of as many bytes in all; both join the same two numbers.
    at::Tensor other;
    Pending pending = start_exchange(tensor, other);
    pending.state_->other = other;
    pending.state_->reduction = reduction;
    return pending;
  }
  sent_bytes_ += static_cast<std::uint64_t>(2 * ring_share(size()) * static_cast<double>(tensor.nbytes()));
  return start(tensor, [reduction](c10d::Backend& backend, std::vector<at::Tensor>& tensors) {
    c10d::AllreduceOptions options;
    options.timeout = kForever;
    options.reduceOp = operation_of(reduction);
    return backend.allreduce(tensors, options);
  });
}

Group::Pending Group::start_reduce(const at::Tensor& tensor, int root, Reduction reduction) {
  // Gloo's ring joins parts, which then go to the root; NCCL's is a chain that ends there.
  const double of_root = travels_directly(tensor) ? 0 : ring_share(size());
  const double share = rank() == root || size() == 1 ? of_root : 1;
  sent_bytes_ += static_cast<std::uint64_t>(share * static_cast<double>(tensor.nbytes()));
  return start(tensor, [root, reduction](c10d::Backend& backend, std::vector<at::Tensor>& tensors) {
    c10d::ReduceOptions options;
    options.timeout = kForever;
    options.rootRank = root;
    options.reduceOp = operation_of(reduction);
    return backend.reduce(tensors, options);
  });
}

void Group::all_reduce(const at::Tensor& tensor, Reduction reduction) { start_all_reduce(tensor, reduction).wait(); }

void Group::broadcast(const at::Tensor& tensor, int root) {
  if (rank() == root && size() > 1) sent_bytes_ += tensor.nbytes();
  start(tensor, [root](c10d::Backend& backend, std::vector<at::Tensor>& tensors) {
    c10d::BroadcastOptions options;
    options.timeout = kForever;
    options.rootRank = root;
    return backend.broadcast(tensors, options);
  }).wait();
}

std::vector<at::Tensor> Group::all_gather_directly(const at::Tensor& own) {
  const at::Tensor all = at::empty({size(), own.numel()}, own.options());
  start(own, [&all](c10d::Backend& backend, std::vector<at::Tensor>& tensors) {
    at::Tensor gathered = all.view(-1), sent = tensors.front().view(-1);
    return backend._allgather_base(gathered, sent);
  }).wait();
  sent_bytes_ += static_cast<std::uint64_t>(size() - 1) * own.nbytes();
  std::vector<at::Tensor> tensors;
  for (int r = 0; r < size(); ++r) tensors.push_back(all.select(0, r).view(own.sizes()));
  return tensors;
}

std::vector<at::Tensor> Group::all_gather(const at::Tensor& own) {
  if (!connections_) return {own};
  if (travels_directly(own)) return all_gather_directly(own);
  if (size() == 2) {
    at::Tensor other;
    start_exchange(own, other).wait();
    other = other.to(own.device());
    return is_first() ? std::vector{own, other} : std::vector{other, own};
  }
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int r = 0; r < size(); ++r) outputs.front().push_back(at::empty_like(own, own.options().device(at::kCPU)));
  start(own, [&outputs](c10d::Backend& backend, std::vector<at::Tensor>& tensors) {
    c10d::AllgatherOptions options;
    options.timeout = kForever;
    return backend.allgather(outputs, tensors, options);
  }).wait();
  sent_bytes_ += static_cast<std::uint64_t>(size() - 1) * own.nbytes();
  for (at::Tensor& tensor : outputs.front()) tensor = tensor.to(own.device());
  return std::move(outputs.front());
}

void Group::fail(const std::string& cause, FailureKind kind) noexcept {
  if (!connections_) return;
  try {
    connections_->heartbeat->fail(
        fmt::format("rank {} ({}): {}", rank(), connections_->peers[static_cast<std::size_t>(rank())].host, cause),
        kind);
  } catch (...) {
    // No rank is left to tell.
  }
}

std::string Group::failure() const {
  if (!connections_) return "";
  const auto failure = connections_->heartbeat->look();
  return failure ? failure->text : "";
}

bool Group::reports_failure() const {
  return !connections_ || !connections_->heartbeat->failure() || connections_->heartbeat->reports();
}

void Group::on_step(const std::string& step) {
  if (connections_) connections_->heartbeat->on_step(step);
  if (const auto binding = binding_.lock()) binding->release_if_crowded();
}

void Group::check() {
  if (!connections_) return;
  connections_->heartbeat->on_progress();
  if (!connections_->heartbeat->has_failed()) return;
  const auto failure = connections_->heartbeat->failure();
  if (failure->kind == FailureKind::kOnRequest) throw InterruptedError("{}", failure->text);
  if (failure->kind == FailureKind::kHopeless) throw DamagedWeightsError("{}", failure->text);
  throw DistributedError("{}", failure->text);
}

}  // namespace layerpress::dist
