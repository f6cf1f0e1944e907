// SPDX-License-Identifier: Apache-2.0
#include "capture/capture.hpp"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "capture/command.hpp"
#include "capture/filter.hpp"
#include "capture/packets.hpp"
#include "capture/watched_process.hpp"
#include "farcall/error.hpp"
#include "observe/lease.hpp"
#include "watch/output_file.hpp"

namespace farcall::capture {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr nanoseconds kLookEvery = milliseconds(100);
// What has just been started has told nothing yet, and soon tells much.
constexpr nanoseconds kLookAtFirst = milliseconds(10);
constexpr nanoseconds kAtFirst = std::chrono::seconds(5);
constexpr nanoseconds kFlushEvery = milliseconds(200);
constexpr nanoseconds kShortPause = milliseconds(1);
constexpr nanoseconds kLongPause = milliseconds(5);
// A message has its time before it is in the ring; so long it may take until it is seen there.
constexpr nanoseconds kMostDelay = milliseconds(20);
constexpr std::size_t kMostHeld = std::size_t{256} << 20;  // bytes that wait to be written

std::uint64_t ticks_since_boot() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  const auto per_second = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  return static_cast<std::uint64_t>(now.tv_sec) * per_second +
         static_cast<std::uint64_t>(now.tv_nsec) * per_second / 1'000'000'000;
}

UniqueFd open_file(const std::string& name) {
  if (name == "-") {
    if (::isatty(STDOUT_FILENO) == 1)
      throw std::invalid_argument("a capture is not text: standard output is a terminal");
    UniqueFd own(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
    if (!own) throw_errno("duplicate standard output");
    return own;
  }
  return watch::open_private(name);
}

// When it was started. One that cannot be watched is told of at the beginning.
std::uint64_t check(pid_t pid) {
  watch::Process process;
  switch (watch::look(pid, process)) {
    case watch::Seen::yes:
    case watch::Seen::no_tables: break;
    case watch::Seen::forbidden:
      throw SystemError(EPERM, "look at process " + std::to_string(pid) +
                                   ", which is another user's or may not be traced");
    case watch::Seen::silent:
      throw SystemError(ETIMEDOUT, "read the memory of process " + std::to_string(pid));
    case watch::Seen::gone: throw SystemError(ESRCH, "look at process " + std::to_string(pid));
  }
  return process.started;
}

// Another process may have the number later.
std::map<pid_t, std::uint64_t> checked(const std::vector<pid_t>& pids) {
  std::map<pid_t, std::uint64_t> started;
  for (const pid_t pid : pids) started[pid] = check(pid);
  return started;
}

class Capture {
 public:
  Capture(const Options& options, const std::atomic<bool>& stop)
      : options_(options),
        named_(checked(options.pids)),
        filter_(options.filter),
        since_(observe::monotonic_ns()),
        began_(ticks_since_boot()),
        stop_(stop),
        file_(open_file(options.file), options.file == "-" ? "standard output" : options.file,
              stop),
        packets_(file_, since_, !options.pids.empty(), options.packets) {}

  Summary run() {
    look();
    file_.flush();
    if (!options_.command.empty()) command_.emplace(options_.command, options_.before_command);
    while (!stop_.load(std::memory_order_relaxed) && !is_enough() && !all_ended_ &&
           !(command_ && command_->has_ended())) {
      packets_.note_clocks();
      const bool some = read();
      write(observe::monotonic_ns() - kMostDelay.count());
      const std::int64_t now = observe::monotonic_ns();
      const bool first = command_ && now - since_ < kAtFirst.count();
      if (now - looked_at_ >= (first ? kLookAtFirst : kLookEvery).count()) look();
      if (now - flushed_at_ >= kFlushEvery.count()) flush(now);
      std::this_thread::sleep_for(some ? kShortPause : kLongPause);
    }
    return finish();
  }

 private:
  struct ByAddress {
    using is_transparent = void;
    static const Batch* of(const std::unique_ptr<Batch>& batch) { return batch.get(); }
    static const Batch* of(const Batch* batch) { return batch; }
    template <class One, class Other>
    bool operator()(const One& one, const Other& other) const {
      return std::less<>{}(of(one), of(other));
    }
  };
  struct Waiting {
    Batch* batch;
    const Message* message;
    const WatchedProcess* process;
  };
  static bool is_before(const Waiting& one, const Waiting& other) {
    return one.message->time < other.message->time;
  }

  std::vector<watch::Process> find() {
    using Whose = watch::Everybody::Whose;
    if (options_.pids.empty()) return everybody_.look(options_.all_users ? Whose::all : Whose::own);
    std::vector<watch::Process> found;
    all_ended_ = true;
    for (const auto& [pid, started] : named_) {
      watch::Process process;
      const watch::Seen seen = watch::look(pid, process);
      const bool ended = seen == watch::Seen::gone || process.started != started;
      if (seen == watch::Seen::yes && !ended) found.push_back(std::move(process));
      all_ended_ = all_ended_ && ended;
    }
    return found;
  }

  void look() {
    const std::int64_t now = observe::monotonic_ns();
    const nanoseconds pause(now - looked_at_);
    if (looked_at_ != 0 && pause > WatchedProcess::kLease) stopped_itself_ = true;
    looked_at_ = now;
    forget_ended();
    for (const watch::Process& process : find()) {
      if (process.pid == ::getpid() || !is_wanted(process)) continue;
      std::unique_ptr<WatchedProcess>& known = watched_[process.pid];
      // What has only changed its user has the rings that have been read.
      const bool goes_on = known != nullptr && known->was(process);
      if (known != nullptr && !known->is(process)) retire(std::move(known));
      if (known == nullptr)
        known = std::make_unique<WatchedProcess>(process, !goes_on && is_new(process),
                                                 command_.has_value());
      known->renew(process, filter_);
    }
  }

  // With a command only what it has started.
  [[nodiscard]] bool is_wanted(const watch::Process& process) const {
    if (options_.command.empty() || !options_.pids.empty()) return true;
    const auto known = watched_.find(process.pid);
    if (known != watched_.end() && known->second->is(process)) return true;
    return command_ && process.started + 1 >= began_ && command_->has_started(process);
  }

  // It was started after this was, or executes another program since.
  [[nodiscard]] bool is_new(const watch::Process& process) const {
    return process.started >= began_ || old_ended_.contains(process.pid);
  }

  // Its messages may still wait to be written.
  void retire(std::unique_ptr<WatchedProcess> process) {
    if (process->started() < began_) old_ended_.insert(process->pid());
    ended_.push_back(std::move(process));
  }

  // A capture may go on for longer than many a process.
  void forget_ended() {
    if (ended_.empty()) return;
    std::set<const WatchedProcess*> waiting;
    for (const Waiting& one : waiting_) waiting.insert(one.process);
    std::erase_if(ended_, [&](const auto& process) {
      if (waiting.contains(process.get())) return false;
      add_ended(*process);
      return true;
    });
  }

  void add_ended(const WatchedProcess& process) {
    add_loss(process);
    if (packets_.has_told(process.pid())) ++ended_count_;
  }

  void add_loss(const WatchedProcess& process) {
    lost_ += process.lost();
    packets_.add_loss(process.pid(), process.program(), process.lost());
  }

  bool read() {
    const auto old = static_cast<std::ptrdiff_t>(waiting_.size());
    auto at = watched_.upper_bound(read_last_);
    for (std::size_t left = watched_.size(); left != 0; --left) {
      // The rest is read in the next round, or lost to who fills the memory.
      if (held_ > kMostHeld) break;
      if (at == watched_.end()) at = watched_.begin();
      read_last_ = at->first;
      std::vector<std::unique_ptr<Batch>> batches;
      const bool lives = at->second->read(batches);
      for (std::unique_ptr<Batch>& batch : batches) {
        batch->left = batch->messages.size();
        held_ += size_of(*batch);
        // What a process says of itself need not be true, and is not waited for.
        const std::int64_t now = observe::monotonic_ns();
        for (Message& message : batch->messages) message.time = std::min(message.time, now);
        for (const Message& message : batch->messages)
          waiting_.push_back(
              {.batch = batch.get(), .message = &message, .process = at->second.get()});
        batches_.insert(std::move(batch));
      }
      if (!lives) retire(std::move(at->second));
      at = lives ? std::next(at) : watched_.erase(at);
    }
    // Almost in order already.
    std::stable_sort(waiting_.begin() + old, waiting_.end(), is_before);
    std::inplace_merge(waiting_.begin(), waiting_.begin() + old, waiting_.end(), is_before);
    return waiting_.begin() + old != waiting_.end();
  }

  // Writes what passed before that moment, in order.
  void write(std::int64_t before) {
    auto at = waiting_.begin();
    for (; at != waiting_.end() && at->message->time < before && !is_enough(); ++at) {
      const Message& message = *at->message;
      const Subject subject{.kind = message.kind,
                            .local = message.local,
                            .remote = message.remote,
                            .pid = message.pid,
                            .peer = message.peer};
      if (message.time >= since_ && filter_.matches(subject))
        packets_.add(message, at->process->program());
      if (--at->batch->left != 0) continue;
      held_ -= size_of(*at->batch);
      batches_.erase(batches_.find(at->batch));
    }
    waiting_.erase(waiting_.begin(), at);
  }

  void flush(std::int64_t now) {
    file_.flush();
    flushed_at_ = now;
  }

  Summary finish() {
    const std::int64_t until = observe::monotonic_ns();
    // Once more, for what was on its way.
    for (int i = 0; i < 3; ++i) {
      read();
      std::this_thread::sleep_for(kLongPause);
    }
    write(until);
    for (const auto& process : ended_) add_ended(*process);
    for (const auto& [pid, process] : watched_) add_loss(*process);
    packets_.finish();
    file_.flush();
    // What has stopped this may have ended the command, too.
    const bool left = stop_.load(std::memory_order_relaxed) && command_ && !command_->has_ended();
    return {.packets = packets_.packets(),
            .bytes = packets_.bytes(),
            .processes = packets_.processes(),
            .lost = lost_,
            .missing = packets_.missing(),
            .ended = ended_count_,
            .stopped_itself = stopped_itself_,
            .command_status = command_ ? command_->status() : 0,
            .left_command = left};
  }

  [[nodiscard]] bool is_enough() const noexcept {
    return options_.packets != 0 && packets_.packets() >= options_.packets;
  }

  const Options& options_;
  std::map<pid_t, std::uint64_t> named_;  // processes, and when they were started
  Filter filter_;
  std::int64_t since_;
  std::uint64_t began_;  // as processes' `started`
  const std::atomic<bool>& stop_;
  PcapngFile file_;
  Packets packets_;
  watch::Everybody everybody_{1};
  std::map<pid_t, std::unique_ptr<WatchedProcess>> watched_;
  std::vector<std::unique_ptr<WatchedProcess>> ended_;  // of which messages may wait
  std::set<pid_t> old_ended_;                           // older than this capture
  std::vector<Waiting> waiting_;                        // in order
  std::set<std::unique_ptr<Batch>, ByAddress> batches_;
  static std::size_t size_of(const Batch& batch) {
    return batch.bytes.size() + batch.messages.size() * sizeof(Message);
  }

  std::size_t held_ = 0;  // bytes of batches
  std::uint64_t lost_ = 0;
  std::size_t ended_count_ = 0;
  pid_t read_last_ = 0;  // so that each has its turn first
  std::int64_t looked_at_ = 0;
  std::int64_t flushed_at_ = 0;
  std::optional<Command> command_;
  bool all_ended_ = false;
  bool stopped_itself_ = false;
};

}  // namespace

Summary capture(const Options& options, const std::atomic<bool>& stop) {
  return Capture(options, stop).run();
}

}  // namespace farcall::capture
