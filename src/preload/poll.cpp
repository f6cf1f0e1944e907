// SPDX-License-Identifier: Apache-2.0
//
// Hooks: poll and select. Rings are looked at first; before the call sleeps in the kernel, all
// sockets that it waits for are watched, so that the kernel's answer is the whole truth. They are
// points of cancellation, also where there is nothing to wait for.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "preload/address.hpp"
#include "preload/epoll/epoll.hpp"
#include "preload/readiness.hpp"
#include "preload/real.hpp"
#include "preload/settle.hpp"
#include "preload/wait_by_number.hpp"
#include "preload/waited.hpp"

namespace farcall::preload {
namespace {

// --- poll

// More than the kernel takes: it refuses them unread.
bool too_many(nfds_t count) noexcept {
  if (count <= FD_SETSIZE) return false;
  rlimit limit{};
  return kernel(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &limit) < 0 || count > limit.rlim_cur;
}

// Adds what is in memory to the kernel's answer.
int add_rings(pollfd* fds, nfds_t count, int ready) noexcept {
  for (nfds_t i = 0; i < count; ++i) {
    if ((fds[i].events & kPollInput) == 0 || !readable_now(fds[i].fd)) continue;
    if (fds[i].revents == 0) ++ready;
    const int news = has_error_kept(fds[i].fd) ? POLLERR : fds[i].events & kPollInput;
    fds[i].revents = static_cast<short>(fds[i].revents | news);
  }
  return ready;
}

// What the kernel is asked for a program. Beside what the program wants to know it asks whether
// connections have ended: with that, the kernel always tells that there is something to be read,
// so it wakes nobody who would not be woken without it.
class Question {
 public:
  Question(pollfd* fds, nfds_t count) noexcept : fds_(fds), count_(count) {
    if (count > few_.size()) return;
    std::copy_n(fds, count, few_.begin());
    asked_ = few_.data();
    for (nfds_t i = 0; i < count; ++i)
      if ((fds[i].events & kPollInput) != 0 && find_side(fds[i].fd) != nullptr)
        asked_[i].events = static_cast<short>(asked_[i].events | POLLRDHUP);
  }
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;

  [[nodiscard]] pollfd* asked() noexcept { return asked_; }

  // To what the kernel tells of connections that have ended.
  void add_resets() noexcept {
    for (pollfd* one = asked_; one != asked_ + count_; ++one)
      if (may_have_ended(*one) && knows_of_reset(one->fd))
        one->revents = static_cast<short>(one->revents | POLLERR | POLLHUP);
  }
  void give_back() noexcept {
    if (asked_ == fds_) return;
    for (nfds_t i = 0; i < count_; ++i)
      fds_[i].revents =
          static_cast<short>(asked_[i].revents & (fds_[i].events | POLLERR | POLLHUP | POLLNVAL));
  }

 private:
  static bool may_have_ended(const pollfd& one) noexcept {
    if ((one.revents & (POLLHUP | POLLRDHUP)) != 0) return true;
    return (one.revents & POLLIN) != 0 && (one.events & POLLRDHUP) == 0 &&
           read_position(one.fd) == kNothingToRead;
  }

  pollfd* fds_;
  nfds_t count_;
  std::array<pollfd, 128> few_;
  pollfd* asked_ = fds_;
};

template <class LibcCall>
int poll_for(pollfd* fds, nfds_t count, bool at_once, const sigset_t* mask, LibcCall libc_call) {
  if (is_no_address(fds) || too_many(count)) return libc_call(fds);
  const auto ours = static_cast<std::size_t>(
      std::count_if(fds, fds + count, [](const pollfd& one) { return concerns_us(one.fd); }));
  if (ours == 0) [[likely]] {
    settle_before_sleep();
    return libc_call(fds);
  }
  if (count == 1 && fds[0].events == POLLIN && mask == nullptr && readable_now(fds[0].fd) &&
      !has_ended(fds[0].fd)) {
    fds[0].revents = POLLIN;
    return 1;
  }
  Waited waited(ours);
  for (nfds_t i = 0; i < count; ++i)
    if (fds[i].fd >= 0 && (fds[i].events & kPollInput) != 0) waited.add(fds[i].fd);
  if (at_once) settle_at_times();
  Question question(fds, count);
  const auto look = [&]() -> int {
    (void)waited.take_doorbells();
    timespec none{};
    // Where something is there a signal that the mask lets through stays pending.
    const sigset_t* const shown = mask != nullptr && waited.note_readable() != 0 ? nullptr : mask;
    const long ready = kernel(SYS_ppoll, question.asked(), count, &none, shown, kKernelMaskSize);
    if (ready < 0) return static_cast<int>(with_errno(ready));
    return add_rings(question.asked(), count, static_cast<int>(ready));
  };
  const int ready =
      at_once ? look() : wait_for(waited, mask, look, [&] { return libc_call(question.asked()); });
  const int error = errno;
  if (ready > 0) question.add_resets();
  question.give_back();
  errno = error;
  return ready;
}

// --- select

// The sets of select() are words of bits, as many as the largest descriptor needs. Programs have
// them as large as that, not as large as fd_set.
using Word = unsigned long;
constexpr int kBits = 8 * sizeof(Word);

constexpr std::size_t words_for(int count) noexcept {
  return (static_cast<std::size_t>(count) + kBits - 1) / kBits;
}
constexpr std::size_t word_of(int fd) noexcept { return static_cast<std::size_t>(fd / kBits); }
constexpr Word bit_of(int fd) noexcept { return Word{1} << (fd % kBits); }

Word* words_of(fd_set* set) noexcept { return reinterpret_cast<Word*>(set); }

template <class Visit>
void for_each_in(const Word* words, int count, Visit visit) {
  for (int first = 0; first < count; first += kBits)
    for (Word left = words[word_of(first)]; left != 0; left &= left - 1)
      if (const int fd = first + __builtin_ctzl(left); fd < count) visit(fd);
}

struct Select {
  int count;
  fd_set* read;
  fd_set* write;
  fd_set* except;
  const sigset_t* mask;

  // What the kernel says now of these sets, which it changes.
  long ask_kernel(Word* in, Word* out, Word* other) const noexcept {
    timespec none{};
    struct {
      const sigset_t* mask;
      std::size_t size;
    } masked{mask, kKernelMaskSize};
    return kernel(SYS_pselect6, count, in, out, other, &none, &masked);
  }
};

// What the program asks for: the usual sets, in which the kernel's call puts its answer.
class GivenSets {
 public:
  explicit GivenSets(const Select& call) noexcept
      : sets_{call.read, call.write, call.except}, bytes_(words_for(call.count) * sizeof(Word)) {}
  void are_used() noexcept {
    for (std::size_t i = 0; i < sets_.size(); ++i)
      if (sets_[i] != nullptr) std::memcpy(copies_[i].data(), sets_[i], bytes_);
    used_ = true;
  }
  void restore() const noexcept {
    for (std::size_t i = 0; used_ && i < sets_.size(); ++i)
      if (sets_[i] != nullptr) std::memcpy(sets_[i], copies_[i].data(), bytes_);
  }

 private:
  std::array<fd_set*, 3> sets_;
  std::size_t bytes_;
  std::array<std::array<Word, words_for(FD_SETSIZE)>, 3> copies_;  // once they are used
  bool used_ = false;
};

// The usual sets. 0: nothing, and they are as they were unless this is `at_once`.
int examine(const Select& call, int highest, bool at_once) noexcept {
  std::array<Word, words_for(FD_SETSIZE)> copies[3];
  fd_set* const given[3] = {call.read, call.write, call.except};
  const std::size_t bytes = words_for(call.count) * sizeof(Word);
  Word* copied[3] = {};
  for (int i = 0; i < 3; ++i) {
    if (given[i] == nullptr) continue;
    copied[i] = copies[i].data();
    std::memcpy(copied[i], given[i], bytes);
  }
  long ready = call.ask_kernel(copied[0], copied[1], copied[2]);
  if (ready < 0) return static_cast<int>(with_errno(ready));
  for_each_in(words_of(call.read), highest + 1, [&](int fd) {
    Word& word = copied[0][word_of(fd)];
    if ((word & bit_of(fd)) != 0 || !readable_now(fd)) return;
    word |= bit_of(fd);
    ++ready;
  });
  if (ready == 0 && !at_once) return 0;
  for (int i = 0; i < 3; ++i)
    if (given[i] != nullptr) std::memcpy(given[i], copied[i], bytes);
  return static_cast<int>(ready);
}

// Sets larger than fd_set. How much of them is there the kernel alone knows, which looks only at
// as many descriptors as the process may have: so they are changed in their place.
template <class LibcCall>
int select_large(const Select& call, Waited& waited, bool at_once, LibcCall libc_call) {
  const auto tell = [&]() -> int {
    Word* const read = words_of(call.read);
    Select now = call;
    now.mask = nullptr;  // something is there
    long ready = now.ask_kernel(read, words_of(call.write), words_of(call.except));
    if (ready < 0) return static_cast<int>(with_errno(ready));
    waited.each_readable([&](int fd) {
      if ((read[word_of(fd)] & bit_of(fd)) == 0) ++ready;
      read[word_of(fd)] |= bit_of(fd);
    });
    return static_cast<int>(ready);
  };
  if (waited.note_readable() != 0) return tell();
  if (at_once) return libc_call();
  while (waited.enter()) {
    waited.leave();
    // Another thread may have taken it.
    if (waited.note_readable() != 0) return tell();
  }
  settle_before_sleep();
  const int ready = libc_call();
  const int error = errno;
  waited.leave();
  errno = error;
  return ready;
}

template <class LibcCall>
int select_for(const Select& call, bool at_once, LibcCall libc_call) {
  if (call.count <= 0 || is_no_address(call.read) || is_bad_optional(call.write) ||
      is_bad_optional(call.except))
    return libc_call();
  // One of ours is open, so the kernel reads as far as there, too.
  int highest = std::min(call.count - 1, std::max(highest_known(), udp_highest()));
  while (highest >= 0 && !concerns_us(highest)) --highest;
  std::size_t ours = 0;
  for_each_in(words_of(call.read), highest + 1, [&](int fd) { ours += concerns_us(fd) ? 1U : 0U; });
  if (ours == 0) [[likely]] {
    settle_before_sleep();
    return libc_call();
  }
  Waited waited(ours);
  for_each_in(words_of(call.read), highest + 1, [&](int fd) {
    if (concerns_us(fd)) waited.add(fd);
  });
  if (at_once) settle_at_times();
  if (call.count > FD_SETSIZE) return select_large(call, waited, at_once, libc_call);
  GivenSets given(call);
  const auto look = [&] {
    (void)waited.take_doorbells();
    given.restore();
    Select now = call;
    if (now.mask != nullptr && waited.note_readable() != 0) now.mask = nullptr;
    return examine(now, highest, at_once);
  };
  if (at_once) return look();
  return wait_for(waited, call.mask, look, [&] {
    given.restore();
    given.are_used();
    return libc_call();
  });
}

}  // namespace

// --- by number

long poll_by_number([[maybe_unused]] long number, const long* words) {
  auto* const fds = reinterpret_cast<pollfd*>(words[0]);
  const auto count = static_cast<nfds_t>(words[1]);
  const auto libc_call = [&](pollfd* asked) {
    return static_cast<int>(
        with_errno(kernel(number, asked, words[1], words[2], words[3], words[4], words[5])));
  };
#ifdef SYS_poll
  if (number == SYS_poll) {
    const int timeout = static_cast<int>(words[2]);
    TimeLeft left(timeout * TimeLeft::kMillisecond);
    return poll_for(fds, count, timeout == 0, nullptr, [&](pollfd* asked) {
      return static_cast<int>(
          with_errno(kernel(number, asked, words[1], long{left.milliseconds()})));
    });
  }
#endif
  const auto* const mask = reinterpret_cast<const sigset_t*>(words[3]);
  // Of another size: the kernel refuses it.
  const auto* const timeout = reinterpret_cast<const timespec*>(words[2]);
  if (mask != nullptr && words[4] != static_cast<long>(kKernelMaskSize)) return libc_call(fds);
  if (is_bad_time(timeout)) return libc_call(fds);
  return poll_for(fds, count, is_zero(timeout), mask, libc_call);
}

long select_by_number([[maybe_unused]] long number, const long* words) {
  Select call{.count = static_cast<int>(words[0]),
              .read = reinterpret_cast<fd_set*>(words[1]),
              .write = reinterpret_cast<fd_set*>(words[2]),
              .except = reinterpret_cast<fd_set*>(words[3]),
              .mask = nullptr};
  const auto libc_call = [&] {
    return static_cast<int>(
        with_errno(kernel(number, words[0], words[1], words[2], words[3], words[4], words[5])));
  };
  // The two times are laid out alike, and zero in both is zero.
  const auto* const timeout = reinterpret_cast<const timespec*>(words[4]);
  const bool at_once = is_zero(timeout);
#ifdef SYS_select
  if (number == SYS_select) return select_for(call, at_once, libc_call);
#endif
  if (is_bad_time(timeout)) return libc_call();
  struct Masked {
    const sigset_t* mask;
    std::size_t size;
  };
  const auto* const masked = reinterpret_cast<const Masked*>(words[5]);
  if (is_bad_optional(masked)) return libc_call();
  if (masked != nullptr && masked->mask != nullptr) {
    if (masked->size != kKernelMaskSize) return libc_call();
    call.mask = masked->mask;
  }
  return select_for(call, at_once, libc_call);
}

}  // namespace farcall::preload

using namespace farcall::preload;

extern "C" {

int poll(pollfd* fds, nfds_t count, int timeout) {
  ::pthread_testcancel();
  using Poll = int(pollfd*, nfds_t, int);
  TimeLeft left(timeout * TimeLeft::kMillisecond);
  return poll_for(fds, count, timeout == 0, nullptr, [&](pollfd* asked) {
    return real::next<"poll", Poll>()(asked, count, left.milliseconds());
  });
}
int __poll(pollfd* fds, nfds_t count, int timeout) { return poll(fds, count, timeout); }

int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  ::pthread_testcancel();
  using Ppoll = int(pollfd*, nfds_t, const timespec*, const sigset_t*);
  if (is_bad_time(timeout)) [[unlikely]]
    return real::next<"ppoll", Ppoll>()(fds, count, timeout, mask);
  TimeLeft left(timeout);
  return poll_for(fds, count, is_zero(timeout), mask, [&](pollfd* asked) {
    timespec room;
    return real::next<"ppoll", Ppoll>()(asked, count, left.time(room), mask);
  });
}

int select(int count, fd_set* read, fd_set* write, fd_set* except, timeval* timeout) {
  ::pthread_testcancel();
  using Function = int(int, fd_set*, fd_set*, fd_set*, timeval*);
  const bool at_once = !is_no_address(timeout) && timeout->tv_sec == 0 && timeout->tv_usec == 0;
  return select_for({count, read, write, except, nullptr}, at_once, [&] {
    return real::next<"select", Function>()(count, read, write, except, timeout);
  });
}
int __select(int count, fd_set* read, fd_set* write, fd_set* except, timeval* timeout) {
  return select(count, read, write, except, timeout);
}

int pselect(int count, fd_set* read, fd_set* write, fd_set* except, const timespec* timeout,
            const sigset_t* mask) {
  ::pthread_testcancel();
  using Function = int(int, fd_set*, fd_set*, fd_set*, const timespec*, const sigset_t*);
  if (is_bad_time(timeout)) [[unlikely]]
    return real::next<"pselect", Function>()(count, read, write, except, timeout, mask);
  TimeLeft left(timeout);
  return select_for({count, read, write, except, mask}, is_zero(timeout), [&] {
    timespec room;
    return real::next<"pselect", Function>()(count, read, write, except, left.time(room), mask);
  });
}

[[noreturn]] void __chk_fail();

int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t room) {
  if (room / sizeof *fds < count) __chk_fail();
  return poll(fds, count, timeout);
}
int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask,
                size_t room) {
  if (room / sizeof *fds < count) __chk_fail();
  return ppoll(fds, count, timeout, mask);
}

}  // extern "C"
