// SPDX-License-Identifier: Apache-2.0
//
// Ends that another process, or another program, makes of descriptors; and descriptors that are
// none.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <thread>

#include "c/pipe.hpp"
#include "farcall/ring.hpp"
#include "farcall/socket.hpp"
#include "harness/lingering.hpp"

namespace farcall::c::test {
namespace {

using Descriptors = std::array<int, FARCALL_PIPE_DESCRIPTORS>;

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

Descriptors descriptors_of(const End& end) {
  Descriptors all{};
  EXPECT_EQ(farcall_pipe_descriptors(end.get(), all.data()), 0);
  for (const int fd : all) EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
  return all;
}
Descriptors duplicates_of(const End& end) {
  Descriptors all = descriptors_of(end);
  for (int& fd : all) fd = ::dup(fd);
  return all;
}
End adopt(const Descriptors& descriptors, int expected = 0) {
  farcall_pipe* end = nullptr;
  EXPECT_EQ(farcall_pipe_adopt(descriptors.data(), nullptr, &end), expected);
  return End(end);
}

TEST(CPipeAdopt, AnotherProgramMayHaveAnEnd) {
  Ends pipe;
  const Descriptors theirs = duplicates_of(pipe.other);  // and not close-on-exec
  Child child([&] {
    std::array<std::string, 5> texts{ADOPTER};
    std::array<char*, 6> arguments{texts[0].data()};
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      texts[i + 1] = std::to_string(theirs[i]);
      arguments[i + 1] = texts[i + 1].data();
    }
    ::execv(ADOPTER, arguments.data());
    ::_exit(99);
  });
  pipe.other.reset();
  for (const int fd : theirs) ::close(fd);
  EXPECT_EQ(send(pipe.one, "over and back"), 0);
  EXPECT_EQ(receive(pipe.one), "over and back");
  EXPECT_EQ(send(pipe.one, ""), 0);
  EXPECT_EQ(receive(pipe.one), "");
  EXPECT_EQ(farcall_pipe_finish(pipe.one.get()), 0);
  EXPECT_EQ(receive(pipe.one), "EPIPE") << "the program closes its end";
  const int status = child.join();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), EPIPE);
}

TEST(CPipeAdopt, TheDescriptorsBecomeTheEnds) {
  Ends pipe;
  const Descriptors duplicates = duplicates_of(pipe.other);
  End adopted = adopt(duplicates);
  pipe.other.reset();
  for (const int fd : duplicates) EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(send(pipe.one, "text"), 0);
  EXPECT_EQ(receive(adopted), "text");
  adopted.reset();
  for (const int fd : duplicates) EXPECT_FALSE(is_open(fd));
  EXPECT_EQ(receive(pipe.one), "EPIPE");
}

TEST(CPipeAdopt, WhatWasAskedForItsDescriptorsIsClosedForItsProcessAlone) {
  Ends pipe;
  const Descriptors duplicates = duplicates_of(pipe.other);
  pipe.other.reset();
  EXPECT_EQ(receive(pipe.one, 0), "EAGAIN");
  const End adopted = adopt(duplicates);
  EXPECT_EQ(send(adopted, "alive"), 0);
  EXPECT_EQ(receive(pipe.one), "alive");
}

TEST(CPipeAdopt, AUsedEndHasNoneToGive) {
  const Ends pipe;
  EXPECT_EQ(send(pipe.one, "used"), 0);
  Descriptors all{};
  EXPECT_EQ(farcall_pipe_descriptors(pipe.one.get(), all.data()), -EBUSY);
}

// Each of them has one thing wrong; the descriptors stay open, and the victim goes on.
class CPipeHostile : public testing::Test {
 protected:
  void refuses(std::size_t which, int instead, int error = EPROTO) {
    Descriptors wrong = duplicates_of(pipe_.other);
    const int before = std::exchange(wrong[which], instead);
    const std::size_t open = open_descriptors();
    const long mapped = mappings();
    adopt(wrong, -error);
    EXPECT_EQ(open_descriptors(), open);
    EXPECT_EQ(mappings(), mapped);
    wrong[which] = before;
    const End adopted = adopt(wrong);
    EXPECT_NE(adopted, nullptr) << "the others are as they were";
    if (instead >= 0) ::close(instead);
  }
  static int memory(std::size_t size, int seals) {
    const int fd = ::memfd_create("hostile", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(fd, static_cast<off_t>(size)), 0);
    if (seals != 0) {
      EXPECT_EQ(::fcntl(fd, F_ADD_SEALS, seals), 0);
    }
    return fd;
  }
  static constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

  Ends pipe_;
};

TEST_F(CPipeHostile, MemoryThatCanShrink) {
  refuses(0, memory(4096 + 262'144, 0));
  refuses(2, memory(4096 + 262'144, F_SEAL_GROW | F_SEAL_SEAL));
}
TEST_F(CPipeHostile, MemoryOfNoRingsSize) {
  refuses(0, memory(4096, kSealed));
  refuses(2, memory(3 * 4096, kSealed));
}
TEST_F(CPipeHostile, MemoryThatHoldsNoRing) { refuses(2, memory(4096 + 262'144, kSealed)); }

// Sparse: it costs its maker nothing, and would cost who touches it all there is.
TEST_F(CPipeHostile, MoreMemoryThanIsPermitted) {
  refuses(0, memory(4096 + (std::size_t{8} << 30), kSealed));
  Descriptors proper = duplicates_of(pipe_.other);
  const farcall_pipe_options few = options_of(4096);
  farcall_pipe* end = nullptr;
  EXPECT_EQ(farcall_pipe_adopt(proper.data(), &few, &end), -EPROTO);
  adopt(proper);
}
TEST_F(CPipeHostile, WhatIsNoMemory) {
  refuses(0, ::open("/dev/zero", O_RDWR | O_CLOEXEC));
  refuses(2, ::eventfd(0, EFD_CLOEXEC));
}
// Or such as cannot be mapped as an end maps it.
TEST_F(CPipeHostile, MemoryThatCannotBeWritten) {
  const Descriptors proper = duplicates_of(pipe_.other);
  for (const std::size_t which : {std::size_t{0}, std::size_t{2}}) {
    const std::string path = "/proc/self/fd/" + std::to_string(proper[which]);
    refuses(which, ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    refuses(which, memory(4096 + 262'144, kSealed | F_SEAL_WRITE));
  }
  for (const int fd : proper) ::close(fd);
}
TEST_F(CPipeHostile, WhatIsNoSocketOfThisKind) {
  refuses(1, ::eventfd(0, EFD_CLOEXEC));
  refuses(3, ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  refuses(3, ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  refuses(1, memory(4096, kSealed));
}
TEST_F(CPipeHostile, WhatIsNoDescriptor) {
  refuses(0, -1, EBADF);
  refuses(3, 1'000'000, EBADF);
}
TEST_F(CPipeHostile, OneDescriptorTwice) {
  Descriptors twice = duplicates_of(pipe_.other);
  const int before = std::exchange(twice[3], twice[1]);
  adopt(twice, -EINVAL);
  EXPECT_TRUE(is_open(twice[1]));
  twice[3] = before;
  adopt(twice);
}

TEST_F(CPipeHostile, ASocketThatIsNoPipes) {
  refuses(1, ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  refuses(3, ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

// Whoever has made a pipe says which sockets are its own. A listener tells of no death.
TEST_F(CPipeHostile, AListenerThatIsSaidToBeThePipes) {
  const int ring = descriptors_of(pipe_.other)[0];
  constexpr off_t kSocket = offsetof(RingControl, pair) + offsetof(RingPair, writer_socket);
  std::uint64_t before = 0;
  ASSERT_EQ(::pread(ring, &before, sizeof before, kSocket), 8);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un nameless{.sun_family = AF_UNIX, .sun_path = {}};
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&nameless), sizeof(sa_family_t)), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  const std::uint64_t its_own = socket_cookie(listener);
  ASSERT_EQ(::pwrite(ring, &its_own, sizeof its_own, kSocket), 8);
  Descriptors wrong = duplicates_of(pipe_.other);
  const int right = std::exchange(wrong[1], listener);
  adopt(wrong, -EPROTO);
  ASSERT_EQ(::pwrite(ring, &before, sizeof before, kSocket), 8);
  wrong[1] = right;
  adopt(wrong);
  ::close(listener);
}

// Each part is as it must be, but not with the others.
TEST_F(CPipeHostile, APartOfAnotherPipe) {
  const Ends another;
  const Descriptors parts = descriptors_of(another.other);
  for (std::size_t which = 0; which < parts.size(); ++which) refuses(which, ::dup(parts.at(which)));
}
TEST_F(CPipeHostile, APartOfTheOtherEnd) {
  const Descriptors parts = descriptors_of(pipe_.one);
  for (std::size_t which = 0; which < parts.size(); ++which) refuses(which, ::dup(parts.at(which)));
}
TEST_F(CPipeHostile, HalvesOfTwoPipes) {
  const Ends another;
  const Descriptors parts = descriptors_of(another.other);
  Descriptors mixed = duplicates_of(pipe_.other);
  const Descriptors before = mixed;
  mixed[0] = parts[0];
  mixed[1] = parts[1];
  adopt(mixed, -EPROTO);
  adopt(before);
}
TEST_F(CPipeHostile, TheWrongOrder) {
  const Descriptors right = duplicates_of(pipe_.other);
  Descriptors wrong = right;
  std::swap(wrong[1], wrong[3]);
  adopt(wrong, -EPROTO);
  adopt({right[2], right[3], right[0], right[1]}, -EPROTO);
  adopt(right);
}
TEST_F(CPipeHostile, APipeOfTheOtherKind) {
  const Descriptors right = duplicates_of(pipe_.other);
  const farcall_pipe_options bytes = options_of(0, FARCALL_WAIT_ADAPTIVE, FARCALL_PIPE_BYTES);
  farcall_pipe* end = nullptr;
  EXPECT_EQ(farcall_pipe_adopt(right.data(), &bytes, &end), -EPROTOTYPE);
  EXPECT_EQ(send(adopt(right), "still there"), 0);
  EXPECT_EQ(receive(pipe_.one), "still there");
}

// What a peer writes that breaks the ring, seen by who receives.
// What comes by a lifeline may take as long to close as the peer likes.
TEST_F(CPipeHostile, WhatTheOtherEndSendsBesideTheMessagesHoldsUpNobody) {
  const Descriptors theirs = descriptors_of(pipe_.other);
  const auto leave_what_lingers = [&] {
    for (const int lifeline : {theirs[1], theirs[3]}) {
      const UniqueFd slow = lingering(20);
      send_fd_message(lifeline, {}, std::array{slow.get()});
    }
  };
  leave_what_lingers();
  const std::int64_t before = monotonic_ns();
  char into = 0;
  EXPECT_EQ(farcall_pipe_receive(pipe_.one.get(), &into, 1, nullptr, 50'000'000), -ETIMEDOUT);
  leave_what_lingers();
  EXPECT_EQ(farcall_pipe_poll_begin(pipe_.one.get()), 1);
  farcall_pipe_poll_end(pipe_.one.get());
  EXPECT_EQ(farcall_pipe_send_poll_begin(pipe_.one.get()), 0);
  farcall_pipe_send_poll_end(pipe_.one.get());
  leave_what_lingers();
  pipe_.one.reset();
  EXPECT_LT(monotonic_ns() - before, 10'000'000'000);
}

class CPipeScribble : public testing::TestWithParam<std::pair<std::uint64_t, std::uint64_t>> {};

TEST_P(CPipeScribble, IsNoticed) {
  Ends pipe(4096);
  const int file = descriptors_of(pipe.other)[0];
  const auto [header, total] = GetParam();
  ASSERT_EQ(::pwrite(file, &total, 8, 4096 + 8), 8);
  ASSERT_EQ(::pwrite(file, &header, 8, 4096), 8);
  char text[5000];
  EXPECT_EQ(farcall_pipe_receive(pipe.one.get(), text, sizeof text, nullptr, kLong), -EPROTO);
  EXPECT_EQ(farcall_pipe_receive(pipe.one.get(), text, sizeof text, nullptr, kLong), -EPROTO);
  // The other way is whole.
  EXPECT_EQ(send(pipe.one, "all the same"), 0);
  EXPECT_EQ(receive(pipe.other), "all the same");
}

using message_ring::kPiece;
using message_ring::kReady;
INSTANTIATE_TEST_SUITE_P(C, CPipeScribble,
                         testing::Values(std::pair{kReady | 2000U, 0U},       // longer than a piece
                                         std::pair{kReady << 8, 0U},          // unknown
                                         std::pair{kReady | kPiece, 0U},      // without a size
                                         std::pair{kReady | kPiece | 8, 9U},  // nothing but a size
                                         std::pair{kReady | kPiece | 20, 12U}));  // not a long one

TEST(CPipeHostileLater, APieceThatDoesNotBelongToItsMessageIsNoticed) {
  for (const std::uint64_t second : {kReady | 20, kReady | kPiece, kReady | kPiece | 500}) {
    Ends pipe(4096);
    const int file = descriptors_of(pipe.other)[0];
    const std::uint64_t total = 100;
    const std::uint64_t first = kReady | kPiece | 28;
    ASSERT_EQ(::pwrite(file, &total, 8, 4096 + 8), 8);
    ASSERT_EQ(::pwrite(file, &first, 8, 4096), 8);
    char text[200];
    EXPECT_EQ(farcall_pipe_receive(pipe.one.get(), text, sizeof text, nullptr, 0), -EAGAIN);
    ASSERT_EQ(::pwrite(file, &second, 8, 4096 + 64), 8);
    EXPECT_EQ(farcall_pipe_receive(pipe.one.get(), text, sizeof text, nullptr, kLong), -EPROTO);
    EXPECT_EQ(farcall_pipe_receive(pipe.one.get(), text, sizeof text, nullptr, 0), -EPROTO);
    // Whatever stands there now, nobody is to poll for more.
    const std::uint64_t nothing = 0;
    ASSERT_EQ(::pwrite(file, &nothing, 8, 4096 + 64), 8);
    EXPECT_EQ(farcall_pipe_poll_begin(pipe.one.get()), 0);
    farcall_pipe_poll_end(pipe.one.get());
  }
}

TEST(CPipeHostileLater, AReaderThatWasNeverThereIsNoticed) {
  const Ends pipe(4096);
  const int file = descriptors_of(pipe.other)[2];
  while (send(pipe.one, "full", 0) == 0) {
  }
  const std::uint64_t head = 1 << 20;
  ASSERT_EQ(::pwrite(file, &head, 8, 512), 8);
  EXPECT_EQ(send(pipe.one, "more", kLong), -EPROTO);
  EXPECT_EQ(send(pipe.one, "more", 0), -EPROTO);
}

}  // namespace
}  // namespace farcall::c::test
