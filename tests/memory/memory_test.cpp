// SPDX-License-Identifier: Apache-2.0
#include "farcall/memory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <string>
#include <thread>

#include "farcall/error.hpp"
#include "memory/frequent_signals.hpp"

namespace farcall {
namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

int adopt_error(UniqueFd fd) {
  try {
    SharedMemory::adopt(std::move(fd));
  } catch (const SystemError& error) {
    return error.code().value();
  }
  return 0;
}

// Permits files of any size at first, as far as this process may.
class FileLimit {
 public:
  FileLimit() { ::getrlimit(RLIMIT_FSIZE, &before_); }
  ~FileLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;
  void set(rlim_t bytes) const {
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  void lift() const { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

int create_error() {
  try {
    (void)SharedMemory::create(8192, "test");
  } catch (const SystemError& error) {
    return error.code().value();
  }
  return 0;
}

// The kernel says EINVAL of a number that is beyond the limit.
TEST(UniqueFd, IsNotDuplicatedWhereNoDescriptorIsPermitted) {
  const UniqueFd one(::dup(0));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  for (const rlim_t most : {0U, 3U}) {
    const rlimit none{.rlim_cur = most, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    std::exception_ptr thrown;
    try {
      (void)one.duplicate();
    } catch (...) {
      thrown = std::current_exception();  // sanitizers need descriptors to look at it
    }
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    ASSERT_TRUE(thrown) << "duplicated";
    try {
      std::rethrow_exception(thrown);
    } catch (const SystemError& error) {
      EXPECT_EQ(error.code().value(), EMFILE);
    }
  }
}

TEST(UniqueFd, ClosesWhatItOwnsOnce) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  {
    UniqueFd first(ends[0]);
    UniqueFd second(std::move(first));
    EXPECT_EQ(second.get(), ends[0]);
    EXPECT_TRUE(is_open(ends[0]));
    second = UniqueFd(ends[1]);
    EXPECT_FALSE(is_open(ends[0]));
  }
  EXPECT_FALSE(is_open(ends[1]));
}

TEST(UniqueFd, KeepsErrnoWhileClosing) {
  errno = EAGAIN;
  { const UniqueFd bad(12345); }
  EXPECT_EQ(errno, EAGAIN);
}

TEST(UniqueFd, DuplicatesShareTheFileAndCloseOnExec) {
  const SharedMemory memory = SharedMemory::create(1);
  const UniqueFd original(::fcntl(memory.fd(), F_DUPFD, 0));
  const UniqueFd copy = original.duplicate();
  EXPECT_NE(copy.get(), original.get());
  EXPECT_EQ(::fcntl(copy.get(), F_GETFD), FD_CLOEXEC);
}

// Rather than that the kernel kills somebody for it.
TEST(SharedMemory, OfMoreThanThereIsIsRefused) {
  for (const std::size_t size : {std::size_t{1} << 45, SIZE_MAX}) {
    try {
      (void)SharedMemory::create(size);
      ADD_FAILURE() << size;
    } catch (const SystemError& error) {
      EXPECT_EQ(error.code().value(), ENOMEM);
    }
  }
}

TEST(SharedMemory, IsZeroedWholePagesThatNobodyCanResize) {
  const SharedMemory memory = SharedMemory::create(page_size() + 1);
  EXPECT_EQ(memory.size(), 2 * page_size());
  EXPECT_EQ(::ftruncate(memory.fd(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::ftruncate(memory.fd(), static_cast<off_t>(8 * page_size())), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_EQ(::fcntl(memory.fd(), F_GETFD), FD_CLOEXEC);
}

TEST(SharedMemory, OfZeroBytesIsMisuse) { EXPECT_THROW(SharedMemory::create(0), MisuseError); }

TEST(SharedMemory, AdoptsWhatIsSealedAndTellsItsRealSize) {
  SharedMemory memory = SharedMemory::create(3 * page_size());
  EXPECT_EQ(SharedMemory::adopt(std::move(memory).release()).size(), 3 * page_size());
}

TEST(SharedMemory, RefusesMemoryThatCouldShrinkUnderTheReader) {
  UniqueFd unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 4096), 0);
  EXPECT_EQ(adopt_error(unsealed.duplicate()), EPERM);
  // Sealed against shrinking only, and not against unsealing by further seals.
  ASSERT_EQ(::fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(adopt_error(std::move(unsealed)), EPERM);
}

TEST(SharedMemory, RefusesDescriptorsOfOtherKinds) {
  EXPECT_EQ(adopt_error(UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC))), EPERM);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd other(ends[1]);
  EXPECT_EQ(adopt_error(UniqueFd(ends[0])), EPERM);
  EXPECT_EQ(adopt_error(UniqueFd()), EPERM);
}

// Of which there may be fewer than their maker says.
TEST(SharedMemory, RefusesHugePages) {
  UniqueFd fd(::memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!fd) GTEST_SKIP() << "no huge pages here";
  ASSERT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_EQ(adopt_error(std::move(fd)), EPERM);
}

// Writes a run that crosses the end of the body and finds it at both places.
void expect_body_twice(std::byte* base, std::size_t head, std::size_t body) {
  std::byte* data = base + head;
  std::memset(data + body - 8, 0x5a, 16);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(data[i], std::byte{0x5a});
    EXPECT_EQ(data[2 * body - 1 - i], std::byte{0x5a});
  }
  EXPECT_EQ(base[head - 1], std::byte{0});
}

TEST(MapTwice, ShowsAFilesBodyTwiceInARow) {
  const SharedMemory memory = SharedMemory::create(3 * page_size());
  const Mapping map = map_twice(memory.fd(), page_size(), 2 * page_size(), Access::read_write);
  EXPECT_EQ(map.size(), 5 * page_size());
  expect_body_twice(map.data(), page_size(), 2 * page_size());
}

TEST(MapTwice, ShowsAnonymousMemoryTwiceInARow) {
  const Mapping map =
      map_twice(Mapping::anonymous_shared(2 * page_size()), page_size(), page_size());
  expect_body_twice(map.data(), page_size(), page_size());
}

// As with rings, whose parts are of 4096 bytes, where a kernel has larger pages.
TEST(MapTwice, SaysWhatPartsThatAreNoWholePagesLack) {
  const std::size_t part = page_size() / 2;
  const auto memory = SharedMemory::create(2 * page_size());
  const auto expect_pages_named = [](const auto& map) {
    try {
      (void)map();
      ADD_FAILURE() << "mapped";
    } catch (const SystemError& error) {
      EXPECT_EQ(error.code().value(), ENOTSUP);
      EXPECT_NE(std::string(error.what()).find("pages of " + std::to_string(page_size())),
                std::string::npos)
          << error.what();
    }
  };
  expect_pages_named([&] { return map_twice(memory.fd(), part, part, Access::read_write); });
  expect_pages_named([&] { return map_twice(memory.fd(), 2 * part, part, Access::read_write); });
  expect_pages_named([&] { return map_twice(memory.fd(), part, 2 * part, Access::read_write); });
  expect_pages_named([&] { return map_twice(Mapping::anonymous_shared(2 * part), part, part); });
}

TEST(MapTwiceDeathTest, KeepsAReaderFromWriting) {
  const SharedMemory memory = SharedMemory::create(2 * page_size());
  const Mapping map = map_twice(memory.fd(), page_size(), page_size(), Access::read_only);
  map.data()[0] = std::byte{1};  // the head is for both
  EXPECT_DEATH(map.data()[page_size()] = std::byte{1}, "");
}

TEST(MapTwice, LeavesNothingMappedBehind) {
  const auto mappings = [] {
    std::size_t lines = 0;
    UniqueFd maps(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
    char block[4096];
    for (ssize_t n; (n = ::read(maps.get(), block, sizeof block)) > 0;)
      for (ssize_t i = 0; i < n; ++i) lines += block[i] == '\n';
    return lines;
  };
  const SharedMemory memory = SharedMemory::create(2 * page_size());
  { const Mapping warm = map_twice(memory.fd(), page_size(), page_size(), Access::read_write); }
  const std::size_t before = mappings();
  for (int i = 0; i < 50; ++i) {
    const Mapping map = map_twice(memory.fd(), page_size(), page_size(), Access::read_write);
    const Mapping other =
        map_twice(Mapping::anonymous_shared(2 * page_size()), page_size(), page_size());
  }
  EXPECT_LE(mappings(), before + 2);  // the allocator may map something of its own
}

TEST(SharedMemory, IsMadeWhateverSignalsCome) {
  const test::FrequentSignals signals;
  for (int i = 0; i < 1000; ++i) EXPECT_NO_THROW(SharedMemory::create(135'168)) << i;
  // This takes longer than it is from one signal to the next.
  const SharedMemory large = SharedMemory::create(std::size_t{8} << 20);
  struct stat status {};
  ASSERT_EQ(::fstat(large.fd(), &status), 0);
  EXPECT_EQ(status.st_blocks * 512, std::int64_t{8} << 20);
}

// Has the kernel refuse to allocate more than `most` bytes at once, in the calling thread.
bool forbid_allocating(std::uint32_t most, unsigned error) {
  const std::array filter{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 3),
      // The lower half, of what is no longer.
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[3])),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, most, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{.len = filter.size(), .filter = const_cast<sock_filter*>(filter.data())};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Where signals come faster than the whole can be allocated.
TEST(SharedMemory, ThatIsInterruptedAsAWholeIsMadeInPieces) {
  constexpr std::size_t kSize = std::size_t{8} << 20;
  std::thread thread([] {
    ASSERT_TRUE(forbid_allocating(1 << 20, EINTR));
    const SharedMemory made = SharedMemory::create(kSize);
    struct stat status {};
    ASSERT_EQ(::fstat(made.fd(), &status), 0);
    EXPECT_EQ(status.st_blocks * 512, std::int64_t{kSize});
  });
  thread.join();
}

// Nobody looks for a disk that is full.
TEST(SharedMemory, ThatTheKernelHasNoRoomForIsALackOfMemory) {
  std::thread thread([] {
    ASSERT_TRUE(forbid_allocating(0, ENOSPC));
    EXPECT_EQ(create_error(), ENOMEM);
  });
  thread.join();
}

void* close_when_cancelled(void* fd) {
  int before = 0;
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  ::pthread_cancel(::pthread_self());
  ::pthread_setcancelstate(before, nullptr);
  static_cast<UniqueFd*>(fd)->reset();
  ::pthread_testcancel();
  return nullptr;
}

TEST(UniqueFd, ClosingIsNoPointOfCancellation) {
  UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int number = fd.get();
  pthread_t thread;
  ASSERT_EQ(::pthread_create(&thread, nullptr, close_when_cancelled, &fd), 0);
  void* result = nullptr;
  ASSERT_EQ(::pthread_join(thread, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
  EXPECT_FALSE(is_open(number));
}

// The kernel ends who makes a larger file than it may (SIGXFSZ).
TEST(SharedMemory, WhoMayMakeNoFilesIsToldAndNotEnded) {
  const FileLimit limit;
  limit.set(4096);
  EXPECT_EQ(create_error(), EFBIG);
  try {
    (void)SharedMemory::create(8192);
    ADD_FAILURE() << "made";
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find("ulimit -f"), std::string::npos) << error.what();
  }
  limit.lift();
  EXPECT_EQ(create_error(), 0);
}

// Of more than there is nothing is tried: the kernel would end somebody to fill it.
TEST(SharedMemory, SomewhatMoreThanThereIsIsRefusedBeforeItIsMade) {
  const FileLimit limit;
  limit.set(4096);
  struct sysinfo machine {};
  ASSERT_EQ(::sysinfo(&machine), 0);
  const std::size_t all = machine.totalram * machine.mem_unit;
  const auto error_of = [](std::size_t size) {
    try {
      (void)SharedMemory::create(size);
    } catch (const SystemError& error) {
      return error.code().value();
    }
    return 0;
  };
  EXPECT_EQ(error_of(all + all / 8), ENOMEM);
  EXPECT_EQ(error_of(all / 64), EFBIG) << "that much there is, but not for a file";
}

TEST(SharedMemory, ALimitOfFilesMayChangeAtAnyTime) {
  const FileLimit limit;
  std::atomic<bool> stop{false};
  std::thread changes([&] {
    while (!stop) {
      limit.set(4096);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      limit.lift();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  int refused = 0;
  int made = 0;
  for (int i = 0; i < 100'000 && (i < 2'000 || refused == 0 || made == 0); ++i) {
    const int error = create_error();
    EXPECT_TRUE(error == 0 || error == EFBIG) << error;
    ++(error == 0 ? made : refused);
  }
  stop = true;
  changes.join();
  EXPECT_GT(made, 0);
  EXPECT_GT(refused, 0);
}

// What the program itself has blocked and not yet looked at stays its own.
TEST(SharedMemory, ASignalOfTheProgramsIsLeftWaiting) {
  sigset_t only{};
  sigset_t before{};
  ::sigaddset(&only, SIGXFSZ);
  ::pthread_sigmask(SIG_BLOCK, &only, &before);
  const FileLimit limit;
  limit.set(4096);
  EXPECT_EQ(create_error(), EFBIG);
  sigset_t waiting{};
  ::sigpending(&waiting);
  EXPECT_EQ(::sigismember(&waiting, SIGXFSZ), 0);
  ::pthread_kill(::pthread_self(), SIGXFSZ);
  EXPECT_EQ(create_error(), EFBIG);
  const timespec at_once{};
  EXPECT_EQ(::sigtimedwait(&only, nullptr, &at_once), SIGXFSZ);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Who has been told why a file could not grow is told so behind it, too.
TEST(FileSizeGuard, KeepsErrno) {
  errno = EFBIG;
  { const FileSizeGuard guard; }
  EXPECT_EQ(errno, EFBIG);
}

}  // namespace
}  // namespace farcall
