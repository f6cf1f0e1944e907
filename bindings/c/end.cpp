// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "c/pipe.hpp"
#include "farcall/error.hpp"
#include "farcall/socket.hpp"

namespace farcall::c {
namespace {

// Counted before a fork begins: an end that its process closes unused is another's perhaps.
std::atomic<std::uint64_t> forks{0};
void count_fork() { forks.fetch_add(1, std::memory_order_relaxed); }
[[maybe_unused]] const bool kCounts =
    (process::around_fork(process::ForkOrder::call, count_fork, nullptr, nullptr), true);

void check_descriptor(int fd) {
  if (::fcntl(fd, F_GETFD) < 0) throw SystemError(EBADF, "an end of a pipe");
}

void check_lifeline(int fd) {
  check_descriptor(fd);
  const auto is = [fd](int option, int expected) {
    int value = -1;
    socklen_t size = sizeof value;
    return ::getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 && value == expected;
  };
  if (!is(SO_DOMAIN, AF_UNIX) || !is(SO_TYPE, SOCK_STREAM) || !is(SO_ACCEPTCONN, 0))
    throw SystemError(EPROTO, "an end of a pipe: not its socket");
}

// A memory of a descriptor that stays the caller's.
class LentMemory {
 public:
  explicit LentMemory(int fd) : memory_(adopt(fd)) {}
  ~LentMemory() { (void)std::move(memory_).release().release(); }
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;
  [[nodiscard]] const SharedMemory& get() const noexcept { return memory_; }

 private:
  static SharedMemory adopt(int number) {
    UniqueFd fd(number);
    try {
      return SharedMemory::adopt(std::move(fd));
    } catch (const SystemError& error) {
      (void)fd.release();
      if (error.code().value() != EPERM) throw;
      throw SystemError(EPROTO, "an end of a pipe: not its memory");
    }
  }
  SharedMemory memory_;
};

// The size is checked before any of it is touched.
RingMemory attach(int fd, RingKind kind, Access data, std::size_t most) {
  check_descriptor(fd);
  const LentMemory memory(fd);
  if (memory.get().size() > ring_bytes(most))
    throw SystemError(EPROTO, "an end of a pipe: its memory is larger than permitted");
  try {
    return RingMemory::attach(memory.get(), kind, data);
  } catch (const SystemError& error) {
    // Open for reading alone, or sealed against writing.
    if (error.code().value() != EACCES && error.code().value() != EPERM) throw;
    throw SystemError(EPROTO, "an end of a pipe: its memory cannot be written");
  }
}

// Refuses parts of several pipes, or of both ends. By value: the peer may be writing there.
void check_pair(const RingPair out, int out_lifeline, const RingPair in, int in_lifeline) {
  const bool one_pipe = out.number != 0 && out.number == in.number && out.direction <= 1 &&
                        in.direction <= 1 && out.direction != in.direction;
  if (!one_pipe || socket_cookie(out_lifeline) != out.writer_socket ||
      socket_cookie(in_lifeline) != in.reader_socket)
    throw SystemError(EPROTO, "an end of a pipe: its parts do not belong together");
}

// Programs that have closed their standard streams write to them all the same.
UniqueFd above_standard_streams(int fd) {
  if (fd > STDERR_FILENO) return {};
  UniqueFd higher(::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!higher) throw_errno("duplicate a socket");
  return higher;
}

Lifeline take_lifeline(UniqueFd& given, UniqueFd& instead) noexcept {
  if (!instead) return Lifeline(std::move(given));
  given.reset();
  return Lifeline(std::move(instead));
}

}  // namespace

std::array<PipeParts, 2> make_pipe(std::size_t capacity, RingKind kind) {
  std::array<PipeParts, 2> ends;
  std::uint64_t number = 0;
  for (std::uint32_t from = 0; from < 2; ++from) {
    PipeParts& writer = ends[from];
    PipeParts& reader = ends[1 - from];
    SharedMemory memory = SharedMemory::create(ring_bytes(capacity), "farcall-pipe");
    const RingMemory ring = RingMemory::format(memory.fd(), capacity, kind);
    std::tie(writer.fds[PipeParts::kOutLifeline], reader.fds[PipeParts::kInLifeline]) =
        socket_pair();
    RingPair pair{.number = number,
                  .writer_socket = socket_cookie(writer.fds[PipeParts::kOutLifeline].get()),
                  .reader_socket = socket_cookie(reader.fds[PipeParts::kInLifeline].get()),
                  .direction = from,
                  .reserved = 0};
    if (pair.writer_socket == 0 || pair.reader_socket == 0) throw_errno("SO_COOKIE");
    if (from == 0) pair.number = number = pair.writer_socket;  // no other socket has it
    ring.view().control->pair = pair;
    reader.fds[PipeParts::kIn] = std::move(memory).release();
    writer.fds[PipeParts::kOut] = reader.fds[PipeParts::kIn].duplicate();
  }
  for (PipeParts& end : ends)
    for (UniqueFd& fd : end.fds)
      if (UniqueFd higher = above_standard_streams(fd.get())) fd = std::move(higher);
  return ends;
}

// All that may fail, before anything is taken.
struct Pipe::Checked {
  Checked(const PipeParts& parts, std::size_t most, RingKind kind) {
    const int out_lifeline = parts.fds[PipeParts::kOutLifeline].get();
    const int in_lifeline = parts.fds[PipeParts::kInLifeline].get();
    check_lifeline(out_lifeline);
    check_lifeline(in_lifeline);
    out = attach(parts.fds[PipeParts::kOut].get(), kind, Access::read_write, most);
    in = attach(parts.fds[PipeParts::kIn].get(), kind, Access::read_only, most);
    check_pair(out->view().control->pair, out_lifeline, in->view().control->pair, in_lifeline);
    out_higher = above_standard_streams(out_lifeline);
    in_higher = above_standard_streams(in_lifeline);
    for (const UniqueFd& fd : parts.fds)
      if (::fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0) throw_errno("FD_CLOEXEC");
  }
  std::optional<RingMemory> out;
  std::optional<RingMemory> in;
  UniqueFd out_higher;
  UniqueFd in_higher;
};

Pipe::Pipe(PipeParts& parts, std::size_t most, RingKind kind)
    : Pipe(Checked(parts, most, kind), parts, kind) {}

Pipe::Pipe(Checked&& checked, PipeParts& parts, RingKind kind) noexcept
    : out_memory_(*std::move(checked.out)),
      in_memory_(*std::move(checked.in)),
      out_file_(std::move(parts.fds[PipeParts::kOut])),
      in_file_(std::move(parts.fds[PipeParts::kIn])),
      out_lifeline_(take_lifeline(parts.fds[PipeParts::kOutLifeline], checked.out_higher)),
      in_lifeline_(take_lifeline(parts.fds[PipeParts::kInLifeline], checked.in_higher)),
      forks_before_(forks.load(std::memory_order_relaxed)),
      kind_(kind) {}

bool Pipe::is_its_last() const noexcept {
  return is_used_here() || (used_by_.load(std::memory_order_relaxed) == 0 && !is_everybodys());
}

// Whether an end that nobody has used may be in use elsewhere.
bool Pipe::is_everybodys() const noexcept {
  return out_memory_.view().control->taken.load(std::memory_order_relaxed) != 0 ||
         given_.load(std::memory_order_relaxed) || made_in_ != process::generation() ||
         forks_before_ != forks.load(std::memory_order_relaxed);
}

int Pipe::begin_use(std::uint64_t here) noexcept {
  // Forks find either all or nothing of it done.
  const process::NoFork no_fork;
  const std::scoped_lock guard(lock_);
  const std::uint64_t user = used_by_.load(std::memory_order_relaxed);
  if (user != 0) return user == here ? 0 : -EBUSY;
  // Other processes may have this end: the first to use it has it. The peer, who could say so as
  // well, would be left without one. relaxed: whoever had it before has done nothing with it.
  std::uint32_t nobody = 0;
  if (!out_memory_.view().control->taken.compare_exchange_strong(nobody, 1,
                                                                 std::memory_order_relaxed))
    return -EBUSY;
  out_lifeline_.keep();
  in_lifeline_.keep();
  out_file_.reset();
  in_file_.reset();
  // Both ends call the pipe by the older of its two memories.
  observe::Description description{.kind = observe::Kind::ring, .role = role_};
  description.name = name_.data();
  description.name_bytes = name_.size();
  description.session = std::min(out_memory_.inode(), in_memory_.inode());
  entry_ = observe::Entry(description);
  observe(entry_);
  if (!sends_) finish_sending();
  // release: pairs with use().
  used_by_.store(here, std::memory_order_release);
  return 0;
}

void Pipe::close_sending() noexcept {
  {
    const process::NoFork no_fork;
    const std::scoped_lock guard(lock_);
    sends_ = false;
    if (used_by_.load(std::memory_order_relaxed) == 0 && is_everybodys()) return;
  }
  // Where this is the first use it has finished; once more does nothing.
  if (use() == 0) finish_sending();
}

int Pipe::give_descriptors(int* descriptors) const noexcept {
  const process::NoFork no_fork;
  const std::scoped_lock guard(lock_);
  if (used_by_.load(std::memory_order_relaxed) != 0) return -EBUSY;
  given_.store(true, std::memory_order_relaxed);
  descriptors[PipeParts::kOut] = out_file_.get();
  descriptors[PipeParts::kOutLifeline] = out_lifeline_.get();
  descriptors[PipeParts::kIn] = in_file_.get();
  descriptors[PipeParts::kInLifeline] = in_lifeline_.get();
  return 0;
}

}  // namespace farcall::c
