// SPDX-License-Identifier: Apache-2.0
//
// Descriptors that a server gets and does not want, or has no room for.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <latch>
#include <thread>

#include "call/raw.hpp"
#include "call/server.hpp"
#include "call/transfer.hpp"
#include "harness/lingering.hpp"
#include "process/background.hpp"

namespace farcall::call::test {
namespace {

TEST(Descriptors, ThatDoNotFitHoldNobodyUp) {
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  in_child([] {
    Server server;
    Client other(server.port.descriptor());
    ASSERT_EQ(ask(other, "before"), "before");
    RawSession session(server.port.descriptor());
    ASSERT_TRUE(session.welcome());
    UniqueFd slow = lingering(60);
    UniqueFd quick(::eventfd(0, EFD_CLOEXEC));
    // Room for the slow one alone, which is sent before another that is lost on the way.
    const rlimit few{.rlim_cur = 100, .rlim_max = 100};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    std::vector<UniqueFd> taken;
    for (int fd; (fd = ::fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0;) taken.emplace_back(fd);
    send_descriptors(session.socket.get(), std::array{slow.get(), quick.get()}, kPurposeData);
    slow.reset();
    session.give(Kind::request, 1, 0, kDescriptors);
    ASSERT_TRUE(session.answered(1));
    EXPECT_EQ(session.turn().flags, kRefused);
    EXPECT_EQ(session.control().slot.extra, EMFILE);
    EXPECT_EQ(ask(other, "after"), "after");
    EXPECT_TRUE(eventually([] { return UniqueFd(::fcntl(0, F_DUPFD_CLOEXEC, 0)).get() >= 0; }))
        << "what had room is closed in the end";
  });
}

// The client has taken them, and says so, although it loses what they came with.
TEST(Descriptors, OfAReplyThatFindsNoRoomAreNotWaitedFor) {
  if (kSlow > 1) GTEST_SKIP() << "sanitizers need all the address space there is";
  const Shared<Event> replied;
  const auto handler = [&](ServerThread& thread, Incoming& incoming) {
    const std::vector<std::byte> data(incoming.data().empty() ? 0 : 1 << 20);
    const int descriptor = 0;
    thread.reply(incoming, data, std::span(&descriptor, 1));
    replied->happens();
  };
  Server server(handler, 1, WaitMode::adaptive, {.patience = 60s});
  in_child([&, port = server.port.descriptor()] {
    Client client(port);
    CallResults results;
    ASSERT_EQ(client.call({}, results, Deadline::after(20s)), Outcome::ok);
    EXPECT_TRUE(replied->wait());
    const rlimit little{.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &little), 0);
    const std::byte request{};
    ASSERT_EQ(client.call({.data = std::span(&request, 1), .descriptors = {}}, results,
                          Deadline::after(20s)),
              Outcome::too_big);
    EXPECT_TRUE(replied->wait()) << "the server waits for who has taken everything";
  });
}

// Who serves may answer without them.
TEST(Descriptors, ThatTheClientHasNoRoomForAreToldToWhoServes) {
  std::atomic<int> error{0};
  const auto handler = [&](ServerThread& thread, Incoming& incoming) {
    const int descriptor = 0;
    try {
      thread.reply(incoming, {}, std::span(&descriptor, 1));
    } catch (const SystemError& failure) {
      error = failure.code().value();
      thread.reply(incoming, bytes_of("none"));
    }
  };
  Server server(handler, 1, WaitMode::adaptive, {.patience = 60s});
  RawSession session(server.port.descriptor());
  ASSERT_TRUE(session.welcome());
  session.give(Kind::request, 1);
  ASSERT_TRUE(session.answered(1));
  EXPECT_EQ(session.turn().flags, kDescriptors);
  session.give(Kind::done, 1, EMFILE);
  ASSERT_TRUE(session.answered(1));
  EXPECT_EQ(error, EMFILE);
  EXPECT_EQ(session.turn().flags, 0);
  EXPECT_EQ(session.turn().size, 4);
}

// A client has taken them, has no room for them, or makes no sense.
TEST(Descriptors, ThatAreSaidToHaveFailedOtherwiseEndTheSession) {
  std::atomic<Outcome> outcome{Outcome::ok};
  const auto handler = [&](ServerThread& thread, Incoming& incoming) {
    outcome = thread.reply(incoming, {}, std::array{STDERR_FILENO});
  };
  Server server(handler, 1, WaitMode::adaptive, {.patience = 60s});
  RawSession session(server.port.descriptor());
  ASSERT_TRUE(session.welcome());
  session.give(Kind::request, 1);
  ASSERT_TRUE(session.answered(1));
  session.give(Kind::done, 1, EDOM);
  EXPECT_TRUE(eventually([&] { return session.ended(); }));
  EXPECT_TRUE(eventually([&] { return outcome == Outcome::broken; }));
}

bool same_file(int one, int other) {
  struct stat first {};
  struct stat second {};
  return ::fstat(one, &first) == 0 && ::fstat(other, &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

// Answers what is asked for in a second attempt; the first one fails in the middle.
struct SecondAttempt {
  UniqueFd file{::memfd_create("passed", MFD_CLOEXEC)};
  std::vector<std::byte> lengthy = std::vector<std::byte>(300'000, std::byte{7});

  void fail(ServerThread& thread, Incoming& incoming, std::span<const int> descriptors) const {
    EXPECT_THROW(thread.reply(incoming, lengthy, descriptors), SystemError);
  }
  void operator()(ServerThread& thread, Incoming& incoming) const {
    const std::string wish = text_of(incoming.data()).substr(0, 5);
    const auto word = bytes_of("good");
    const int passed = file.get();
    if (wish == "piece") {
      std::vector<int> many(kPacketDescriptors + 10, passed);
      many[kPacketDescriptors + 5] = -1;
      EXPECT_EQ(thread.reply(incoming, {}, many), Outcome::peer_gone);
      return;
    }
    fail(thread, incoming, std::array{-1});
    if (wish == "short") thread.reply(incoming, word);
    if (wish == "descr") thread.reply(incoming, word, std::span(&passed, 1));
    if (wish == "long.") thread.reply(incoming, lengthy);
    if (wish == "both.") thread.reply(incoming, lengthy, std::span(&passed, 1));
    if (wish == "never") incoming.refuse(EDOM);
  }
};

// What the first attempt has sent is taken for nothing that comes later.
TEST(Descriptors, OfAReplyThatFailedAreNotTakenForThoseOfTheNext) {
  const SecondAttempt answer;
  for (const std::string first : {"short", "descr", "long.", "both.", "never", "piece"})
    for (const std::size_t more : {0U, 10'000U, 700'000U}) {
      SCOPED_TRACE(first + " " + std::to_string(more));
      Server server([&](auto& thread, auto& incoming) { answer(thread, incoming); });
      Client client(server.port.descriptor());
      for (const std::string& wish : {first, std::string("descr"), std::string("long."), first}) {
        const std::string request = wish + std::string(more, ' ');
        CallResults results;
        const auto ask_for = [&] {
          return client.call({.data = bytes_of(request), .descriptors = {}}, results,
                             Deadline::after(20s));
        };
        if (wish == "never") {
          EXPECT_THROW(ask_for(), SystemError);
          continue;
        }
        if (wish == "piece") {
          EXPECT_EQ(ask_for(), Outcome::peer_gone);
          continue;
        }
        ASSERT_EQ(ask_for(), Outcome::ok) << wish;
        const bool is_long = wish == "long." || wish == "both.";
        ASSERT_EQ(results.data.size(), is_long ? answer.lengthy.size() : 4) << wish;
        if (is_long) {
          EXPECT_TRUE(std::ranges::equal(results.data, answer.lengthy)) << wish;
        }
        const bool has_one = wish == "descr" || wish == "both.";
        ASSERT_EQ(results.descriptors.size(), has_one ? 1U : 0U) << wish;
        if (has_one) {
          EXPECT_TRUE(same_file(results.descriptors[0].get(), answer.file.get())) << wish;
        }
      }
    }
}

TEST(Descriptors, MoreThanACallMayHaveEndTheSession) {
  rlimit table{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &table), 0);
  table.rlim_cur = 3 * kCallDescriptors;
  if (table.rlim_max < table.rlim_cur)
    GTEST_SKIP() << "this process may not open " << table.rlim_cur << " descriptors";
  in_child([&] {
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &table), 0);
    std::atomic<int> served{0};
    Server server([&](ServerThread& thread, Incoming& incoming) {
      ++served;
      thread.reply(incoming, {});
    });
    for (const std::size_t more : {0U, 1U}) {
      RawSession session(server.port.descriptor());
      ASSERT_TRUE(session.welcome());
      const std::vector<int> many(kCallDescriptors + more, STDERR_FILENO);
      send_descriptors(session.socket.get(), many, kPurposeData);
      session.give(Kind::request, 1, 0, kDescriptors);
      EXPECT_TRUE(more == 0 ? session.answered(1) : eventually([&] { return session.ended(); }));
      EXPECT_EQ(served, 1);
    }
  });
}

// What has been taken with a request is the program's, and no more its sender's.
TEST(Descriptors, ThatHaveBeenTakenCountNoMore) {
  in_child([] {
    const rlimit few{.rlim_cur = 100, .rlim_max = 100};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    Server server([](ServerThread& thread, Incoming& incoming) {
      for (UniqueFd& descriptor : incoming.descriptors()) descriptor.reset();
      thread.reply(incoming, {});
    });
    Client client(server.port.descriptor());
    const std::vector<std::byte> lengthy(100'000);
    CallResults results;
    for (const std::size_t size : {std::size_t{0}, lengthy.size()})
      for (int i = 0; i < 200; ++i)
        ASSERT_EQ(client.call({.data = std::span(lengthy).first(size),
                               .descriptors = std::array{STDERR_FILENO}},
                              results, Deadline::after(20s)),
                  Outcome::ok)
            << size << ", " << i;
  });
}

// A user who may send so much at a time may do so again and again.
TEST(CallMemory, OfRequestsThatAreOverCountsNoMore) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  // That of the client's, in which they come, and where they are copied to.
  Server server([](ServerThread& thread, Incoming& incoming) { thread.reply(incoming, {}); }, 1,
                WaitMode::adaptive, {.bytes_per_user = 2 * kBytes + kBytes / 2});
  in_child([port = server.port.descriptor()] {
    ASSERT_TRUE(become(kNobody));
    Client client(port);
    const std::vector<std::byte> lengthy(kBytes);
    CallResults results;
    for (int i = 0; i < 3; ++i)
      ASSERT_EQ(client.call({.data = lengthy, .descriptors = {}}, results, Deadline::after(20s)),
                Outcome::ok)
          << i;
  });
}

// Whether this process has memory for long messages.
bool has_transfer_memory() {
  std::ifstream maps("/proc/self/maps");
  const std::string all{std::istreambuf_iterator<char>(maps), {}};
  return all.find("farcall-transfer") != std::string::npos;
}

// It is given back when they have been taken.
TEST(CallMemory, OfVeryLongRepliesIsNotKept) {
  const std::vector<std::byte> lengthy(TransferMemory::kMostKept + 1);
  Server server([&](ServerThread& thread, Incoming& incoming) { thread.reply(incoming, lengthy); });
  Client client(server.port.descriptor());
  CallResults results;
  ASSERT_EQ(client.call({}, results, Deadline::after(20s)), Outcome::ok);
  EXPECT_EQ(results.data.size(), lengthy.size());
  EXPECT_TRUE(eventually([] { return !has_transfer_memory(); }));
}

TEST(CallMemory, OfVeryLongMessagesThatWantNoReplyIsNotKept) {
  const std::vector<std::byte> lengthy(TransferMemory::kMostKept + 1);
  Server server;
  Client client(server.port.descriptor());
  ASSERT_EQ(
      client.send({.data = lengthy, .descriptors = {}, .until_taken = true}, Deadline::after(20s)),
      Outcome::ok);
  EXPECT_TRUE(eventually([] { return !has_transfer_memory(); }));
  EXPECT_EQ(server.port.sessions(), 1U);
}

TEST(Descriptors, OfMessagesThatNobodyTakesHoldNobodyUp) {
  in_child([] {
    Server server;
    Client other(server.port.descriptor());
    {
      RawSession session(server.port.descriptor());
      ASSERT_TRUE(session.welcome());
      // What is no memory, in its place; and what no request tells of.
      for (int i = 0; i < 2; ++i)
        send_descriptors(session.socket.get(), std::array{lingering(60).get()}, kPurposeData);
      const std::uint64_t size = 5000;
      std::memcpy(session.control().slot.data, &size, sizeof size);
      session.give(Kind::request, 1, 0, kTransfer | kTransferComes);
      pollfd end{.fd = session.socket.get(), .events = POLLRDHUP, .revents = 0};
      EXPECT_EQ(::poll(&end, 1, static_cast<int>(kPatience.count())), 1) << "it is turned out";
    }
    EXPECT_EQ(ask(other, "after"), "after");
    EXPECT_TRUE(eventually([&] { return server.port.sessions() == 1; }));
  });
}

// They would be taken for the next request's.
TEST(Descriptors, ThatNoRequestTellsOfEndTheSession) {
  Server server;
  RawSession session(server.port.descriptor());
  ASSERT_TRUE(session.welcome());
  for (int i = 0; i < 2; ++i) send_descriptors(session.socket.get(), std::array{0}, kPurposeData);
  session.give(Kind::request, 1, 0, kDescriptors);
  EXPECT_TRUE(eventually([&] { return session.ended(); }));
  EXPECT_EQ(session.turn().kind, Kind::request) << "it is not answered";
}

// They would be taken for the memory, and for what comes with the next request.
TEST(Descriptors, TwoInPlaceOfAMemoryEndTheSession) {
  Server server;
  RawSession session(server.port.descriptor());
  ASSERT_TRUE(session.welcome());
  const SharedMemory memory = SharedMemory::create(65'536);
  send_descriptors(session.socket.get(), std::array{memory.fd(), memory.fd()}, kPurposeData);
  const std::uint64_t size = 5000;
  std::memcpy(session.control().slot.data, &size, sizeof size);
  session.give(Kind::request, 1, 0, kTransfer | kTransferComes);
  EXPECT_TRUE(eventually([&] { return session.ended(); }));
  EXPECT_EQ(session.turn().kind, Kind::request) << "it is not answered";
}

TEST(Session, IsMadeOfItsMemoryAlone) {
  Server server;
  const int port = server.port.descriptor();
  EXPECT_TRUE(RawSession(port).welcome());
  EXPECT_FALSE(RawSession(port, false).welcome()) << "which does not say what it is";
  RawSession large(port, true, false);  // nothing has been sent
  const SharedMemory twice = SharedMemory::create(2 * kSessionBytes);
  const std::uint64_t magic = SessionControl::kMagic;
  std::memcpy(twice.map().data(), &magic, sizeof magic);
  send_descriptors(port, std::array{twice.fd(), large.other_end.get()}, kPurposeSession);
  EXPECT_FALSE(large.welcome()) << "of another size";
}

TEST(Descriptors, ThatNobodyHasAskedForAreCounted) {
  Server server;
  const auto endpoint = server.port.open_endpoint({}, {});
  const UniqueFd way_in = endpoint->branch();
  Client client(way_in.get());
  EXPECT_EQ(ask(client, "x"), "x");
  EXPECT_EQ(endpoint->unsolicited().descriptors, 0U);
  const auto counted = [&](std::uint64_t count) {
    return eventually([&] { return endpoint->unsolicited().descriptors == count; });
  };
  // One does not make a session; and nobody knows of that purpose.
  send_descriptors(way_in.get(), std::array{0}, kPurposeSession);
  EXPECT_TRUE(counted(1));
  send_descriptors(way_in.get(), std::array{0, 0, 0}, kFirstOwnPurpose + 7);
  EXPECT_TRUE(counted(4));
  // Nor do three make a session, two of which would.
  const RawSession more(way_in.get(), true, false);
  send_descriptors(way_in.get(), std::array{more.memory.fd(), more.other_end.get(), 0},
                   kPurposeSession);
  EXPECT_TRUE(counted(7));
  RawSession session(way_in.get());
  ASSERT_TRUE(session.welcome());
  EXPECT_TRUE(counted(7)) << "these were asked for";
  send_descriptors(session.socket.get(), std::array{0, 0}, kPurposeReal);
  session.give(Kind::request, 1, 0, kDescriptors);
  EXPECT_TRUE(counted(9));
  EXPECT_EQ(endpoint->unsolicited().control_messages, 0U);
  EXPECT_EQ(ask(client, "y"), "y");
}

// Nothing more is taken of who sends them until those are closed, and then it goes on.
TEST(Descriptors, ThatComeFasterThanTheyAreClosedHoldUpTheirSenderAlone) {
  Server server;
  const auto endpoint = server.port.open_endpoint({}, {});
  const UniqueFd way_in = endpoint->branch();
  const uid_t own = ::geteuid();
  std::latch release(1);
  std::atomic<std::size_t> at_work{0};
  for (std::size_t i = 0; i < process::kThreadsPerUser; ++i)
    process::catch_up(own, [&] {
      ++at_work;
      release.wait();
      --at_work;
    });
  ASSERT_TRUE(eventually([&] { return at_work == process::kThreadsPerUser; }));
  for (int i = 0; i < 256; ++i) process::catch_up(own, [] {});
  ASSERT_TRUE(process::behind(own));
  send_descriptors(way_in.get(), std::array{0}, kPurposeSession);
  ASSERT_TRUE(eventually([&] { return endpoint->unsolicited().descriptors == 1; }));
  Client client(way_in.get());
  CallResults results;
  EXPECT_EQ(client.call({}, results, Deadline::after(20ms)), Outcome::timed_out);
  release.count_down();
  ASSERT_TRUE(eventually([&] { return at_work == 0; }));
  EXPECT_EQ(ask(client, "after"), "after");
}

// All of the memory that has come is mapped by the server, however short the request in it is.
TEST(Descriptors, OfMemoryBeyondWhatItsSenderMayHoldAreRefused) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  Server server(echo, 1, WaitMode::adaptive, {.bytes_per_user = 100'000});
  in_child([port = server.port.descriptor()] {
    ASSERT_TRUE(become(kNobody));
    RawSession session(port);
    ASSERT_TRUE(session.welcome());
    const SharedMemory memory = SharedMemory::create(1 << 20);
    send_descriptors(session.socket.get(), std::array{memory.fd()}, kPurposeData);
    const std::uint64_t size = 10;
    std::memcpy(session.control().slot.data, &size, sizeof size);
    session.give(Kind::request, 1, 0, kTransfer | kTransferComes);
    ASSERT_TRUE(session.answered(1));
    EXPECT_EQ(session.turn().flags, kRefused);
    EXPECT_EQ(session.control().slot.extra, E2BIG);
  });
}

// ---- what others than the client say ----

// The socket of a session is worth no more to who else has it.
TEST(Identity, IsNotSaidByAnotherProcess) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  Server server([](ServerThread& thread, Incoming& incoming) {
    const uid_t real = incoming.identity()->real_uid;
    thread.reply(incoming, std::as_bytes(std::span(&real, 1)));
  });
  RawSession session(server.port.descriptor());
  ASSERT_TRUE(session.welcome());
  in_child([&] {
    const uid_t nobody = kNobody;
    ASSERT_TRUE(become(nobody));
    send_credentials(session.socket.get(), {.pid = ::getpid(), .uid = nobody, .gid = nobody},
                     kPurposeReal);
  });
  session.give(Kind::request, 1);
  ASSERT_TRUE(session.answered(1));
  uid_t real = kNobody;
  std::memcpy(&real, session.control().slot.data, sizeof real);
  EXPECT_EQ(real, ::getuid());
}

// ---- what a server may say ----

// What lies behind the memory is the client's own.
TEST(Replies, LongerThanTheirMemoryBreakTheSession) {
  const auto [server, port] = packet_socket_pair();
  Client client(port.get());
  ServerEnds ends;
  std::thread answering([&, inner = server.get()] {
    pollfd asked{.fd = inner, .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&asked, 1, static_cast<int>(kPatience.count())), 1);
    Packet packet = take_packet(inner);
    ASSERT_EQ(packet.descriptors.size(), 2U);
    const Mapping session = SharedMemory::adopt(std::move(packet.descriptors[0])).map();
    auto& control = *reinterpret_cast<SessionControl*>(session.data());
    ends = let_in(packet);
    Turn turn;
    ASSERT_TRUE(eventually([&] {
      turn = Turn::unpack(control.slot.turn);
      return turn.kind == Kind::request;
    }));
    const SharedMemory memory = SharedMemory::create(page_size());
    send_descriptors(ends.socket.get(), std::array{memory.fd()}, kPurposeData);
    const std::uint64_t size = memory.size() + 1;
    std::memcpy(control.slot.data, &size, sizeof size);
    turn.kind = Kind::reply;
    turn.flags = kTransfer | kTransferComes;
    control.slot.turn = turn.pack();
    Waiter(ends.socket.get()).wake(control.server, control.client);
  });
  CallResults results;
  EXPECT_EQ(client.call({}, results, Deadline::after(kPatience)), Outcome::broken);
  answering.join();
}

}  // namespace
}  // namespace farcall::call::test
