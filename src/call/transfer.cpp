// SPDX-License-Identifier: Apache-2.0
#include "call/transfer.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "farcall/error.hpp"

namespace farcall::call {
namespace {

// No system call moves more than 2 GiB at once.
constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;

// By system calls that are no points of cancellation. Repeats `move` until all has been moved, or
// no more can be.
template <class Bytes, class Move>
bool move_all(Bytes bytes, Move move) noexcept {
  for (off_t at = 0; !bytes.empty();) {
    const ssize_t count = move(bytes.first(std::min(bytes.size(), kMostAtOnce)), at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    at += count;
  }
  return true;
}

// Nothing where this process may not map more (RLIMIT_AS): it is read and written as a file then.
PrivateMapping map_if_possible(const SharedMemory& memory) {
  try {
    return {memory.fd(), memory.size()};
  } catch (const SystemError&) {
    return {};
  }
}

}  // namespace

std::size_t TransferMemory::capacity_for(std::size_t size) noexcept {
  return size > kMostMapped ? size : std::bit_ceil(std::max(size, kLeast));
}

TransferMemory TransferMemory::create(std::size_t size, bool trusted) {
  SharedMemory memory = SharedMemory::create(capacity_for(size), "farcall-transfer");
  TransferMemory made;
  if (trusted || memory.size() <= kMostMapped) made.mapping_ = map_if_possible(memory);
  made.capacity_ = memory.size();
  made.made_here_ = true;
  made.fd_ = PrivateFd(std::move(memory).release());
  return made;
}

TransferMemory TransferMemory::adopt(UniqueFd&& fd, bool trusted, std::size_t most) {
  SharedMemory memory = SharedMemory::adopt(std::move(fd));
  const auto refuse = [&](int error, const char* why) {
    fd = std::move(memory).release();
    throw SystemError(error, why);
  };
  if (memory.size() == 0) refuse(EPROTO, "memory of no size");
  const std::size_t longest = capacity_for(most);
  if (memory.size() - std::min(memory.size(), longest) >= page_size())
    refuse(E2BIG, "memory for a longer message than is taken");
  TransferMemory made;
  made.capacity_ = memory.size();
  if (trusted || memory.size() <= kMostMapped) made.mapping_ = map_if_possible(memory);
  if (!made.mapping_) made.fd_ = PrivateFd(std::move(memory).release());
  return made;
}

void TransferMemory::discard() noexcept {
  if (!made_here_) return;
  if (mapping_)
    ::madvise(mapping_.data(), mapping_.size(), MADV_REMOVE);
  else if (fd_.is_here())
    ::syscall(SYS_fallocate, fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t{0},
              static_cast<off_t>(capacity_));
}

bool TransferMemory::write(std::span<const std::byte> data) noexcept {
  if (mapping_) {
    copier_.copy(mapping_.data(), data.data(), data.size());
    return true;
  }
  const FileSizeGuard guard;
  return move_all(data, [this](std::span<const std::byte> part, off_t at) {
    return ::syscall(SYS_pwrite64, fd_.get(), part.data(), part.size(), at);
  });
}

bool TransferMemory::read(std::span<std::byte> into, std::size_t offset) const noexcept {
  if (mapping_) {
    copy_memory(into.data(), mapping_.data() + offset, into.size());
    return true;
  }
  return move_all(into, [&](std::span<std::byte> part, off_t at) {
    return ::syscall(SYS_pread64, fd_.get(), part.data(), part.size(),
                     static_cast<off_t>(offset) + at);
  });
}

}  // namespace farcall::call
