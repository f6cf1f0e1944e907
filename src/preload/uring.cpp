// SPDX-License-Identifier: Apache-2.0
#include "preload/uring.hpp"

#include <linux/io_uring.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "preload/epoll/epoll.hpp"
#include "preload/fork.hpp"
#include "preload/lock.hpp"
#include "preload/privilege.hpp"
#include "preload/real.hpp"
#include "preload/settle.hpp"
#include "preload/side.hpp"
#include "preload/upgrade.hpp"

namespace farcall::preload {
namespace {

constexpr std::uint32_t kNoArray = 1U << 16;  // IORING_SETUP_NO_SQARRAY, newer than some headers

// Those that change nothing about how requests come to the kernel and answers from it: by
// io_uring_enter(), of 64 and 16 bytes each, in memory that can be mapped.
constexpr std::uint32_t kOrdinary =
    IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP | IORING_SETUP_ATTACH_WQ | IORING_SETUP_SUBMIT_ALL |
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SINGLE_ISSUER |
    IORING_SETUP_DEFER_TASKRUN | kNoArray;

// A second mapping of what the program puts its requests into.
struct Mapping {
  std::byte* start = nullptr;
  std::size_t size = 0;

  void map(int fd, std::size_t bytes, long offset) noexcept {
    const long memory =
        kernel(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
    if (memory < 0 && memory > -4096) return;
    start = reinterpret_cast<std::byte*>(memory);
    size = bytes;
  }
  void unmap() noexcept {
    if (start != nullptr) kernel(SYS_munmap, start, size);
    start = nullptr;
  }
};

struct Uring {
  int fd = -1;  // -1: not in use
  int users = 0;
  bool closed = false;  // goes with its last user
  Mapping control;
  Mapping requests;
  io_uring_params made{};
  Lock turn;  // of who submits

  [[nodiscard]] std::uint32_t load(std::uint32_t offset) const noexcept {
    return reinterpret_cast<const std::atomic<std::uint32_t>*>(control.start + offset)
        ->load(std::memory_order_acquire);
  }
  // The request at that position.
  [[nodiscard]] const io_uring_sqe* request(std::uint32_t position) const noexcept {
    std::uint32_t index = position & (made.sq_entries - 1);
    if ((made.flags & kNoArray) == 0)
      index = load(made.sq_off.array + index * std::uint32_t{sizeof index});
    return index < made.sq_entries ? reinterpret_cast<const io_uring_sqe*>(requests.start) + index
                                   : nullptr;
  }
  [[nodiscard]] std::uint32_t answered() const noexcept { return load(made.cq_off.tail); }
  [[nodiscard]] std::int32_t answer(std::uint32_t position) const noexcept {
    const auto* const all = reinterpret_cast<const io_uring_cqe*>(control.start + made.cq_off.cqes);
    return all[position & (made.cq_entries - 1)].res;
  }
};

constexpr std::size_t kMostRings = 256;
constinit std::array<Uring, kMostRings> rings{};
constinit std::atomic<std::uint32_t> used{0};  // so many have been in use
constinit Lock lock;                           // protects the rings

// With the lock held.
Uring* find(int fd) noexcept {
  const auto end = rings.begin() + used.load(std::memory_order_relaxed);
  const auto found = std::find_if(
      rings.begin(), end, [fd](const Uring& ring) { return ring.fd == fd && !ring.closed; });
  return fd >= 0 && found != end ? &*found : nullptr;
}

void drop(Uring& ring) noexcept {
  ring.control.unmap();
  ring.requests.unmap();
  ring.fd = -1;
  ring.users = 0;
  ring.closed = false;
}

void close(Uring& ring) noexcept {
  ring.closed = true;
  if (ring.users == 0) drop(ring);
}

bool is_power_of_two(std::uint32_t number) noexcept {
  return number != 0 && (number & (number - 1)) == 0;
}

// False: it cannot be followed.
bool follow(int fd, const io_uring_params& made) noexcept {
  if ((made.flags & ~kOrdinary) != 0 || (made.features & IORING_FEAT_SINGLE_MMAP) == 0 ||
      !is_power_of_two(made.sq_entries) || !is_power_of_two(made.cq_entries))
    return false;
  std::size_t end = made.cq_off.cqes + made.cq_entries * sizeof(io_uring_cqe);
  if ((made.flags & kNoArray) == 0)
    end = std::max<std::size_t>(end, made.sq_off.array + 4UL * made.sq_entries);
  Mapping control;
  Mapping requests;
  control.map(fd, end, IORING_OFF_SQ_RING);
  requests.map(fd, made.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);
  const Guard guard(lock);
  if (Uring* const before = guard ? find(fd) : nullptr) close(*before);
  const auto free =
      std::find_if(rings.begin(), rings.end(), [](const Uring& each) { return each.fd < 0; });
  if (!guard || control.start == nullptr || requests.start == nullptr || free == rings.end()) {
    control.unmap();
    requests.unmap();
    return false;
  }
  free->fd = fd;
  free->control = control;
  free->requests = requests;
  free->made = made;
  const auto count = static_cast<std::uint32_t>(free - rings.begin()) + 1;
  used.store(std::max(used.load(std::memory_order_relaxed), count), std::memory_order_relaxed);
  return true;
}

// Keeps a ring's memory where it is.
class Use {
 public:
  explicit Use(int fd) noexcept {
    const Guard guard(lock);
    ring_ = guard ? find(fd) : nullptr;
    if (ring_ != nullptr) ++ring_->users;
  }
  ~Use() {
    if (ring_ == nullptr) return;
    const Guard guard(lock);
    if (--ring_->users == 0 && ring_->closed) drop(*ring_);
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  [[nodiscard]] Uring* ring() const noexcept { return ring_; }

 private:
  Uring* ring_ = nullptr;
};

// By itself, of ordinary descriptors, and nothing in it that the kernel refuses. Links and the like
// decide when, and whether, other requests are carried out.
bool is_harmless(const io_uring_sqe* request) noexcept {
  return request != nullptr && request->opcode == IORING_OP_EPOLL_CTL && request->flags == 0 &&
         request->ioprio == 0 && request->buf_index == 0 && request->personality == 0 &&
         request->splice_fd_in == 0;
}

// What became of a call, in part or as a whole.
struct Entered {
  long submitted = 0;
  bool seen = true;    // else the program has done, or is about to do, what is not seen
  bool ended = false;  // the kernel submits no more, or nothing, and says `error` if that is not 0
  long error = 0;
};

// One request; `copy` is what it was when it was submitted.
void submit_one(Uring& ring, const io_uring_sqe& copy, Entered& entered) noexcept {
  const std::uint32_t position = ring.answered();
  const long result = kernel(SYS_io_uring_enter, ring.fd, 1, 0, 0, nullptr, 0);
  if (result != 1) {
    entered.ended = true;
    entered.error = result;
    return;
  }
  ++entered.submitted;
  // There is no place for the answer, or it is not there yet.
  if (ring.answered() != position + 1) {
    entered.seen = false;
    return;
  }
  const std::int32_t answer = ring.answer(position);
  if (answer == 0)
    epoll_controlled(copy.fd, static_cast<int>(copy.len), static_cast<int>(copy.off),
                     reinterpret_cast<const epoll_event*>(copy.addr));
  entered.ended = answer == -EFAULT && (ring.made.flags & IORING_SETUP_SUBMIT_ALL) == 0;
}

// Submits what is asked for one by one, so that each answer is known when the next one goes.
Entered submit(Uring& ring, std::uint32_t wanted) noexcept {
  Entered entered;
  const Guard guard(ring.turn);
  const std::uint32_t first = ring.load(ring.made.sq_off.head);
  const std::uint32_t count = std::min(ring.load(ring.made.sq_off.tail) - first, wanted);
  entered.seen = guard && count <= ring.made.sq_entries;
  for (std::uint32_t i = 0; entered.seen && i < count; ++i)
    entered.seen = is_harmless(ring.request(first + i));
  for (std::uint32_t i = 0; entered.seen && !entered.ended && i < count; ++i) {
    const io_uring_sqe copy = *ring.request(first + i);
    submit_one(ring, copy, entered);
  }
  return entered;
}

bool is_looked_at() noexcept { return in_own_process() && !acceleration_ended(); }

void before_fork() noexcept { lock.lock(); }
void in_parent() noexcept { lock.unlock(); }
// What it submits through a ring of its parent's is not followed.
void in_child() noexcept {
  lock.unlock();
  for (std::uint32_t i = 0; i < used.load(std::memory_order_relaxed); ++i) {
    rings[i].turn.renew();
    // A handler may have forked in the middle of a call: its thread lets go of it, here as well.
    if (rings[i].fd >= 0) close(rings[i]);
  }
}

[[gnu::constructor]] void start() noexcept { at_fork({before_fork, in_parent, in_child}); }

}  // namespace

long set_up_ring(unsigned entries, void* parameters) noexcept {
  const long fd = with_errno(kernel(SYS_io_uring_setup, entries, parameters));
  if (fd < 0 || !is_looked_at()) return fd;
  io_uring_params made;
  std::memcpy(&made, parameters, sizeof made);
  if (!follow(static_cast<int>(fd), made)) leave_for_good();
  return fd;
}

// As the kernel has it: only when all has been submitted it waits, and what has been submitted is
// told rather than an error.
long enter_ring(const long (&arguments)[6]) noexcept {
  const auto wanted = static_cast<std::uint32_t>(arguments[1]);
  const auto flags = static_cast<unsigned>(arguments[3]);
  Entered entered;
  if (is_looked_at()) {
    const Use use((flags & ~IORING_ENTER_GETEVENTS) == 0 ? static_cast<int>(arguments[0]) : -1);
    if (use.ring() != nullptr)
      entered = submit(*use.ring(), wanted);
    else
      entered.seen = false;
  }
  if (!entered.seen) leave_for_good();
  const long rest = static_cast<long>(wanted) - entered.submitted;
  if (rest != 0 && (entered.ended || (entered.seen && is_looked_at())))
    return entered.submitted != 0 ? entered.submitted : with_errno(entered.error);
  if (is_looked_at() && (flags & IORING_ENTER_GETEVENTS) != 0) settle_before_sleep();
  const long result = kernel(SYS_io_uring_enter, arguments[0], rest, arguments[2], arguments[3],
                             arguments[4], arguments[5]);
  if (entered.submitted == 0) return with_errno(result);
  return entered.submitted + std::max(result, 0L);
}

long register_with_ring(const long (&arguments)[6]) noexcept {
  // What a ring holds of the program's may be used behind its back, and outlives its descriptors;
  // and its memory may go elsewhere.
  if (arguments[1] != IORING_REGISTER_PROBE && is_looked_at()) leave_for_good();
  return with_errno(
      kernel(SYS_io_uring_register, arguments[0], arguments[1], arguments[2], arguments[3]));
}

bool is_ring(int fd) noexcept {
  if (used.load(std::memory_order_relaxed) == 0) [[likely]]
    return false;
  const Guard guard(lock);
  return guard && find(fd) != nullptr;
}

void forget_ring(int fd) noexcept {
  if (used.load(std::memory_order_relaxed) == 0 || !in_own_process()) [[likely]]
    return;
  const Guard guard(lock);
  if (Uring* const ring = guard ? find(fd) : nullptr) close(*ring);
}

void forget_rings(unsigned first, unsigned last) noexcept {
  const std::uint32_t count = used.load(std::memory_order_relaxed);
  if (count == 0) [[likely]]
    return;
  const Guard guard(lock);
  for (std::uint32_t i = 0; guard && i < count; ++i)
    if (const auto fd = static_cast<unsigned>(rings[i].fd);
        rings[i].fd >= 0 && !rings[i].closed && first <= fd && fd <= last)
      close(rings[i]);
}

}  // namespace farcall::preload
