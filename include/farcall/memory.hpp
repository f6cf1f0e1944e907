// SPDX-License-Identifier: Apache-2.0
//
// Memory that two processes share: owners for descriptors and mappings, and sealed memory files.
//
// Nothing here has a name in a file system, so nothing outlives its last holder.
#pragma once

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

namespace farcall {

// Owns one file descriptor; -1 is "none".
class UniqueFd {
 public:
  UniqueFd() noexcept = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  // Closes what is held; errno is kept, so that it can stand in an error path.
  void reset(int fd = -1) noexcept;
  // A second descriptor of the same open file, close-on-exec. Throws SystemError.
  [[nodiscard]] UniqueFd duplicate() const;

 private:
  int fd_ = -1;
};

// Owns a range of addresses; unmapped when it goes.
class Mapping {
 public:
  Mapping() noexcept = default;
  Mapping(void* address, std::size_t size) noexcept
      : address_(static_cast<std::byte*>(address)), size_(size) {}
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      reset();
      address_ = std::exchange(other.address_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  ~Mapping() { reset(); }

  // Address space without memory behind it, to place mappings in. Throws SystemError.
  static Mapping reserve(std::size_t size);
  // Anonymous memory shared with children forked from now on. Throws SystemError.
  static Mapping anonymous_shared(std::size_t size);
  // The same for this process alone, at least `size` bytes; empty, with errno, where there is none.
  static Mapping anonymous_private(std::size_t size) noexcept;

  [[nodiscard]] std::byte* data() const noexcept { return address_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  explicit operator bool() const noexcept { return address_ != nullptr; }
  void reset() noexcept {
    if (address_ != nullptr) unmap();
  }
  // The caller unmaps it.
  [[nodiscard]] std::byte* release() noexcept {
    size_ = 0;
    return std::exchange(address_, nullptr);
  }

 private:
  void unmap() noexcept;

  std::byte* address_ = nullptr;
  std::size_t size_ = 0;
};

enum class Access { read_only, read_write };
// Whether all who have a memory file may write to it; else forbid_writing() is to follow.
enum class Writers { everybody, creator };

// A memory file that can neither shrink nor grow, so that touching a mapping of it never faults,
// whatever the process at the other end does.
class SharedMemory {
 public:
  // `size` bytes (> 0, rounded up to whole pages), zeroed, allocated and sealed; `name` shows in
  // /proc/PID/maps only. Throws SystemError: ENOMEM when there is not that much memory.
  static SharedMemory create(std::size_t size, const char* name = "farcall",
                             Writers writers = Writers::everybody);
  // From now on nobody can map it to write, whoever has the descriptor; mappings that there are
  // stay. For memory that was made for its creator to write. Throws SystemError.
  void forbid_writing();

  // Takes over a descriptor that came from elsewhere. Throws SystemError with EPERM unless it is
  // a memory file of ordinary pages, sealed against shrinking, growing and further sealing; then
  // the descriptor stays the caller's, who may not want to close what that is.
  static SharedMemory adopt(UniqueFd&& fd);

  // All of it, read-write; `flags`: of mmap(2), beside MAP_SHARED. Throws SystemError.
  [[nodiscard]] Mapping map(int flags = 0) const;
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] UniqueFd release() && noexcept { return std::move(fd_); }

 private:
  SharedMemory(UniqueFd fd, std::size_t size) noexcept : fd_(std::move(fd)), size_(size) {}

  UniqueFd fd_;
  std::size_t size_ = 0;
};

// While it lives, a file of this thread's that would become larger than the process may make them
// (RLIMIT_FSIZE) is an EFBIG and nothing else. The kernel also sends SIGXFSZ, which ends the
// process, and memory files are no exception.
class FileSizeGuard {
 public:
  FileSizeGuard() noexcept;
  ~FileSizeGuard();
  FileSizeGuard(const FileSizeGuard&) = delete;
  FileSizeGuard& operator=(const FileSizeGuard&) = delete;

 private:
  sigset_t before_{};
  bool was_pending_ = false;
};

[[nodiscard]] std::size_t page_size() noexcept;
[[nodiscard]] std::size_t round_up_to_pages(std::size_t size) noexcept;

// Maps the file `fd` so that its first `head` bytes come once, with `head_access`, and the `body`
// bytes behind them come twice in a row, with `body_access`: any run of up to `body` bytes that
// starts in the first copy is contiguous. Pages are faulted in at once. Throws SystemError: ENOTSUP
// unless both are multiples of the page size.
Mapping map_twice(int fd, std::size_t head, std::size_t body, Access body_access,
                  Access head_access = Access::read_write);

// The same for memory that has no file: `memory` holds `head` + `body` bytes of shared memory
// (anonymous or System V) and is taken over. Throws SystemError.
Mapping map_twice(Mapping memory, std::size_t head, std::size_t body);

// As memcpy(3), for any two addresses. C libraries copy from some 2 KiB on by an instruction that
// on some processors (AMD's Zen 3 and 4) is twenty times as slow where the target lies 1 to 31
// bytes behind the source, modulo 4096: from a page's beginning, say, to what malloc() gave
// (glibc's bug 30994). Those are copied in shorter pieces.
namespace detail {
void copy_in_pieces(std::byte* to, const std::byte* from, std::size_t size) noexcept;
}
inline void copy_memory(std::byte* to, const std::byte* from, std::size_t size) noexcept {
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kShort = 2048;
  constexpr std::size_t kNear = 64;
  if (size > kShort) [[unlikely]] {
    const auto apart = static_cast<std::size_t>(to - from) % kPage;
    if (apart != 0 && apart < kNear) return detail::copy_in_pieces(to, from, size);
  }
  if (size != 0) std::memcpy(to, from, size);
}

// Copies into memory that another processor reads next.
//
// A long copy goes either through this processor's caches or past them (non-temporal stores). Past
// them is somewhat slower where the two processors share a cache, and several times faster where
// they do not: then each line has to be fetched back from the reader's caches before it can be
// written. No processor tells which is the case, and under a hypervisor it changes while a program
// runs. So both are timed now and then, and the faster one is used.
class CopyToPeer {
 public:
  // A copy of so many bytes is long.
  static constexpr std::size_t kLong = 8192;

  // What is published after it, with release, is visible after these bytes.
  void copy(std::byte* to, const std::byte* from, std::size_t size) noexcept {
    if (size >= kLong) [[unlikely]]
      copy_long(to, from, size);
    else
      copy_memory(to, from, size);
  }

  enum class Way : std::uint8_t { through, past };
  // The way of the next long copy, unless it is one that tries the other.
  [[nodiscard]] Way way() const noexcept { return way_; }
  // How a long copy went: `ticks` for `size` bytes, at least kLong.
  void learn(Way way, std::uint64_t ticks, std::size_t size) noexcept;

 private:
  void copy_long(std::byte* to, const std::byte* from, std::size_t size) noexcept;
  [[nodiscard]] Way next_way() noexcept;
  [[nodiscard]] std::uint64_t cost(Way way) const noexcept;

  // Of the last two long copies by each way, in ticks per KiB; 0: there was none.
  std::array<std::array<std::uint32_t, 2>, 2> costs_{};
  std::uint32_t copies_ = 0;
  Way way_ = Way::through;
};

}  // namespace farcall
