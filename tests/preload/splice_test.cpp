// SPDX-License-Identifier: Apache-2.0
//
// Bytes that splice() moves from a connection to a pipe.
// These tests run as those of contract_test.cpp do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>

#include "children.hpp"
#include "farcall/memory.hpp"
#include "preload/real.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

using namespace std::chrono_literals;

TEST(Calls, SplicingDoesNotWaitForRoomWhereItMayNot) {
  const Pair pair;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += static_cast<char>('a' + i % 23);
  ASSERT_EQ(::fcntl(pair.client.get(), F_SETFL, O_NONBLOCK), 0);
  ASSERT_EQ(::fcntl(pair.server.get(), F_SETFL, O_NONBLOCK), 0);
  std::string got;
  std::size_t sent = 0;
  while (got.size() < text.size()) {
    const ssize_t more = ::send(pair.client.get(), text.data() + sent, text.size() - sent, 0);
    if (more > 0) sent += static_cast<std::size_t>(more);
    ssize_t moved;
    // Until there is nothing, or no room.
    while ((moved = ::splice(pair.server.get(), nullptr, in.get(), nullptr, 1 << 20,
                             SPLICE_F_MOVE | SPLICE_F_NONBLOCK)) > 0) {
    }
    ASSERT_EQ(moved, -1);
    ASSERT_EQ(errno, EAGAIN);
    int there = 0;
    ASSERT_EQ(::ioctl(out.get(), FIONREAD, &there), 0);
    std::string part(static_cast<std::size_t>(there), '\0');
    if (there != 0) {
      ASSERT_EQ(::read(out.get(), part.data(), part.size()), there);
    }
    got += part;
  }
  EXPECT_EQ(got, text);
}

// What the flags ask for makes no difference to bytes that are copied.
TEST(Calls, SplicingWithAnyFlagMovesWhatIsThere) {
  const UsedPair pair;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  ASSERT_EQ(::fcntl(pair.server.get(), F_SETFL, O_NONBLOCK), 0);
  constexpr unsigned kFlags[] = {SPLICE_F_GIFT, SPLICE_F_MORE, SPLICE_F_MOVE, SPLICE_F_NONBLOCK};
  for (const unsigned flags : kFlags) {
    pair.put("hello");
    ASSERT_EQ(::splice(pair.server.get(), nullptr, in.get(), nullptr, 5, flags), 5)
        << flags << ": " << errno_name();
    char bytes[5] = {};
    ASSERT_EQ(::read(out.get(), bytes, sizeof bytes), 5);
    EXPECT_EQ(std::string(bytes, 5), "hello");
  }
}

// Others do not know of that: they wait.
TEST(Calls, SplicingFromAUnixStreamDoesNotWaitForBytesWhereItMayNot) {
  const Pair pair;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  const auto option = [&](int name) {
    int value = 0;
    socklen_t size = sizeof value;
    EXPECT_EQ(::getsockopt(pair.server.get(), SOL_SOCKET, name, &value, &size), 0);
    return value;
  };
  const auto splice = [&](unsigned flags) {
    return ::splice(pair.server.get(), nullptr, in.get(), nullptr, 100, flags);
  };
  std::thread later;
  if (option(SO_DOMAIN) == AF_UNIX && option(SO_TYPE) == SOCK_STREAM) {
    EXPECT_EQ(splice(SPLICE_F_NONBLOCK), -1);
    EXPECT_EQ(errno, EAGAIN);
    ASSERT_EQ(::fcntl(in.get(), F_SETFL, O_NONBLOCK), 0);
    EXPECT_EQ(splice(0), -1);
    EXPECT_EQ(errno, EAGAIN);
    EXPECT_EQ(send(pair.client.get(), "hello"), "5");
  } else {
    later = std::thread([&] {
      std::this_thread::sleep_for(20ms);
      EXPECT_EQ(send(pair.client.get(), "hello"), "5");
    });
  }
  EXPECT_EQ(splice(SPLICE_F_NONBLOCK), 5);
  if (later.joinable()) later.join();
}

TEST(Calls, SplicingWaitsForBytesAndTellsTheEnd) {
  Pair pair;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]);
  UniqueFd in(ends[1]);
  const auto splice = [&](std::size_t size) {
    return ::splice(pair.server.get(), nullptr, in.get(), nullptr, size, 0);
  };
  std::thread later([&] {
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(send(pair.client.get(), "hello"), "5");
  });
  EXPECT_EQ(splice(100), 5);
  later.join();
  char bytes[16];
  EXPECT_EQ(::read(out.get(), bytes, sizeof bytes), 5);
  pair.talk(5);
  EXPECT_EQ(send(pair.client.get(), "last"), "4");
  EXPECT_EQ(splice(2), 2);
  off64_t offset = 0;
  EXPECT_EQ(::splice(pair.server.get(), &offset, in.get(), nullptr, 1, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::splice(pair.server.get(), nullptr, pair.server.get(), nullptr, 1, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  pair.client.reset();
  EXPECT_EQ(splice(100), 2);
  EXPECT_EQ(splice(100), 0);
  EXPECT_EQ(::read(out.get(), bytes, sizeof bytes), 4);
}

// More than the pipe takes: the rest stays.
TEST(Calls, SplicingDoesNotWaitForRoomBehindTheFirstBytes) {
  const Pair pair;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  const std::string text(100'000, 'x');
  pair.put(text);
  const ssize_t moved = ::splice(pair.server.get(), nullptr, in.get(), nullptr, text.size(), 0);
  EXPECT_GT(moved, 0);
  EXPECT_LT(moved, std::ssize(text));
}

TEST(Calls, SplicingWithWhatIsNoneOfItsFlagsIsRefused) {
  const Pair pair;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  const UniqueFd file(::memfd_create("file", MFD_CLOEXEC));
  pair.put("hello");
  EXPECT_EQ(::splice(pair.server.get(), nullptr, in.get(), nullptr, 5, 0x100), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::splice(pair.server.get(), nullptr, file.get(), nullptr, 5, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::lseek(file.get(), 0, SEEK_END), 0);
  EXPECT_EQ(receive(pair.server.get()), "hello");
}

TEST(Calls, SplicingIntoAPipeWithoutReaderBreaksIt) {
  const Pair pair;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  EXPECT_EQ(send(pair.client.get(), "hello"), "5");
  out.reset();
  ASSERT_NE(::signal(SIGPIPE, SIG_IGN), SIG_ERR);
  EXPECT_EQ(::splice(pair.server.get(), nullptr, in.get(), nullptr, 5, 0), -1);
  EXPECT_EQ(errno, EPIPE);
  ::signal(SIGPIPE, SIG_DFL);
  EXPECT_EQ(receive(pair.server.get()), "hello");
}

// What comes has no places.
TEST(Calls, SplicingFromAPlaceIsRefusedAlsoAsASentFile) {
  const UsedPair pair;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  pair.put("hello");
  off_t offset = 0;
  ASSERT_EQ(::sendfile(in.get(), pair.server.get(), &offset, 5), -1);
  EXPECT_EQ(errno, ESPIPE);
  EXPECT_EQ(receive(pair.server.get()), "hello");
}

TEST(Calls, SplicingIntoAPipeWithoutReaderRaisesASignalOnce) {
  const UsedPair pair;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  pair.put("hello");
  out.reset();
  sigset_t broken;
  ::sigemptyset(&broken);
  ::sigaddset(&broken, SIGPIPE);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &broken, nullptr), 0);
  EXPECT_EQ(::splice(pair.server.get(), nullptr, in.get(), nullptr, 5, 0), -1);
  EXPECT_EQ(errno, EPIPE);
  const timespec none{};
  EXPECT_EQ(::sigtimedwait(&broken, nullptr, &none), SIGPIPE);
  EXPECT_EQ(::sigtimedwait(&broken, nullptr, &none), -1);
  ASSERT_EQ(::pthread_sigmask(SIG_UNBLOCK, &broken, nullptr), 0);
  EXPECT_EQ(receive(pair.server.get()), "hello");
}

// Whatever the connection has to say then, it says it to the next call.
// A thread that has taken bytes, for which it waits, for a pipe whose room others have used
// meanwhile.
class SplicesIntoAFullPipe {
 public:
  SplicesIntoAFullPipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    out = UniqueFd(ends[0]);
    in_ = UniqueFd(ends[1]);
    thread = std::thread([this] {
      waits_ = kernel(SYS_gettid);
      result = ::splice(pair_.server.get(), nullptr, in_.get(), nullptr, 100, 0);
      error = errno;
    });
    while (waits_ == 0) std::this_thread::yield();
    sleep();
    const std::string block(4096, 'b');
    while (::write(in_.get(), block.data(), block.size()) > 0) {
    }
    pair_.put("bytes");
    sleep();
  }
  UniqueFd out;
  ssize_t result = 0;
  int error = 0;
  std::thread thread;

 private:
  void sleep() const {
    std::this_thread::sleep_for(50ms);
    await_sleep(waits_);
  }
  const Pair pair_;
  UniqueFd in_;
  std::atomic<long> waits_{0};
};

TEST(TcpCalls, SplicingLosesNoBytesWithAThreadThatIsCancelled) {
  if (!preloaded()) return;  // the kernel looks at the pipe once more
  SplicesIntoAFullPipe splices;
  ASSERT_EQ(::pthread_cancel(splices.thread.native_handle()), 0);
  std::string got;
  for (int i = 0; i < 500 && !got.ends_with("bytes"); ++i) {
    std::string part(65536, '\0');
    const ssize_t size = ::read(splices.out.get(), part.data(), part.size());
    if (size > 0) got += part.substr(0, static_cast<std::size_t>(size));
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_TRUE(got.ends_with("bytes"));
  splices.thread.join();
}

TEST(TcpCalls, SplicingBreaksAPipeOnceThatLosesItsReader) {
  if (!preloaded()) return;
  static std::atomic<int> broken;
  broken = 0;
  const auto before = ::signal(SIGPIPE, [](int) { ++broken; });
  SplicesIntoAFullPipe splices;
  splices.out.reset();
  splices.thread.join();
  EXPECT_EQ(splices.result, -1);
  EXPECT_EQ(splices.error, EPIPE);
  EXPECT_EQ(broken, 1);
  ::signal(SIGPIPE, before);
}

TEST(Calls, SplicingSpeaksOfThePipeFirst) {
  Pair pair;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  EXPECT_EQ(send(pair.client.get(), "x"), "1");
  EXPECT_EQ(receive(pair.server.get()), "x");
  ASSERT_EQ(::fcntl(pair.server.get(), F_SETFL, O_NONBLOCK), 0);
  const auto error_of_splice = [&] {
    const ssize_t moved =
        ::splice(pair.server.get(), nullptr, in.get(), nullptr, 5, SPLICE_F_NONBLOCK);
    return moved < 0 ? errno : -static_cast<int>(moved);
  };
  EXPECT_EQ(error_of_splice(), EAGAIN);
  pair.client.reset();
  const std::string page(4096, 'x');
  while (::write(in.get(), page.data(), page.size()) > 0) {
  }
  EXPECT_EQ(error_of_splice(), EAGAIN) << "no room";
  std::string all(1 << 20, '\0');
  ASSERT_GT(::read(out.get(), all.data(), all.size()), 0);
  EXPECT_EQ(error_of_splice(), 0) << "the end";
  out.reset();
  ASSERT_NE(::signal(SIGPIPE, SIG_IGN), SIG_ERR);
  EXPECT_EQ(error_of_splice(), EPIPE);
  ::signal(SIGPIPE, SIG_DFL);
}

// Whoever gets a byte, it comes once.
TEST(Calls, SplicingBesideAnotherReceiverKeepsEachByteOnce) {
  const Pair pair;
  constexpr std::size_t kBytes = 1 << 21;
  std::array<std::size_t, 256> sent{};
  std::array<std::size_t, 256> got{};
  std::thread sender([&] {
    std::string block(700, '\0');
    for (std::size_t all = 0; all < kBytes;) {
      for (std::size_t i = 0; i < block.size(); ++i) {
        block[i] = static_cast<char>((all + i) * 7);
        ++sent[static_cast<unsigned char>(block[i])];
      }
      if (::send(pair.client.get(), block.data(), block.size(), 0) !=
          static_cast<ssize_t>(block.size()))
        return;
      all += block.size();
    }
    EXPECT_EQ(::shutdown(pair.client.get(), SHUT_WR), 0);
  });
  std::array<std::size_t, 256> by_other{};
  std::thread other([&] {
    std::array<unsigned char, 28> bytes{};
    ssize_t size;
    while ((size = ::recv(pair.server.get(), bytes.data(), bytes.size(), 0)) > 0)
      for (ssize_t i = 0; i < size; ++i) ++by_other[bytes[static_cast<std::size_t>(i)]];
  });
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  std::array<unsigned char, 4096> bytes{};
  while (::splice(pair.server.get(), nullptr, in.get(), nullptr, bytes.size(), 0) > 0) {
    ssize_t size;
    while ((size = ::read(out.get(), bytes.data(), bytes.size())) > 0)
      for (ssize_t i = 0; i < size; ++i) ++got[bytes[static_cast<std::size_t>(i)]];
  }
  sender.join();
  other.join();
  for (std::size_t i = 0; i < got.size(); ++i) got[i] += by_other[i];
  EXPECT_EQ(got, sent);
}

}  // namespace
}  // namespace farcall::preload
