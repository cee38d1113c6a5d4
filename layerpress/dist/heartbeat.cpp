#include "layerpress/dist/heartbeat.h"

#include <c10/util/Exception.h>
#include <ctime>

#include <algorithm>
#include <utility>

#include "layerpress/base/error.h"

namespace layerpress::dist {
namespace {

using namespace std::chrono_literals;

constexpr const char* kFailure = "failure";

std::string key(const char* kind, int rank) { return fmt::format("{}/{}", kind, rank); }

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::string to_text(const Failure& failure) {
  return Json{{"text", failure.text},
              {"machine", failure.machine},
              {"reporter", failure.reporter},
              {"on_request", failure.on_request}}
      .dump(-1, ' ', true, Json::error_handler_t::replace);
}

Failure failure_from(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {"a rank failed and could not say why", "", 0, false};
  return {json.value("text", ""), json.value("machine", ""), json.value("reporter", 0), json.value("on_request", false)};
}

}  // namespace

std::string cause_of(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
  text = text.substr(0, text.find('\n'));
  if (const auto trace = text.find("Exception raised from"); trace != std::string::npos) text.resize(trace);
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  return text;
}

Heartbeat::Heartbeat(c10::intrusive_ptr<c10d::Store> store, std::vector<Peer> peers, int rank,
                     std::chrono::milliseconds timeout)
    : store_(std::move(store)),
      peers_(std::move(peers)),
      rank_(rank),
      timeout_(timeout),
      interval_(std::clamp(timeout / 20, 50ms, 500ms)),
      local_(peers_, peers_[static_cast<std::size_t>(rank)]),
      step_("start"),
      next_changed_(Clock::now()),
      last_answer_(Clock::now()),
      last_look_(Clock::now()) {
  ::pthread_getcpuclockid(::pthread_self(), &worker_clock_);
  thread_ = std::thread([this] { run(); });
}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(stop_mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Heartbeat::on_step(const std::string& step) {
  on_progress();
  const std::lock_guard lock(mutex_);
  if (!step.empty()) step_ = step;
}

void Heartbeat::run() {
  std::unique_lock lock(stop_mutex_);
  while (!stop_) {
    lock.unlock();
    const bool more = beat();
    lock.lock();
    if (!more) return;
    changed_.wait_for(lock, interval_, [&] { return stop_; });
  }
}

bool Heartbeat::beat() {
  const std::lock_guard one(store_mutex_);
  // A process that was stopped for a while must not blame others for its own silence.
  if (Clock::now() - last_look_ > interval_ + timeout_ / 2) next_changed_ = last_answer_ = Clock::now();
  last_look_ = Clock::now();
  try {
    find_failure();
    if (has_failed()) return false;
    publish();
    find_ended();
    watch_next();
    last_answer_ = Clock::now();
  } catch (const std::exception& error) {
    find_ended();
    // A broken connection does not heal, a slow one may.
    if (Clock::now() - last_answer_ > std::min<std::chrono::milliseconds>(timeout_, 2s) && !has_failed())
      set_failure({fmt::format("[dist] rank {} ({}) cannot reach the ranks' store: {}", rank_,
                               peers_[static_cast<std::size_t>(rank_)].host, cause_of(error)),
                   "", -1, false});
  }
  return !has_failed();
}

bool Heartbeat::uses_processor() {
  struct timespec time {};
  if (::clock_gettime(worker_clock_, &time) != 0) return false;
  const double seconds = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  constexpr double kIdle = 1e-4;
  return seconds - std::exchange(last_processor_seconds_, seconds) > kIdle;
}

void Heartbeat::publish() {
  const std::uint64_t progress = progress_.load(std::memory_order_relaxed);
  const bool works = uses_processor();
  if (waiting_ || works || progress != std::exchange(last_progress_, progress)) ++beats_;
  std::string step;
  {
    const std::lock_guard lock(mutex_);
    step = step_;
  }
  store_->set(key("beat", rank_), bytes_of(fmt::format("{} {}", beats_, step)));
}

void Heartbeat::find_failure() {
  if (!store_->check({kFailure})) return;
  set_failure(failure_from(text_of(store_->get(kFailure))));
}

std::string Heartbeat::step_of(int rank) {
  try {
    if (!store_->check({key("beat", rank)})) return "start";
    const std::string said = text_of(store_->get(key("beat", rank)));
    return said.substr(std::min(said.size(), said.find(' ') + 1));
  } catch (const std::exception&) {
    return "unknown";
  }
}

void Heartbeat::find_ended() {
  for (const int rank : local_.ended()) {
    bool left = false;
    try {
      left = store_->check({key("left", rank)});
    } catch (const std::exception&) {
      // The store went with that rank.
    }
    if (left || has_failed()) continue;
    fail(fmt::format("{} ended in step {}", peers_[static_cast<std::size_t>(rank)].name(), step_of(rank)), false);
  }
}

void Heartbeat::watch_next() {
  const int next = (rank_ + 1) % static_cast<int>(peers_.size());
  const std::string said =
      store_->check({key("beat", next)}) ? text_of(store_->get(key("beat", next))) : std::string();
  if (said != next_said_ || store_->check({key("left", next)})) {
    next_said_ = said;
    next_changed_ = Clock::now();
  }
  if (Clock::now() - next_changed_ <= timeout_) return;
  fail(fmt::format("{} gave no sign of life for {:g} s in step {}", peers_[static_cast<std::size_t>(next)].name(),
                   std::chrono::duration<double>(timeout_).count(), step_of(next)),
       false);
}

void Heartbeat::set_failure(Failure failure) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
  }
  failed_.store(true, std::memory_order_release);
}

void Heartbeat::fail(const std::string& text, bool on_request) {
  const Failure failure = {text, peers_[static_cast<std::size_t>(rank_)].machine, rank_, on_request};
  try {
    set_failure(failure_from(text_of(store_->compareSet(kFailure, {}, bytes_of(to_text(failure))))));
  } catch (const std::exception&) {
    set_failure({text, "", -1, on_request});  // nobody can be told
  }
}

std::optional<Failure> Heartbeat::look() {
  if (!has_failed()) {
    const std::lock_guard one(store_mutex_);
    try {
      find_failure();
      if (!has_failed()) find_ended();
    } catch (const std::exception&) {
      find_ended();
    }
  }
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Heartbeat::leave() {
  try {
    store_->set(key("left", rank_), bytes_of("1"));
  } catch (const std::exception&) {
    // Who watches will see the process end.
  }
}

bool Heartbeat::reports(const Failure& failure) const {
  const Peer& own = peers_[static_cast<std::size_t>(rank_)];
  if (failure.reporter >= 0 && failure.machine == own.machine) return failure.reporter == rank_;
  const std::vector<int> ended = local_.ended();
  for (const int rank : local_.ranks())
    if (std::find(ended.begin(), ended.end(), rank) == ended.end()) return rank == rank_;
  return true;
}

}  // namespace layerpress::dist
