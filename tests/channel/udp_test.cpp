// SPDX-License-Identifier: Apache-2.0
//
// What makes UDP reliable on one machine.
#include "farcall/channel/udp.hpp"

#include <gtest/gtest.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "channel/conformance.hpp"
#include "channel/lifeline.hpp"
#include "channel/loopback.hpp"
#include "channel/udp_window.hpp"

namespace farcall::channel::test {
namespace {

// A reader whose writer is the test itself.
struct HandMade {
  HandMade() {
    Handles handles = Udp::create({});
    socket = std::move(handles.writer.message.descriptors[0]);
    lifeline.emplace(std::move(handles.writer.message.descriptors[1]));
    reader = Udp::open_reader(std::move(handles.reader), {});
  }
  void send(std::uint32_t sequence, std::string_view text) {
    std::array<iovec, 2> pieces{
        iovec{.iov_base = &sequence, .iov_len = sizeof sequence},
        iovec{.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()}};
    require(::writev(socket.get(), pieces.data(), 2) > 0, "a datagram sent");
  }
  std::string receive() {
    std::vector<std::byte> into(100);
    const auto size = reader->receive(into);
    return size ? text_of({into.data(), *size}) : "end";
  }
  UniqueFd socket;
  std::optional<Lifeline> lifeline;
  std::unique_ptr<Reader> reader;
};

int bind_to(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const UniqueFd stranger(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return ::bind(stranger.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ? 0
                                                                                            : errno;
}

// What the other would send goes to whoever has the port, and what he sends is believed.
TEST(Udp, NobodyCanTakeThePortOfAnEndThatHasGone) {
  for (const bool writer_goes : {false, true}) {
    Handles handles = Udp::create({});
    Handle& gone = writer_goes ? handles.writer : handles.reader;
    const std::uint16_t port = ntohs(local_address(gone.message.descriptors[0].get()).sin_port);
    gone = Handle();
    std::unique_ptr<Reader> reader;
    std::unique_ptr<Writer> writer;
    if (writer_goes)
      reader = Udp::open_reader(std::move(handles.reader), {});
    else
      writer = Udp::open_writer(std::move(handles.writer), {});
    EXPECT_EQ(bind_to(port), EADDRINUSE);
    if (writer) {
      EXPECT_EQ(error_of([&] { writer->send(bytes_of("secret")); }), EPIPE);
    }
  }
}

TEST(Udp, PutsDatagramsThatOvertookOthersInOrder) {
  HandMade channel;
  channel.send(2, "c");
  channel.send(1, "b");
  channel.send(1, "b again");
  channel.send(0, "a");
  channel.send(3, "d");
  channel.lifeline->send({.kind = Note::finished, .value = 4});
  EXPECT_EQ(channel.receive(), "a");
  EXPECT_EQ(channel.receive(), "b");
  EXPECT_EQ(channel.receive(), "c");
  EXPECT_EQ(channel.receive(), "d");
  EXPECT_EQ(channel.receive(), "end");
}

TEST(Udp, WaitsForADatagramThatIsOvertakenByTheEnd) {
  std::string got;
  // It is waited for a second, in which a busy machine may not come to send it.
  for (int tries = 0; tries < 10 && got.empty(); ++tries) {
    HandMade channel;
    channel.lifeline->send({.kind = Note::finished, .value = 1});
    const std::int64_t start = monotonic_ns();
    std::int64_t sent_at = 0;
    std::thread late([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      channel.send(0, "a");
      sent_at = monotonic_ns();
    });
    const int error = error_of([&] {
      const std::string first = channel.receive();
      got = first + channel.receive();
    });
    late.join();
    EXPECT_TRUE(error == 0 || (error == ENOBUFS && sent_at - start > 900'000'000)) << error;
  }
  EXPECT_EQ(got, "aend");
}

// It does not look as if others had overtaken something, which would be missed after a second.
TEST(Udp, ForgetsADatagramThatComesOnceMore) {
  HandMade channel;
  channel.send(0, "a");
  channel.send(0, "a again");
  EXPECT_EQ(channel.receive(), "a");
  const std::jthread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    channel.send(1, "b");
    channel.lifeline->send({.kind = Note::finished, .value = 2});
  });
  EXPECT_EQ(channel.receive(), "b");
  EXPECT_EQ(channel.receive(), "end");
}

TEST(Udp, ReportsADatagramThatNeverComes) {
  HandMade channel;
  channel.send(0, "a");
  channel.send(2, "c");
  EXPECT_EQ(channel.receive(), "a");
  EXPECT_EQ(error_of([&] { channel.receive(); }), ENOBUFS);
}

TEST(Udp, ReportsALastDatagramThatNeverComes) {
  HandMade channel;
  channel.send(0, "a");
  channel.lifeline->send({.kind = Note::finished, .value = 2});
  EXPECT_EQ(channel.receive(), "a");
  EXPECT_EQ(error_of([&] { channel.receive(); }), ENOBUFS);
}

TEST(Udp, IgnoresDatagramsOfStrangers) {
  Handles handles = Udp::create({});
  const sockaddr_in address = local_address(handles.reader.message.descriptors[0].get());
  const UniqueFd stranger = loopback_socket(SOCK_DGRAM);
  const std::string forged("\0\0\0\0forged", 10);
  for (int i = 0; i < 3; ++i)
    require(::sendto(stranger.get(), forged.data(), forged.size(), 0,
                     reinterpret_cast<const sockaddr*>(&address), sizeof address) > 0,
            "a stranger's datagram");
  auto reader = Udp::open_reader(std::move(handles.reader), {});
  auto writer = Udp::open_writer(std::move(handles.writer), {});
  writer->send(bytes_of("ours"));
  std::vector<std::byte> into(100);
  const auto size = reader->receive(into);
  ASSERT_EQ(size, 4U);
  EXPECT_EQ(text_of({into.data(), *size}), "ours");
}

std::uint32_t queued_in(int socket) {
  std::array<std::uint32_t, SK_MEMINFO_VARS> info{};
  socklen_t size = sizeof info;
  require(::getsockopt(socket, SOL_SOCKET, SO_MEMINFO, info.data(), &size) == 0, "SO_MEMINFO");
  return info[SK_MEMINFO_RMEM_ALLOC];
}

TEST(Udp, ChargesAtLeastWhatTheKernelDoes) {
  for (std::size_t size = 0; size <= 65503; size = size < 64 ? size + 1 : size + size / 50) {
    Handles handles = Udp::create({});
    auto writer = Udp::open_writer(std::move(handles.writer), {});
    writer->send(std::vector<std::byte>(size));
    const int socket = handles.reader.message.descriptors[0].get();
    std::uint32_t charged = queued_in(socket);
    // A thread of the kernel's may deliver it, when it gets a processor.
    for (int i = 0; i < 10'000 && charged == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      charged = queued_in(socket);
    }
    EXPECT_GT(charged, size);
    EXPECT_LE(charged, udp_cost(size)) << size;
  }
}

TEST(Udp, WindowAdmitsWhatFitsAndOneAlone) {
  UdpWindow window(1000);
  EXPECT_TRUE(window.admits(5000));
  window.spend(600);
  EXPECT_TRUE(window.admits(400));
  EXPECT_FALSE(window.admits(401));
  window.grant(9999);  // more than was spent: not believed
  EXPECT_FALSE(window.admits(401));
  window.grant(600);
  EXPECT_TRUE(window.admits(5000));
}

TEST(Udp, GrantsNeverLeaveTheWriterWithoutCredit) {
  for (const std::size_t size : {2304U, 4608U, 106'496U, 212'992U, 1'048'576U}) {
    UdpWindow window(size);
    UdpGrants grants(size);
    for (std::size_t i = 0; i < 2000; ++i) {
      const std::size_t cost = udp_cost((i * 7919) % 65504);
      ASSERT_TRUE(window.admits(cost)) << "a window of " << size << ", with all taken";
      window.spend(cost);
      if (grants.take(cost)) window.grant(grants.total());
    }
  }
}

TEST(Udp, LosesNothingWithTheSmallestBuffer) {
  auto [child, reader] = spawn_writer(Channel<channel::Udp>({.buffer_bytes = 1}), [](Writer& out) {
    for (int i = 0; i < 3000; ++i)
      out.send(std::vector<std::byte>(static_cast<std::size_t>(i) % 9));
    return 0;
  });
  std::vector<std::byte> into(100);
  for (std::size_t i = 0; i < 3000; ++i) ASSERT_EQ(reader->receive(into), i % 9);
  EXPECT_EQ(reader->receive(into), std::nullopt);
  EXPECT_TRUE(child.wait().success());
}

}  // namespace
}  // namespace farcall::channel::test
