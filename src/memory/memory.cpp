// SPDX-License-Identifier: Apache-2.0
#include "farcall/memory.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string>

#include "farcall/error.hpp"
#include "memory/allocate_file.hpp"
#include "memory/standard_streams.hpp"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace farcall {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Places `size` bytes of `fd` at `address`, inside a reservation that the caller owns. Pages of
// what is large come as they are touched: it may be a peer's, whose file has holes as large as it
// likes, and filling them takes time.
void place(std::byte* address, std::size_t size, Access access, int fd, std::size_t offset) {
  constexpr std::size_t kLarge = std::size_t{16} << 20;
  const int protection = access == Access::read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  const int populate = size < kLarge ? MAP_POPULATE : 0;
  if (::mmap(address, size, protection, MAP_SHARED | MAP_FIXED | populate, fd,
             static_cast<off_t>(offset)) == MAP_FAILED)
    throw_errno("mmap of shared memory");
}

// Whether the kernel reckons that there is that much without its killing anybody, as it would to
// fill a memory file. Asked only for what is large.
bool is_available(std::size_t size) noexcept {
  constexpr std::size_t kLarge = std::size_t{64} << 20;
  if (size < kLarge) return true;
  const UniqueFd file(
      static_cast<int>(::syscall(SYS_openat, AT_FDCWD, "/proc/meminfo", O_RDONLY | O_CLOEXEC)));
  char text[1024] = {};
  if (!file || ::read(file.get(), text, sizeof text - 1) <= 0) return true;
  const char* const line = std::strstr(text, "MemAvailable:");
  return line == nullptr ||
         std::strtoull(line + sizeof "MemAvailable:", nullptr, 10) >= size / 1024;
}

// Else the kernel's word would be EINVAL, on every machine whose pages are larger than what rings
// are made of.
void check_pages(std::size_t head, std::size_t body) {
  if (head % page_size() == 0 && body % page_size() == 0) return;
  throw SystemError(ENOTSUP, "map " + std::to_string(head) + " and " + std::to_string(body) +
                                 " bytes of shared memory where the kernel has pages of " +
                                 std::to_string(page_size()));
}

sigset_t file_size_signal() noexcept {
  sigset_t only{};
  ::sigemptyset(&only);
  ::sigaddset(&only, SIGXFSZ);
  return only;
}

}  // namespace

void UniqueFd::reset(int fd) noexcept {
  if (fd_ >= 0) {
    const int saved = errno;
    // The C library makes it a point of cancellation, which a destructor cannot be. The system call
    // itself would go unattended by who is told of what is closed (libfarcall-doors).
    int cancel_state = 0;
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    ::close(fd_);
    ::pthread_setcancelstate(cancel_state, nullptr);
    errno = saved;
  }
  fd_ = fd;
}

UniqueFd UniqueFd::duplicate() const {
  UniqueFd copy(::fcntl(fd_, F_DUPFD_CLOEXEC, 3));
  // EINVAL: that number is not permitted (RLIMIT_NOFILE).
  if (!copy) throw SystemError(errno == EINVAL ? EMFILE : errno, "duplicate a descriptor");
  return copy;
}

Mapping Mapping::reserve(std::size_t size) {
  void* address =
      ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) throw_errno("mmap to reserve addresses");
  return {address, size};
}

Mapping Mapping::anonymous_shared(std::size_t size) {
  void* address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (address == MAP_FAILED) throw_errno("mmap of anonymous shared memory");
  return {address, size};
}

Mapping Mapping::anonymous_private(std::size_t size) noexcept {
  size = round_up_to_pages(size);
  void* address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return {};
  return {address, size};
}

void Mapping::unmap() noexcept {
  ::munmap(address_, size_);
  address_ = nullptr;
  size_ = 0;
}

FileSizeGuard::FileSizeGuard() noexcept {
  const sigset_t signal = file_size_signal();
  sigset_t pending{};
  ::sigpending(&pending);
  was_pending_ = ::sigismember(&pending, SIGXFSZ) == 1;
  ::pthread_sigmask(SIG_BLOCK, &signal, &before_);
}

FileSizeGuard::~FileSizeGuard() {
  const int saved = errno;
  const timespec at_once{};
  const sigset_t signal = file_size_signal();
  // The system call, which is no point of cancellation. What the program has kept waiting is left.
  if (!was_pending_) ::syscall(SYS_rt_sigtimedwait, &signal, nullptr, &at_once, _NSIG / CHAR_BIT);
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  errno = saved;
}

std::size_t page_size() noexcept {
  return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));  // the C library knows it already
}

std::size_t round_up_to_pages(std::size_t size) noexcept {
  return (size + page_size() - 1) & ~(page_size() - 1);
}

// What a signal interrupts the kernel takes back whole. So where signals come faster than all of it
// can be allocated, it is done in pieces that get smaller.
int allocate_file(int fd, std::size_t size) noexcept {
  std::size_t piece = size;
  for (std::size_t done = 0; done < size;) {
    const std::size_t now = std::min(piece, size - done);
    const int error = ::posix_fallocate(fd, static_cast<off_t>(done), static_cast<off_t>(now));
    if (error == 0)
      done += now;
    else if (error == EINTR)
      piece = round_up_to_pages(now / 2);
    else
      return error;
  }
  return 0;
}

SharedMemory SharedMemory::create(std::size_t size, const char* name, Writers writers) {
  if (size == 0) throw MisuseError("shared memory of zero bytes");
  if (!is_available(size))
    throw SystemError(ENOMEM, "shared memory of " + std::to_string(size) + " bytes");
  size = round_up_to_pages(size);
  const FileSizeGuard guard;
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  // Kernels before 6.3 do not know MFD_NOEXEC_SEAL.
  if (!fd && errno == EINVAL) fd = UniqueFd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw_errno("memfd_create");
  fd = beyond_standard_streams(std::move(fd));
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) {
    if (errno == EFBIG)
      throw SystemError(EFBIG, "shared memory of " + std::to_string(size) +
                                   " bytes is more than a file may have here (ulimit -f)");
    throw_errno("ftruncate of a memfd");
  }
  // Allocated now: a shortage is an error here instead of a SIGBUS at first touch.
  if (const int error = allocate_file(fd.get(), size); error != 0)
    throw SystemError(error == ENOSPC ? ENOMEM : error, "allocate shared memory");
  const int seals = writers == Writers::everybody ? kSeals : kSeals & ~F_SEAL_SEAL;
  if (::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) throw_errno("seal a memfd");
  return {std::move(fd), size};
}

void SharedMemory::forbid_writing() {
  if (::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | kSeals) != 0)
    throw_errno("seal a memfd against writing");
}

SharedMemory SharedMemory::adopt(UniqueFd&& fd) {
  // F_GET_SEALS fails on everything but memory files, so it tells the kind as well.
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals)
    throw SystemError(EPERM, "shared memory from the peer is not a sealed memory file");
  // Memory in huge pages has seals as well, but a hole in it can be beyond filling (SIGBUS).
  struct statfs kind {};
  if (::fstatfs(fd.get(), &kind) != 0) throw_errno("fstatfs of shared memory");
  if (kind.f_type != TMPFS_MAGIC)
    throw SystemError(EPERM, "shared memory from the peer is not made of ordinary pages");
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw_errno("fstat of shared memory");
  return {std::move(fd), static_cast<std::size_t>(status.st_size)};
}

Mapping SharedMemory::map(int flags) const {
  void* address = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd_.get(), 0);
  if (address == MAP_FAILED) throw_errno("mmap of shared memory");
  return {address, size_};
}

Mapping map_twice(int fd, std::size_t head, std::size_t body, Access body_access,
                  Access head_access) {
  check_pages(head, body);
  Mapping area = Mapping::reserve(head + 2 * body);
  place(area.data(), head, head_access, fd, 0);
  place(area.data() + head, body, body_access, fd, head);
  place(area.data() + head + body, body, body_access, fd, head);
  return area;
}

Mapping map_twice(Mapping memory, std::size_t head, std::size_t body) {
  check_pages(head, body);
  Mapping area = Mapping::reserve(head + 2 * body);
  // mremap of zero old bytes makes a second mapping of shared pages; it works without a file.
  const auto alias = [&](std::size_t from, std::size_t size, std::size_t to) {
    if (::mremap(memory.data() + from, 0, size, MREMAP_MAYMOVE | MREMAP_FIXED, area.data() + to) ==
        MAP_FAILED)
      throw_errno("mremap of shared memory");
  };
  alias(0, head, 0);
  alias(head, body, head);
  alias(head, body, head + body);
  return area;
}

}  // namespace farcall
