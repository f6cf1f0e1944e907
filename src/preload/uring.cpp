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

#include "preload/fork.hpp"
#include "preload/lock.hpp"
#include "preload/privilege.hpp"
#include "preload/real.hpp"
#include "preload/side.hpp"
#include "preload/upgrade.hpp"

namespace farcall::preload {
namespace {

// Newer than some systems' headers.
constexpr std::uint32_t kNoArray = 1U << 16;  // IORING_SETUP_NO_SQARRAY
constexpr unsigned kResize = 33;              // IORING_REGISTER_RESIZE_RINGS

// Those that change nothing about how requests come to the kernel: by io_uring_enter(), each of 64
// bytes, in memory that can be mapped.
constexpr std::uint32_t kOrdinary =
    IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP | IORING_SETUP_ATTACH_WQ | IORING_SETUP_SUBMIT_ALL |
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_CQE32 |
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | kNoArray;

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
  io_sqring_offsets at{};
  std::uint32_t entries = 0;
  bool has_array = false;

  [[nodiscard]] std::uint32_t load(std::uint32_t offset) const noexcept {
    return reinterpret_cast<const std::atomic<std::uint32_t>*>(control.start + offset)
        ->load(std::memory_order_acquire);
  }
  // The request at that position.
  [[nodiscard]] io_uring_sqe* request(std::uint32_t position) const noexcept {
    std::uint32_t index = position & (entries - 1);
    if (has_array) index = load(at.array + index * std::uint32_t{sizeof index});
    return index < entries ? reinterpret_cast<io_uring_sqe*>(requests.start) + index : nullptr;
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
  ring = Uring();
}

void close(Uring& ring) noexcept {
  ring.closed = true;
  if (ring.users == 0) drop(ring);
}

// False: it cannot be followed.
bool follow(int fd, const io_uring_params& made) noexcept {
  if ((made.flags & ~kOrdinary) != 0 || made.sq_entries == 0 ||
      (made.sq_entries & (made.sq_entries - 1)) != 0)
    return false;
  const bool has_array = (made.flags & kNoArray) == 0;
  std::size_t end = std::max(made.sq_off.head, made.sq_off.tail) + sizeof(std::uint32_t);
  if (has_array) end = std::max<std::size_t>(end, made.sq_off.array + 4UL * made.sq_entries);
  Uring ring;
  ring.fd = fd;
  ring.at = made.sq_off;
  ring.entries = made.sq_entries;
  ring.has_array = has_array;
  ring.control.map(fd, end, IORING_OFF_SQ_RING);
  ring.requests.map(fd, made.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);
  const Guard guard(lock);
  if (Uring* const before = guard ? find(fd) : nullptr) close(*before);
  const auto free =
      std::find_if(rings.begin(), rings.end(), [](const Uring& each) { return each.fd < 0; });
  if (!guard || ring.control.start == nullptr || ring.requests.start == nullptr ||
      free == rings.end()) {
    ring.control.unmap();
    ring.requests.unmap();
    return false;
  }
  *free = ring;
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
  [[nodiscard]] const Uring* ring() const noexcept { return ring_; }

 private:
  Uring* ring_ = nullptr;
};

bool is_harmless(const io_uring_sqe* request) noexcept {
  if (request == nullptr) return false;
  switch (request->opcode) {
    case IORING_OP_NOP:
    case IORING_OP_TIMEOUT:
    case IORING_OP_TIMEOUT_REMOVE:
    case IORING_OP_ASYNC_CANCEL: return true;
    // By itself, with ordinary descriptors, and with nothing that the kernel would refuse.
    case IORING_OP_EPOLL_CTL:
      return request->flags == 0 && request->ioprio == 0 && request->buf_index == 0 &&
             request->personality == 0 && request->splice_fd_in == 0;
    default: return false;
  }
}

// What fails is left to the kernel, to fail in the same way.
void carry_out(io_uring_sqe& request) noexcept {
  auto* const event = reinterpret_cast<epoll_event*>(request.addr);
  if (::epoll_ctl(request.fd, static_cast<int>(request.len), static_cast<int>(request.off),
                  event) != 0)
    return;
  const std::uint64_t whose = request.user_data;
  std::memset(&request, 0, sizeof request);
  request.opcode = IORING_OP_NOP;
  request.fd = -1;
  request.user_data = whose;
}

// False: the program is about to do something that is not seen.
bool look_at(const Uring& ring, std::uint32_t submitted) noexcept {
  const std::uint32_t first = ring.load(ring.at.head);
  const std::uint32_t count = std::min(ring.load(ring.at.tail) - first, submitted);
  if (count > ring.entries) return false;
  for (std::uint32_t i = 0; i < count; ++i)
    if (!is_harmless(ring.request(first + i))) return false;
  const int error = errno;
  for (std::uint32_t i = 0; i < count; ++i)
    if (io_uring_sqe& request = *ring.request(first + i); request.opcode == IORING_OP_EPOLL_CTL)
      carry_out(request);
  errno = error;
  return true;
}

bool is_looked_at() noexcept { return in_own_process() && !acceleration_ended(); }

void before_fork() noexcept { lock.lock(); }
void in_parent() noexcept { lock.unlock(); }
// What it submits through a ring of its parent's is not followed.
void in_child() noexcept {
  lock.unlock();
  for (std::uint32_t i = 0; i < used.load(std::memory_order_relaxed); ++i) drop(rings[i]);
  used.store(0, std::memory_order_relaxed);
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

long enter_ring(const long (&arguments)[6]) noexcept {
  constexpr unsigned kByIndex = 1U << 4;  // IORING_ENTER_REGISTERED_RING
  if (is_looked_at()) {
    const bool by_index = (static_cast<unsigned>(arguments[3]) & kByIndex) != 0;
    const Use use(by_index ? -1 : static_cast<int>(arguments[0]));
    if (use.ring() == nullptr || !look_at(*use.ring(), static_cast<std::uint32_t>(arguments[1])))
      leave_for_good();
  }
  return with_errno(kernel(SYS_io_uring_enter, arguments[0], arguments[1], arguments[2],
                           arguments[3], arguments[4], arguments[5]));
}

long register_with_ring(const long (&arguments)[6]) noexcept {
  // The memory that is known would not be where requests are.
  if (static_cast<unsigned>(arguments[1]) == kResize && is_looked_at()) leave_for_good();
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
