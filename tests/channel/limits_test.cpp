// SPDX-License-Identifier: Apache-2.0
//
// The limits that the kernel sets, and what the user is told about them.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <string>
#include <vector>

#include "channel/conformance.hpp"
#include "channel/kernel_limit.hpp"
#include "farcall/channel/file_mapping.hpp"
#include "farcall/channel/memfd.hpp"
#include "farcall/channel/posix_mq.hpp"
#include "farcall/channel/posix_shm.hpp"
#include "farcall/channel/sysv_mq.hpp"
#include "farcall/channel/udp.hpp"
#include "farcall/channel/unix_dgram.hpp"
#include "farcall/channel/unix_seqpacket.hpp"
#include "farcall/error.hpp"
#include "memory/frequent_signals.hpp"

namespace farcall::channel::test {
namespace {

testing::AssertionResult names(const std::string& text, const std::string& what) {
  if (text.find(what) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "no \"" << what << "\" in \"" << text << '"';
}

// What sending one byte too many says.
template <class M>
std::string complaint() {
  auto [reader, writer] = Channel<M>().take_both();
  try {
    writer->send(std::vector<std::byte>(writer->max_message() + 1));
  } catch (const SystemError& error) {
    EXPECT_EQ(error.code().value(), EMSGSIZE);
    EXPECT_TRUE(names(error.what(), std::to_string(writer->max_message())));
    return error.what();
  }
  return "";
}

TEST(Limits, OfMessagesComeWithTheirCause) {
  EXPECT_TRUE(names(complaint<UnixDgram>(), "/proc/sys/net/core/wmem_max"));
  EXPECT_TRUE(names(complaint<UnixSeqpacket>(), "/proc/sys/net/core/wmem_max"));
  EXPECT_TRUE(names(complaint<PosixMq>(), "/proc/sys/fs/mqueue/msgsize_max"));
  EXPECT_TRUE(names(complaint<SysvMq>(), "/proc/sys/kernel/msgmax"));
  EXPECT_TRUE(names(complaint<Udp>(), "UDP"));
}

TEST(Limits, OfQueuesAreTheKernels) {
  EXPECT_EQ(Channel<PosixMq>().take_writer()->max_message(),
            kernel_limit("/proc/sys/fs/mqueue/msgsize_max", 0));
  EXPECT_EQ(Channel<SysvMq>().take_writer()->max_message(),
            kernel_limit("/proc/sys/kernel/msgmax", 0));
}

TEST(Limits, OfMemoryAreNoneOfSignals) {
  const FrequentSignals signals;
  const Options large{.buffer_bytes = std::size_t{16}
                                      << 20};  // takes longer than until the next one
  EXPECT_NO_THROW(Channel<Memfd>{large});
  EXPECT_NO_THROW(Channel<PosixShm>{large});
  EXPECT_NO_THROW(Channel<FileMapping>{large});
}

TEST(Limits, OfDatagramsGrowWithTheBufferAskedFor) {
  const std::size_t allowed = kernel_limit("/proc/sys/net/core/wmem_max", 0);
  auto [child, reader] =
      spawn_writer(Channel<UnixDgram>({.buffer_bytes = allowed}), [](Writer& out) {
        std::vector<std::byte> message(out.max_message());
        Pattern().fill(message);
        return error_of([&] { out.send(message); });
      });
  std::vector<std::byte> into(2 * allowed);
  const auto size = reader->receive(into);
  // A kernel whose memory is in small pieces may have none for a message that large.
  if (child.wait().code == ENOBUFS) GTEST_SKIP() << "the kernel has no memory for the message";
  ASSERT_TRUE(size);
  EXPECT_GE(*size, std::min(allowed, std::size_t{1} << 20));
  EXPECT_TRUE(Pattern().check({into.data(), *size}));
}

// Runs in a child, which cannot have its own limit raised again.
template <class Body>
void with_queue_limit(rlim_t bytes, Body body) {
  Subprocess child([&] {
    const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
    require(::setrlimit(RLIMIT_MSGQUEUE, &limit) == 0, "a lower limit");
    body();
    return 0;
  });
  EXPECT_EQ(child.wait().describe(), "exited with 0");
}

TEST(Limits, OfAllQueuesTogetherMakeAQueueShorter) {
  const std::size_t longest = kernel_limit("/proc/sys/fs/mqueue/msgsize_max", 8192);
  with_queue_limit(4 * longest, [longest] {
    auto [reader, writer] = Channel<PosixMq>().take_both();
    require(writer->max_message() == longest, "messages as long as ever");
    writer->send(bytes_of("a"));
    std::vector<std::byte> into(8);
    require(reader->receive(into) == 1, "a message");
  });
}

TEST(Limits, OfAllQueuesTogetherAreNamedWhenUsedUp) {
  with_queue_limit(100, [] {
    std::string text;
    try {
      Channel<PosixMq> channel;
    } catch (const SystemError& error) {
      require(error.code().value() == EMFILE, "EMFILE");
      text = error.what();
    }
    require(text.find("RLIMIT_MSGQUEUE") != std::string::npos, "the limit's name in: " + text);
  });
}

}  // namespace
}  // namespace farcall::channel::test
