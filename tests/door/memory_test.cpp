// SPDX-License-Identifier: Apache-2.0
//
// Requests in memory whose pages nobody has touched, or that has given them up, and results that go
// into such memory: where pages are when a call begins is nobody's business.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <utility>

#include "door/scoped_server.hpp"
#include "harness/sandbox.hpp"

namespace farcall::door::test {
namespace {

constexpr std::size_t kPage = 4096;

char letter(std::size_t i) { return static_cast<char>(i * 31 % 251 + i / kPage); }

// Memory of `size` bytes, mapped so.
class Memory {
 public:
  explicit Memory(std::size_t size, int protection = PROT_READ | PROT_WRITE,
                  int flags = MAP_PRIVATE | MAP_ANONYMOUS, int fd = -1)
      : size_(size), begin_(::mmap(nullptr, size, protection, flags, fd, 0)) {
    if (begin_ == MAP_FAILED) std::abort();
  }
  ~Memory() {
    if (begin_ != nullptr) ::munmap(begin_, size_);
  }
  Memory(Memory&& other) noexcept
      : size_(other.size_), begin_(std::exchange(other.begin_, nullptr)) {}
  Memory& operator=(Memory&&) = delete;

  [[nodiscard]] char* begin() const { return static_cast<char*>(begin_); }
  [[nodiscard]] std::size_t size() const { return size_; }
  void fill() const {
    for (std::size_t i = 0; i < size_; ++i) begin()[i] = letter(i);
  }
  void advise(int what) const { ::madvise(begin_, size_, what); }

 private:
  std::size_t size_;
  void* begin_;
};

struct Kind {
  const char* name;
  Memory (*make)(std::size_t size);
  bool filled;  // else it is zero
};

Memory never_touched(std::size_t size) {
  return Memory(size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
}
Memory shared(std::size_t size) {
  return Memory(size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
}
Memory given_up(std::size_t size) {
  Memory memory(size);
  memory.fill();
  memory.advise(MADV_DONTNEED);
  return memory;
}
Memory touched_here_and_there(std::size_t size) {
  Memory memory(size);
  for (std::size_t i = 0; i < size; i += 3 * kPage)
    (void)*const_cast<volatile char*>(&memory.begin()[i]);
  for (std::size_t i = kPage; i < size; i += 3 * kPage) memory.begin()[i] = 0;
  return memory;
}
Memory reclaimed(std::size_t size) {
  Memory memory(size);
  memory.fill();
#ifdef MADV_PAGEOUT
  memory.advise(MADV_PAGEOUT);
#endif
  return memory;
}
Memory file_with_a_hole(std::size_t size) {
  const UniqueFd file(::memfd_create("hole", MFD_CLOEXEC));
  if (::ftruncate(file.get(), static_cast<off_t>(size)) != 0) std::abort();
  return Memory(size, PROT_READ, MAP_PRIVATE, file.get());
}
// As a file is that was written, and then not read for a long time.
Memory file_on_disk(std::size_t size) {
  const Sandbox sandbox;
  const UniqueFd file(
      ::open((sandbox.path() + "/file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (::ftruncate(file.get(), static_cast<off_t>(size)) != 0) std::abort();
  Memory(size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get()).fill();
  ::fsync(file.get());
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  return Memory(size, PROT_READ, MAP_PRIVATE, file.get());
}

constexpr Kind kKinds[] = {
    {"never touched", never_touched, false},
    {"shared and never touched", shared, false},
    {"given up", given_up, false},
    {"touched here and there", touched_here_and_there, false},
    {"reclaimed", reclaimed, true},
    {"a file with a hole", file_with_a_hole, false},
    {"a file on a disk", file_on_disk, true},
};

// Around what travels in another way, or is read in one go or two.
constexpr std::size_t kSizes[] = {4096,   5000,    16'384,    16'385,
                                  20'480, 100'000, 1'048'577, 3'000'000};

void expect_echo_from_and_to(int door, const Kind& kind, std::size_t size) {
  const Memory request = kind.make(size);
  const Memory room(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  door_arg_t arguments{};
  arguments.data_ptr = request.begin();
  arguments.data_size = size;
  arguments.rbuf = room.begin();
  arguments.rsize = size;
  ASSERT_EQ(ERROR_OF(::door_call(door, &arguments)), 0) << std::strerror(errno);
  ASSERT_EQ(arguments.data_ptr, room.begin());
  ASSERT_EQ(arguments.data_size, size);
  const Memory expected(size);
  if (kind.filled) expected.fill();
  ASSERT_EQ(std::memcmp(room.begin(), expected.begin(), size), 0);
}

TEST(DoorMemory, RequestsAndResultsAreRightWhereverTheirPagesAre) {
  const int door = ::door_create(echo, nullptr, 0);
  in_server_and_client([&] {
    for (const Kind& kind : kKinds)
      for (const std::size_t size : kSizes) {
        SCOPED_TRACE(std::string(kind.name) + ", " + std::to_string(size) + " bytes");
        expect_echo_from_and_to(door, kind, size);
      }
  });
}

}  // namespace
}  // namespace farcall::door::test
