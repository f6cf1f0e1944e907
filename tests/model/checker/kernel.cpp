// SPDX-License-Identifier: Apache-2.0
#include "model/checker/kernel.hpp"

#include <algorithm>
#include <cerrno>

#include "model/checker/explorer.hpp"
#include "model/checker/system_calls.hpp"

namespace farcall::model {
namespace {

Explorer& explorer() { return Explorer::here(); }

}  // namespace

void Kernel::reset() {
  sleepers_.clear();
  ends_.clear();
  mutexes_.clear();
}

std::uint64_t Kernel::hash() const noexcept {
  std::uint64_t all = 0;
  for (const Sleeper& sleeper : sleepers_) all += mix(sleeper.thread, sleeper.woken);
  for (const End& end : ends_) {
    all = mix(all, end.version << 1 | end.peer_gone);
    for (const std::byte byte : end.bytes) all = mix(all, std::to_integer<std::uint64_t>(byte));
  }
  for (const Mutex& mutex : mutexes_) all += mix(mutex.version, mutex.held);
  return all;
}

int Kernel::connect(std::size_t room) {
  ends_.emplace_back().room = room;
  ends_.emplace_back().room = room;
  return kFirstDescriptor + static_cast<int>(ends_.size()) - 2;
}

// Whoever comes to know of this happens after it.
void Kernel::leave_behind(View& view, std::uint64_t& version) {
  Memory& memory = explorer().memory();
  const unsigned thread = explorer().current();
  const View now = memory.leave_behind(thread);
  memory.join(view, now);
  version = mix(version, std::uint64_t{thread} << 32 | now.clock[thread]);
}

long Kernel::futex_wait(const void* word, std::uint32_t expected, bool has_deadline) {
  const unsigned thread = explorer().current();
  explorer().learn_sleep(word);
  explorer().step("futex wait");
  const std::uint64_t value = explorer().memory().load(thread, word, sizeof(std::uint32_t),
                                                       std::memory_order_relaxed, true);
  explorer().tell(value);
  if (value != expected) return -EAGAIN;
  sleepers_.push_back({.word = word, .thread = thread, .woken = false});
  const auto mine = [&] { return std::ranges::find(sleepers_, thread, &Sleeper::thread); };
  const std::function<bool()> woken = [&] { return mine()->woken; };
  const bool timed_out = explorer().block("sleeps on a futex", has_deadline, woken);
  sleepers_.erase(mine());
  return timed_out ? -ETIMEDOUT : 0;
}

long Kernel::futex_wake(const void* word, unsigned most) {
  explorer().step("futex wake");
  const unsigned thread = explorer().current();
  explorer().memory().note(thread, 6);
  long count = 0;
  for (; count < static_cast<long>(most); ++count) {
    std::vector<Sleeper*> asleep;
    for (Sleeper& sleeper : sleepers_)
      if (sleeper.word == word && !sleeper.woken) asleep.push_back(&sleeper);
    if (asleep.empty()) break;
    Sleeper& one = *asleep[choose(static_cast<unsigned>(asleep.size()))];
    one.woken = true;
    explorer().memory().note(one.thread, mix(thread, explorer().memory().events(thread)));
  }
  explorer().memory().note(thread, static_cast<std::uint64_t>(count));
  explorer().tell(static_cast<std::uint64_t>(count));
  return count;
}

long Kernel::send(int fd, std::span<const std::byte> bytes) {
  explorer().step("send");
  const unsigned thread = explorer().current();
  End& to = other_end(fd);
  const bool closed = end(fd).peer_gone;
  bytes = bytes.first(std::min(bytes.size(), to.room - to.bytes.size()));
  explorer().memory().note(thread, closed ? 7 : 8 + bytes.size());
  if (closed) return -EPIPE;
  if (bytes.empty()) return -EAGAIN;
  // What is sent out of shared memory is read by the kernel in this thread's name.
  std::vector<std::byte> copied(bytes.size());
  copy(copied.data(), bytes.data(), bytes.size());
  to.bytes.insert(to.bytes.end(), copied.begin(), copied.end());
  leave_behind(to.view, to.version);
  return static_cast<long>(bytes.size());
}

long Kernel::receive(int fd, std::span<std::byte> into, bool peek) {
  explorer().step("receive");
  const unsigned thread = explorer().current();
  End& from = end(fd);
  const std::size_t count = std::min(from.bytes.size(), into.size());
  explorer().memory().note(thread, mix(from.version, count << 1 | from.peer_gone));
  explorer().tell(count);
  if (count == 0) {
    if (from.peer_gone) explorer().memory().take_over(thread, from.view);
    return from.peer_gone ? 0 : -EAGAIN;
  }
  explorer().memory().forget_copies(into.data(), count);
  std::copy_n(from.bytes.begin(), count, into.begin());
  explorer().memory().take_over(thread, from.view);
  if (peek) return static_cast<long>(count);
  from.bytes.erase(from.bytes.begin(), from.bytes.begin() + static_cast<std::ptrdiff_t>(count));
  from.version = mix(from.version, thread + 1);
  return static_cast<long>(count);
}

int Kernel::queued(int fd) {
  explorer().step("how many bytes");
  const unsigned thread = explorer().current();
  const End& here = end(fd);
  explorer().memory().note(thread, mix(here.bytes.size(), here.version));
  explorer().tell(here.bytes.size());
  if (!here.bytes.empty()) explorer().memory().take_over(thread, here.view);
  return static_cast<int>(here.bytes.size());
}

void Kernel::shut_down(int fd) {
  explorer().step("shut down");
  End& to = other_end(fd);
  to.peer_gone = true;
  leave_behind(to.view, to.version);
}

int Kernel::poll(pollfd& entry, bool wait, bool has_deadline) {
  explorer().step(wait ? "poll, and wait" : "poll");
  const unsigned thread = explorer().current();
  const auto events = [&] {
    const End& here = end(entry.fd);
    int all = here.bytes.empty() ? 0 : POLLIN;
    if (here.peer_gone) all |= POLLIN | POLLHUP | POLLRDHUP;
    return all & (entry.events | POLLHUP);
  };
  if (wait && events() == 0) {
    const std::function<bool()> ready = [&] { return events() != 0; };
    explorer().block("sleeps in poll", has_deadline, ready);
  }
  const int found = events();
  entry.revents = static_cast<short>(found);
  explorer().tell(static_cast<std::uint64_t>(found));
  const End& here = end(entry.fd);
  explorer().memory().note(thread,
                           mix(found == 0 ? 0 : here.version, static_cast<unsigned>(found)));
  if (found != 0) explorer().memory().take_over(thread, here.view);
  return found == 0 ? 0 : 1;
}

// membarrier(2): wherever each thread is it passes a full fence, after what the caller has done so
// far and before what the caller does next.
void Kernel::fence_all() {
  explorer().step("fence of all threads");
  Memory& memory = explorer().memory();
  const unsigned thread = explorer().current();
  memory.note(thread, 10);  // else the thread would seem to be where it has been
  if (explorer().options().heavy_fences_are_none) return;
  const std::uint64_t name = mix(thread, memory.events(thread));
  memory.fence(thread, std::memory_order_seq_cst);
  const View before = memory.leave_behind(thread);
  for (unsigned i = 0; i < explorer().threads(); ++i) {
    if (i == thread) continue;
    memory.note(i, name);
    memory.take_over(i, before);
    memory.fence(i, std::memory_order_seq_cst);
    memory.note(thread, memory.events(i));
    memory.take_over(thread, memory.leave_behind(i));
  }
  memory.fence(thread, std::memory_order_seq_cst);
}

Kernel::Mutex& Kernel::mutex(const void* address) {
  const auto found = std::ranges::find(mutexes_, address, &Mutex::address);
  if (found != mutexes_.end()) return *found;
  return mutexes_.emplace_back(Mutex{.address = address, .view = {}});
}

void Kernel::lock(const void* address) {
  explorer().step("lock");
  Mutex& mine = mutex(address);
  if (mine.held) {
    const std::function<bool()> free = [&] { return !mine.held; };
    explorer().block("waits for a mutex", false, free);
  }
  mine.held = true;
  explorer().memory().note(explorer().current(), mine.version);
  explorer().memory().take_over(explorer().current(), mine.view);
}

void Kernel::unlock(const void* address) {
  Mutex& mine = mutex(address);
  mine.held = false;
  leave_behind(mine.view, mine.version);
}

}  // namespace farcall::model
