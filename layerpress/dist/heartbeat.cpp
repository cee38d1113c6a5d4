#include "layerpress/dist/heartbeat.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <sstream>
#include <utility>

#include "layerpress/base/error.h"

namespace layerpress::dist {
namespace {

using namespace std::chrono_literals;

constexpr const char* kFailure = "failure";
constexpr auto kPatience = 3s;  // for a store that has always answered

std::string key(const char* kind, int rank) { return fmt::format("{}/{}", kind, rank); }

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::string to_text(const Failure& failure) {
  return Json{{"text", failure.text},
              {"machine", failure.machine},
              {"reporter", failure.reporter},
              {"kind", static_cast<int>(failure.kind)}}
      .dump(-1, ' ', true, Json::error_handler_t::replace);
}

Failure failure_from(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {"a rank failed and could not say why", "", 0, FailureKind::kError};
  return {json.value("text", ""), json.value("machine", ""), json.value("reporter", 0),
          static_cast<FailureKind>(json.value("kind", 0))};
}

double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

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
                     std::chrono::milliseconds timeout, std::string store_name)
    : store_(std::move(store)),
      peers_(std::move(peers)),
      rank_(rank),
      timeout_(timeout),
      interval_(std::clamp(timeout / 20, 50ms, 500ms)),
      store_name_(std::move(store_name)),
      local_(peers_, peer(rank)),
      last_answer_(Clock::now().time_since_epoch().count()),
      step_("start"),
      next_changed_(Clock::now()),
      last_look_(Clock::now()) {
  ::pthread_getcpuclockid(::pthread_self(), &worker_clock_);
  thread_ = std::thread([this] { run(); });
}

Heartbeat::~Heartbeat() { thread_.join(); }

Heartbeat::Waiting::Waiting(Heartbeat& heartbeat, std::uint64_t operation) : heartbeat_(heartbeat) {
  heartbeat_.operation_ = operation;
  heartbeat_.waiting_since_ = Clock::now().time_since_epoch().count();
  heartbeat_.waiting_ = true;
}

Heartbeat::Waiting::~Waiting() { heartbeat_.waiting_ = false; }

// ---- called by the working thread

void Heartbeat::on_step(const std::string& step) {
  on_progress();
  {
    const std::lock_guard lock(mutex_);
    if (step.empty() || step == step_) return;
    step_ = step;
    ++asked_;  // so that others learn it at once
  }
  changed_.notify_all();
}

bool Heartbeat::has_failed() {
  if (failed_.load(std::memory_order_acquire)) return true;
  // If this process itself was stopped, the store gets its full time again.
  const Clock::time_point now = Clock::now();
  if (now - std::exchange(asked_at_, now) > timeout_ / 2) {
    last_answer_ = now.time_since_epoch().count();
    return false;
  }
  const Clock::duration silence = now.time_since_epoch() - Clock::duration(last_answer_.load());
  if (silence <= timeout_ + interval_) return false;
  fail_alone(fmt::format("[dist] the ranks' store, which {} serves, gave no answer for {:.0f} s", store_name_,
                         seconds(silence)));
  return true;
}

std::optional<Failure> Heartbeat::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

/// Makes the thread run another round and waits for it for up to `patience`.
void Heartbeat::ask(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience) {
  const std::uint64_t question = ++asked_;
  changed_.notify_all();
  changed_.wait_for(lock, patience, [&] { return answered_ >= question || stopped_; });
}

std::optional<Failure> Heartbeat::look() {
  std::unique_lock lock(mutex_);
  if (!failure_) ask(lock, 1s);
  return failure_;
}

void Heartbeat::find_lost(const std::string& otherwise) {
  std::unique_lock lock(mutex_);
  suspects_ = true;
  const auto until = Clock::now() + 2 * kPatience + timeout_ / 10;
  while (!failure_ && Clock::now() < until) ask(lock, interval_);
  lock.unlock();
  fail(fmt::format("[dist] rank {} {}", rank_, otherwise), FailureKind::kError);
}

void Heartbeat::fail(const std::string& text, FailureKind kind) {
  std::unique_lock lock(mutex_);
  if (failure_) return;
  to_publish_ = Failure{text, peer(rank_).machine, rank_, kind};
  ask(lock, kPatience);
  if (failure_) return;
  lock.unlock();
  set_failure({text, peer(rank_).machine, rank_, kind}, /*reports=*/true);  // no other rank can be reached
}

bool Heartbeat::stop() {
  std::unique_lock lock(mutex_);
  stop_ = true;
  changed_.notify_all();
  return changed_.wait_for(lock, kPatience, [&] { return stopped_; });
}

// ---- the heartbeat thread

void Heartbeat::run() {
  std::unique_lock lock(mutex_);
  while (!stop_ && !failure_) {
    const std::uint64_t question = asked_;
    lock.unlock();
    beat();
    lock.lock();
    answered_ = question;
    changed_.notify_all();
    changed_.wait_for(lock, interval_, [&] { return stop_ || failure_ || asked_ > answered_; });
  }
  const bool failed = failure_.has_value();
  lock.unlock();
  try {
    const std::string end = key(failed ? "seen" : "left", rank_);
    store_->set(end, bytes_of("1"));
    (void)store_->check({end});  // set() gets no answer, check() does: the key is stored now
  } catch (const std::exception&) {
    // Watching ranks will see the process end.
  }
  lock.lock();
  stopped_ = true;
  changed_.notify_all();
}

void Heartbeat::beat() {
  (void)was_paused();
  last_look_ = Clock::now();
  try {
    find_failure();
    publish_failure();
    if (failed_) return;
    publish();
    find_ended();
    watch_next();
    find_deadlock();
    compare_all();
    last_answer_ = Clock::now().time_since_epoch().count();
  } catch (const std::exception& error) {
    (void)was_paused();
    for (const int rank : local_.ended())
      if (!failed_) fail_alone(fmt::format("{} ended", peer(rank).name()));
    // A broken connection does not recover; a slow one may.
    const Clock::duration silence = Clock::now().time_since_epoch() - Clock::duration(last_answer_.load());
    if (!failed_ && silence > std::min<Clock::duration>(timeout_, 2s))
      fail_alone(fmt::format("[dist] the ranks' store, which {} serves, can no longer be reached: {}", store_name_,
                             cause_of(error)));
  }
}

/// Whether this process was stopped for a while since the beat began. Then it must not blame others for its own
/// silence.
bool Heartbeat::was_paused() {
  const Clock::duration pause = Clock::now() - last_look_;
  if (pause <= interval_ + timeout_ / 2) return false;
  was_stopped_ = was_stopped_ || pause > timeout_;
  next_changed_ = Clock::now();
  suspects_said_.clear();
  waiting_said_.clear();
  return true;
}

bool Heartbeat::uses_processor() {
  struct timespec time {};
  if (::clock_gettime(worker_clock_, &time) != 0) return false;
  const double used = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  constexpr double kIdle = 1e-4;
  return used - std::exchange(last_processor_seconds_, used) > kIdle;
}

void Heartbeat::publish() {
  const std::uint64_t progress = progress_.load(std::memory_order_relaxed);
  const bool works = uses_processor(), moved = progress != std::exchange(last_progress_, progress);
  const bool waits = waiting_;
  if (waits || works || moved) ++beats_;
  std::string step;
  {
    const std::lock_guard lock(mutex_);
    step = step_;
  }
  store_->set(key("beat", rank_),
              bytes_of(fmt::format("{} {} {} {} {}", ++sequence_, beats_, operation_.load(), waits ? 1 : 0, step)));
}

void Heartbeat::find_failure() {
  if (!store_->check({kFailure})) return;
  Failure failure = failure_from(text_of(store_->get(kFailure)));
  const std::string& own = peer(rank_).machine;
  // On machines other than the reporter's, the first rank to ask reports it.
  const bool reports = failure.machine == own ? failure.reporter == rank_ : store_->add("said/" + own, 1) == 1;
  set_failure(std::move(failure), reports);
}

void Heartbeat::publish_failure() {
  std::optional<Failure> own;
  {
    const std::lock_guard lock(mutex_);
    own = std::exchange(to_publish_, std::nullopt);
  }
  if (!own || failed_) return;
  (void)store_->compareSet(kFailure, {}, bytes_of(to_text(*own)));
  find_failure();  // this failure, or an earlier one
}

/// Parses the text that publish() wrote.
Heartbeat::Said Heartbeat::said_in(const std::string& beat) {
  std::istringstream text(beat);
  Said said;
  text >> said.sequence >> said.beats >> said.operation >> said.waits >> std::ws;
  std::getline(text, said.step);
  return said;
}

std::map<int, Heartbeat::Said> Heartbeat::said_by_all() {
  std::vector<std::string> keys;
  std::vector<int> ranks;
  for (const Peer& other : peers_) {
    if (other.rank == rank_ || !store_->check({key("beat", other.rank)})) continue;
    keys.push_back(key("beat", other.rank));
    ranks.push_back(other.rank);
  }
  std::map<int, Said> said;
  if (keys.empty()) return said;
  const auto texts = store_->multiGet(keys);
  for (std::size_t i = 0; i < texts.size(); ++i) said[ranks[i]] = said_in(text_of(texts[i]));
  return said;
}

std::string Heartbeat::step_of(int rank) {
  const auto said = said_by_all();
  const auto found = said.find(rank);
  return found == said.end() || found->second.step.empty() ? "start" : found->second.step;
}

bool Heartbeat::has_left(int rank) { return store_->check({key("left", rank)}); }

void Heartbeat::find_ended() {
  for (const int rank : local_.ended()) {
    if (failed_ || has_left(rank)) continue;
    find_failure();  // the rank may have given a reason
    if (!failed_) fail_from_thread(fmt::format("{} ended in step {}", peer(rank).name(), step_of(rank)));
  }
}

void Heartbeat::watch_next() {
  if (failed_) return;
  const int next = (rank_ + 1) % static_cast<int>(peers_.size());
  Said said;
  if (store_->check({key("beat", next)})) said = said_in(text_of(store_->get(key("beat", next))));
  if (said.beats != next_said_.beats || has_left(next)) next_changed_ = Clock::now();
  next_said_ = said;
  if (Clock::now() - next_changed_ <= timeout_ || was_paused()) return;
  fail_from_thread(fmt::format("{} gave no sign of life for {:g} s in step {}", peer(next).name(), seconds(timeout_),
                               said.step.empty() ? "start" : said.step));
}

/// Detects that all ranks wait for each other.
void Heartbeat::find_deadlock() {
  const Clock::duration waited = Clock::now().time_since_epoch() - Clock::duration(waiting_since_.load());
  if (failed_ || !waiting_ || waited <= timeout_) return waiting_said_.clear();
  int last = rank_;
  std::uint64_t least = operation_;
  const std::map<int, Said> now = said_by_all();
  for (const auto& [rank, said] : now) {
    if (!said.waits && !has_left(rank)) return waiting_said_.clear();
    if (said.operation < least) last = rank, least = said.operation;
  }
  if (waiting_said_.empty()) {
    waiting_said_ = now;
    all_wait_since_ = Clock::now();
    return;
  }
  // If a silent rank last said that it waits, its silence is a different failure.
  if (Clock::now() - all_wait_since_ < std::max<Clock::duration>(6 * interval_, 1s)) return;
  for (const auto& [rank, said] : now)
    if (said.sequence == waiting_said_[rank].sequence || said.operation != waiting_said_[rank].operation)
      return waiting_said_.clear();
  if (last != rank_)
    fail_from_thread(fmt::format("all ranks have waited for {:g} s, {} in an earlier operation than rank {}",
                                 seconds(timeout_), peer(last).name(), rank_));
  else
    fail_from_thread(fmt::format(
        "all ranks have waited for each other for {:g} s; check the network between their hosts", seconds(timeout_)));
}

/// Names the silent rank after a connection was lost.
void Heartbeat::compare_all() {
  {
    const std::lock_guard lock(mutex_);
    if (!suspects_ || failed_) return;
  }
  if (suspects_said_.empty()) {
    suspects_said_ = said_by_all();
    suspected_at_ = Clock::now();
    return;
  }
  // Every rank sends a beat in every interval, whatever it does.
  if (Clock::now() - suspected_at_ < std::max<Clock::duration>(6 * interval_, 1s)) return;
  for (const auto& [rank, said] : said_by_all())
    if (said.sequence == suspects_said_[rank].sequence && !failed_)
      fail_from_thread(fmt::format("{} ended or cannot be reached in step {}", peer(rank).name(), said.step));
}

void Heartbeat::fail_from_thread(const std::string& text) {
  (void)was_paused();
  if (was_stopped_) return fail_alone(text);
  {
    const std::lock_guard lock(mutex_);
    to_publish_ = Failure{text, peer(rank_).machine, rank_, FailureKind::kError};
  }
  publish_failure();
}

void Heartbeat::fail_alone(const std::string& text) {
  // Ranks cannot communicate, so a fixed rule decides who reports: the machine's first rank that does not serve the
  // store.
  const std::vector<int> ranks = ranks_of_machine(peers_, peer(rank_));
  const int speaker = ranks.front() == 0 && ranks.size() > 1 ? ranks[1] : ranks.front();
  set_failure({text, "", -1, FailureKind::kError}, speaker == rank_);
}

void Heartbeat::set_failure(Failure failure, bool reports) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  // The others ended because this rank was stopped, and have reported it.
  if (was_stopped_ && failure.reporter != rank_) reports = false;
  failure_ = std::move(failure);
  reports_ = reports;
  failed_.store(true, std::memory_order_release);
  changed_.notify_all();
}

}  // namespace layerpress::dist
