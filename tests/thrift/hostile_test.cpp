// SPDX-License-Identifier: Apache-2.0
//
// Clients that hand over what a server would wait for, and what there is no memory for. The next
// client is accepted all the same.
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "farcall/limits.h"
#include "farcall/socket.hpp"
#include "harness/descriptors.hpp"
#include "harness/lingering.hpp"
#include "protocol.hpp"
#include "thrift/server.hpp"

namespace {

std::atomic<std::size_t> refused_bytes{0};  // so many at a time there are not; 0: there are

[[maybe_unused]] void* allocate(std::size_t bytes) {
  void* const memory = bytes != 0 && bytes == refused_bytes ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

#if !defined(__SANITIZE_ADDRESS__)
void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace farcall::thrift::test {
namespace {

// Accepts clients in a process of its own, on one thread.
class Acceptor {
 public:
  explicit Acceptor(std::size_t without_bytes = 0)
      : child_([this, without_bytes] {
          TFarcallServerTransport server(name);
          server.listen();
          refused_bytes = without_bytes;
          ready_->happens();
          for (std::vector<std::shared_ptr<TTransport>> all;;) all.push_back(server.accept());
        }) {
    EXPECT_TRUE(ready_->wait());
  }
  [[nodiscard]] pid_t pid() const { return child_.pid(); }
  void expect_service() const {
    TFarcallTransport client(name);
    client.setTimeout(kPatience);
    EXPECT_NO_THROW(client.open());
    EXPECT_TRUE(client.isOpen());
  }

  const std::string name = unique_name();

 private:
  const Shared<Event> ready_;
  Child child_;
};

// The errno that the message is answered with, or 0.
int hand_over(const MessageConnection& to, std::uint32_t word, int descriptor) {
  try {
    set_message_timeout(kPatience);
    (void)to.send(std::as_bytes(std::span(&word, 1)), {}, std::span(&descriptor, 1));
    return 0;
  } catch (const std::system_error& error) {
    return error.code().value();
  }
}

// What a server answers a call with whose client has room for the length of the reply alone; -1:
// with an errno.
int status_of_call(const std::string& name, std::vector<MessageConnection>& kept) {
  auto [mine, theirs] = socket_pair();
  if (hand_over(MessageConnection(name), kHello, theirs.get()) != 0) return -1;
  auto answer = receive_fd_message(mine.get(), Deadline::after(kPatience));
  if (!answer || answer->descriptors.size() != 1) return -1;
  kept.emplace_back(farcall_adopt(answer->descriptors[0].release()));
  std::uint64_t length = 0;
  set_message_timeout(kPatience);
  return farcall_send(kept.back().number(), "x", 1, &length, sizeof length);
}

TEST(ThriftHostile, AFullSocketHoldsNobodyUp) {
  const Acceptor server;
  const auto [mine, theirs] = socket_pair();
  const std::vector<char> bytes(4096);
  while (::send(theirs.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
  while (::send(theirs.get(), bytes.data(), 1, MSG_DONTWAIT) > 0) {
  }
  EXPECT_EQ(hand_over(MessageConnection(server.name), kHello, theirs.get()), ECANCELED);
  server.expect_service();
}

// As the server's own, by which it stops.
TEST(ThriftHostile, APulseOfAClientStopsNobody) {
  const Acceptor server;
  const MessageConnection client(server.name);
  for (int code = 0; code < 4; ++code) client.pulse(code, 0);
  server.expect_service();
}

TEST(ThriftHostile, WhatIsNoStreamIsRefused) {
  const Acceptor server;
  const UniqueFd tcp = lingering(0);
  const auto [mine, theirs] = packet_socket_pair();
  for (const int fd : {tcp.get(), theirs.get(), STDIN_FILENO})
    EXPECT_EQ(hand_over(MessageConnection(server.name), kHello, fd), ECANCELED);
  server.expect_service();
}

// The server stands still until its own descriptor is the last.
TEST(ThriftHostile, ASocketThatLingersHoldsNobodyUp) {
  const Acceptor server;
  for (const std::uint32_t word : {kHello, kFar, 7U}) {
    UniqueFd socket = lingering(600);
    const MessageConnection connection(server.name);
    Event known;
    Event stands;
    std::thread client([&] {
      // Descriptors that make the client known are not to be taken for that one.
      (void)connection.send(std::as_bytes(std::span(&kFar, 1)));
      known.happens();
      EXPECT_TRUE(stands.wait());
      EXPECT_EQ(hand_over(connection, word, socket.get()), word == kFar ? 0 : ECANCELED);
    });
    EXPECT_TRUE(known.wait());
    EXPECT_TRUE(stop_process(server.pid()));
    const int before = on_their_way_to(server.pid());
    stands.happens();
    EXPECT_TRUE(eventually([&] { return on_their_way_to(server.pid()) > before; }));
    socket.reset();
    ::kill(server.pid(), SIGCONT);
    client.join();
    server.expect_service();
  }
}

TEST(ThriftHostile, ACallThatThereIsNoMemoryForEndsNoServer) {
  FARCALL_SKIP_UNDER_ASAN("has an allocator of its own, that does not fail when it is told to");
  constexpr std::size_t kBytes = 1'234'567;
  const Acceptor server(kBytes);
  std::vector<std::byte> call(sizeof kFar + kBytes);
  std::memcpy(call.data(), &kFar, sizeof kFar);
  set_message_timeout(kPatience);
  EXPECT_THROW((void)MessageConnection(server.name).send(call), std::system_error);
  server.expect_service();
}

// Of a call that is longer than what there is room for. The next one is served.
TEST(ThriftHostile, ACallOfAClientThatThereIsNoMemoryForIsAnsweredSo) {
  FARCALL_SKIP_UNDER_ASAN("has an allocator of its own, that does not fail when it is told to");
  constexpr std::size_t kBytes = 1'234'567;
  const std::string name = unique_name();
  const Shared<Event> ready;
  const Child server([&] {
    TFarcallServerTransport listening(name);
    listening.listen();
    refused_bytes = kBytes;
    ready->happens();
    const auto accepted = listening.accept();
    for (std::uint8_t byte = 0; accepted->read(&byte, 1) == 1;) {
      accepted->write(&byte, 1);
      accepted->flush();
    }
  });
  ASSERT_TRUE(ready->wait());
  std::vector<MessageConnection> kept;
  EXPECT_EQ(status_of_call(name, kept), kWhole);
  const std::vector<std::byte> call(kBytes);
  set_message_timeout(kPatience);
  EXPECT_EQ(farcall_send(kept[0].number(), call.data(), call.size(), nullptr, 0), -1);
  EXPECT_EQ(errno, ENOMEM);
  set_message_timeout(kPatience);
  EXPECT_EQ(farcall_send(kept[0].number(), call.data(), 1, nullptr, 0), kLonger);
}

// Says of its reply to the first call that it has so many bytes.
class Announcing {
 public:
  explicit Announcing(std::uint64_t bytes)
      : child_([this, bytes] {
          const MessageChannel listening(name);
          ready_->happens();
          std::uint32_t word = 0;
          ReceivedMessage hello = listening.receive(std::as_writable_bytes(std::span(&word, 1)));
          const MessageChannel own;
          const MessageConnection connection = own.connect();
          send_fd_message(hello.descriptors()[0], {}, std::array{connection.descriptor()},
                          Deadline::now());
          hello.reply();
          ReceivedMessage call = own.receive({});
          call.reply(std::as_bytes(std::span(&bytes, 1)), kLonger);
          for (;;) ::pause();
        }) {
    EXPECT_TRUE(ready_->wait());
  }

  const std::string name = unique_name();

 private:
  const Shared<Event> ready_;
  const Child child_;
};

// Nothing of that call goes along with the next one.
TEST(ThriftHostile, AReplyThatThereIsNoMemoryForEndsTheConnection) {
  FARCALL_SKIP_UNDER_ASAN("has an allocator of its own, that does not fail when it is told to");
  constexpr std::uint64_t kBytes = 1'234'567;
  const Announcing server(kBytes);
  TFarcallTransport client(server.name);
  client.setTimeout(kPatience);
  client.open();
  client.write(reinterpret_cast<const std::uint8_t*>("call"), 4);
  refused_bytes = kBytes;
  EXPECT_THROW(client.flush(), std::bad_alloc);
  refused_bytes = 0;
  EXPECT_FALSE(client.isOpen());
}

// Eight bytes are to cost a client no gigabyte.
TEST(ThriftHostile, AReplyLongerThanTheConfigurationAllowsIsNotMadeRoomFor) {
  constexpr int kMost = 3'000'000;
  const Announcing server(kMost + 1);
  auto configuration = std::make_shared<TConfiguration>();
  configuration->setMaxMessageSize(kMost);
  TFarcallTransport client(server.name, configuration);
  client.setTimeout(kPatience);
  client.open();
  client.write(reinterpret_cast<const std::uint8_t*>("call"), 4);
  try {
    client.flush();
    FAIL() << "it was taken";
  } catch (const TTransportException& error) {
    EXPECT_EQ(error.getType(), TTransportException::END_OF_FILE);
    EXPECT_STREQ(error.what(), "MaxMessageSize reached");
  }
  EXPECT_FALSE(client.isOpen());
}

TEST(ThriftHostile, WhatThereIsNoMemoryToWriteIsAnErrorOfTheTransport) {
  FARCALL_SKIP_UNDER_ASAN("has an allocator of its own, that does not fail when it is told to");
  TFarcallTransport client("nobody");
  const std::vector<std::uint8_t> much(1'234'567);
  refused_bytes = much.size();
  EXPECT_THROW(client.write(much.data(), static_cast<std::uint32_t>(much.size())),
               TTransportException);
  refused_bytes = 0;
}

// One connection of a stranger's, who keeps all that the server sends.
TEST(ThriftHostile, HellosOfAStrangerLeaveRoomForOthers) {
  if (!is_root()) GTEST_SKIP() << "only root can become somebody else";
  constexpr rlim_t kTable = 512;
  const std::string name = unique_name();
  const Shared<Event> ready;
  const Child server([&] {
    const rlimit table{.rlim_cur = kTable, .rlim_max = kTable};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &table), 0);
    TFarcallServerTransport listening(name, 0666);
    listening.listen();
    ready->happens();
    for (std::vector<std::shared_ptr<TTransport>> all;;) all.push_back(listening.accept());
  });
  ASSERT_TRUE(ready->wait());
  const Shared<Event> done;
  const Shared<Event> tried;
  const Shared<std::atomic<int>> taken;
  Child stranger([&] {
    ASSERT_TRUE(become(kNobody));
    const MessageConnection connection("0/" + name);
    std::vector<UniqueFd> kept;
    for (rlim_t i = 0; i < kTable / 4; ++i) {
      auto [mine, theirs] = socket_pair();
      if (hand_over(connection, kHello, theirs.get()) == 0) ++*taken;
      kept.push_back(std::move(mine));
    }
    done->happens();
    EXPECT_TRUE(tried->wait());
  });
  EXPECT_TRUE(done->wait());
  EXPECT_GT(*taken, 1);
  EXPECT_LT(*taken, static_cast<int>(kTable / 16));
  for (int i = 0; i < 4; ++i) {
    TFarcallTransport client(name);
    client.setTimeout(kPatience);
    EXPECT_NO_THROW(client.open());
  }
  tried->happens();
  EXPECT_EQ(stranger.join(), 0);
}

TEST(ThriftHostile, RepliesThatAStrangerDoesNotTakeAreBounded) {
  if (!is_root()) GTEST_SKIP() << "only root can become somebody else";
  constexpr std::size_t kReply = std::size_t{1} << 20;
  constexpr int kMost = 3;
  const std::string name = unique_name();
  const Shared<Event> ready;
  const Child server([&] {
    farcall_limits limits{};
    limits.size = sizeof limits;
    limits.bytes_per_user = kMost * kReply;
    ASSERT_EQ(farcall_limits_set(&limits), 0);
    TFarcallServerTransport listening(name, 0666);
    listening.listen();
    ready->happens();
    const std::vector<std::uint8_t> reply(kReply);
    for (std::vector<std::shared_ptr<TTransport>> all;;) {
      all.push_back(listening.accept());
      std::uint8_t byte = 0;
      if (all.back()->read(&byte, 1) != 1) continue;
      all.back()->write(reply.data(), kReply);
      all.back()->flush();
    }
  });
  ASSERT_TRUE(ready->wait());
  Child stranger([&] {
    ASSERT_TRUE(become(kNobody));
    std::vector<MessageConnection> kept;
    for (int i = 0; i < kMost; ++i) EXPECT_EQ(status_of_call("0/" + name, kept), kLonger);
    EXPECT_EQ(status_of_call("0/" + name, kept), -1);
  });
  EXPECT_EQ(stranger.join(), 0);
  std::vector<MessageConnection> kept;
  for (int i = 0; i <= kMost; ++i) EXPECT_EQ(status_of_call(name, kept), kLonger);
}

// What a stranger's calls are answered with until one is not taken: that answer, and after how
// many.
struct Refusal {
  int error = 0;
  int after = 0;
};
Refusal far_calls_until_refused(const std::string& name, std::size_t bytes, int most) {
  const MessageConnection connection(name);
  // One-way, in the binary protocol.
  std::vector<std::uint8_t> call(sizeof kFar + bytes);
  std::memcpy(call.data(), &kFar, sizeof kFar);
  std::ranges::copy(std::array<std::uint8_t, 4>{0x80, 1, 0, 4}, call.begin() + sizeof kFar);
  for (int i = 0; i < most; ++i) {
    set_message_timeout(kPatience);
    if (farcall_send(connection.number(), call.data(), call.size(), nullptr, 0) != 0)
      return {.error = errno, .after = i};
  }
  return {.error = 0, .after = most};
}

// A server that keeps the calls that it has accepted.
class Keeping {
 public:
  explicit Keeping(const farcall_limits& limits)
      : child_([this, limits] {
          ASSERT_EQ(farcall_limits_set(&limits), 0);
          TFarcallServerTransport listening(name, 0666);
          listening.listen();
          ready_->happens();
          for (std::vector<std::shared_ptr<TTransport>> all;;) all.push_back(listening.accept());
        }) {
    EXPECT_TRUE(ready_->wait());
  }
  const std::string name = unique_name();

 private:
  const Shared<Event> ready_;
  Child child_;
};

TEST(ThriftHostile, OneWayCallsFromAfarAreBounded) {
  if (!is_root()) GTEST_SKIP() << "only root can become somebody else";
  constexpr int kMost = 12;
  farcall_limits limits{};
  limits.size = sizeof limits;
  limits.descriptors_per_user = kMost;
  const Keeping server(limits);
  Child stranger([&] {
    ASSERT_TRUE(become(kNobody));
    const Refusal refusal = far_calls_until_refused("0/" + server.name, 8, 100);
    EXPECT_EQ(refusal.error, EAGAIN);
    EXPECT_EQ(refusal.after, kMost);
  });
  EXPECT_EQ(stranger.join(), 0);
  EXPECT_EQ(far_calls_until_refused(server.name, 8, 100).error, 0);
}

TEST(ThriftHostile, TheBytesOfCallsFromAfarAreBounded) {
  if (!is_root()) GTEST_SKIP() << "only root can become somebody else";
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  farcall_limits limits{};
  limits.size = sizeof limits;
  limits.bytes_per_user = 4 * kBytes;
  const Keeping server(limits);
  Child stranger([&] {
    ASSERT_TRUE(become(kNobody));
    const Refusal refusal = far_calls_until_refused("0/" + server.name, kBytes, 100);
    EXPECT_EQ(refusal.error, EAGAIN);
    EXPECT_GT(refusal.after, 0);
    EXPECT_LT(refusal.after, 4);
  });
  EXPECT_EQ(stranger.join(), 0);
  EXPECT_EQ(far_calls_until_refused(server.name, kBytes, 8).error, 0);
}

TEST(ThriftHostile, WhatIsNoConnectionIsClosedByWhoOpens) {
  const std::string name = unique_name();
  MessageChannel server(name);
  auto [mine, theirs] = socket_pair();
  std::thread answering([&, given = std::move(theirs)]() mutable {
    set_message_timeout(kPatience);
    std::uint32_t word = 0;
    ReceivedMessage hello = server.receive(std::as_writable_bytes(std::span(&word, 1)));
    farcall_info about = hello.info();
    ASSERT_EQ(about.descriptor_count, 1U);
    FdMessage answer;
    answer.descriptors.push_back(std::move(given));
    send_fd_message(about.descriptors[0], answer, Deadline::now());
    hello.reply();
    (void)farcall_drop_descriptors(&about);
  });
  TFarcallTransport client(name);
  EXPECT_THROW(client.open(), TTransportException);
  answering.join();
  // Perhaps by another thread.
  pollfd end{.fd = mine.get(), .events = POLLRDHUP, .revents = 0};
  EXPECT_EQ(::poll(&end, 1, static_cast<int>(kPatience.count())), 1);
}

}  // namespace
}  // namespace farcall::thrift::test
