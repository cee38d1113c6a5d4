#pragma once

#include <sched.h>

#include <map>
#include <vector>

#include "layerpress/base/progress.h"
#include "layerpress/dist/peers.h"

namespace layerpress::dist {

/// The cores of `own` alone, if all ranks of its machine are processes that may use the same cores and there is one for
/// each; else none.
/// `usable` is the number of cores that a container's quota leaves: where it limits them, no core is a rank's own.
std::vector<int> own_cores(const std::vector<Peer>& peers, const Peer& own, int usable);

/// Keeps all threads of this process on some cores, those that receive messages included. Without it, a thread that has
/// waited for another rank may wake up on the core where that rank computes, which both then share for milliseconds.
class CoreBinding {
 public:
  explicit CoreBinding(const std::vector<int>& cores);
  /// Lets each thread use the cores that it could use before; those that began in between, what the calling one could.
  ~CoreBinding();
  CoreBinding(const CoreBinding&) = delete;
  CoreBinding& operator=(const CoreBinding&) = delete;

  bool holds() const { return holds_; }
  /// Ends the binding if others crowd these cores: if the calling thread could run but had to wait for more than a fifth
  /// of the last `period` seconds. Does nothing in between.
  void release_if_crowded(double period = 2.0);

 private:
  void release();
  cpu_set_t usual_{};                // the calling thread's, before
  std::map<int, cpu_set_t> before_;  // by thread
  bool holds_ = false;
  Timer since_;
  double delay_ = 0;  // seconds, when the period began
};

}  // namespace layerpress::dist
