// SPDX-License-Identifier: Apache-2.0
#include "farcall/call.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <vector>

#include "call/server.hpp"
#include "farcall/error.hpp"
#include "harness/child.hpp"

namespace farcall {
namespace {

using namespace std::chrono_literals;
using test::ask;
using test::bytes_of;
using test::eventually;
using test::Server;
using test::soon;
using test::text_of;

std::vector<std::byte> block(std::size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>((seed = seed * 1664525 + 1013904223) >> 24);
  return bytes;
}

// Runs `body` in a child and expects it to return true.
template <class Body>
void expect_in_child(Body body) {
  test::in_child([&] { EXPECT_TRUE(body()); });
}

TEST(Call, BringsTheReply) {
  Server server;
  Client client(server.port.descriptor());
  EXPECT_EQ(ask(client, "hello"), "hello");
  EXPECT_EQ(ask(client, ""), "");
}

TEST(Call, KeepsContentAtEverySize) {
  Server server;
  Client client(server.port.descriptor());
  for (const std::size_t size :
       std::initializer_list<std::size_t>{0, 1, 47, 48, 49, 239, 3567, 3568, 3569, 4096, 32767,
                                          32768, 131071, 131072, 131073, 1 << 20, 9'000'001}) {
    for (int round = 0; round < 3; ++round) {
      const auto request = block(size, static_cast<unsigned>(size) + 1);
      std::vector<std::byte> buffer(size);
      CallResults results;
      results.buffer = buffer;
      ASSERT_EQ(client.call({.data = request, .descriptors = {}}, results, soon()), Outcome::ok);
      ASSERT_EQ(results.data.size(), size);
      ASSERT_FALSE(results.large);
      ASSERT_TRUE(std::equal(request.begin(), request.end(), results.data.begin())) << size;
    }
  }
  EXPECT_EQ(server.port.sessions(), 1U);
}

// The next request may be there before the server has looked at the word that the last reply is
// taken; none of it must be mistaken for that word.
TEST(Call, LargeRepliesMayBeFollowedAtOnce) {
  Server server;
  Client client(server.port.descriptor());
  const auto request = block(20'000, 5);
  std::vector<std::byte> buffer(request.size());
  for (int i = 0; i < 20'000; ++i) {
    CallResults results;
    results.buffer = buffer;
    ASSERT_EQ(client.call({.data = request, .descriptors = {}, .word = 20'000, .priority = 7},
                          results, soon()),
              Outcome::ok)
        << i;
    ASSERT_EQ(results.data.size(), request.size());
  }
}

// Whoever gives up when no thread has taken the request may ask once more.
TEST(Call, WhatIsSaidNotToBeTakenIsNotServed) {
  constexpr int kCalls = 3000;
  for (const std::size_t size : {std::size_t{4}, std::size_t{10'000}}) {
    std::vector<std::atomic<bool>> served(kCalls);
    const auto handler = [&](ServerThread& thread, Incoming& incoming) {
      int number = 0;
      std::memcpy(&number, incoming.data().data(), sizeof number);
      served[static_cast<std::size_t>(number)] = true;
      thread.reply(incoming, {}, {}, 0);
    };
    std::vector<bool> taken(kCalls, true);
    {
      Server server(handler);
      Client client(server.port.descriptor());
      std::vector<std::byte> request(size);
      for (int i = 0; i < kCalls; ++i) {
        std::memcpy(request.data(), &i, sizeof i);
        CallResults results;
        const Outcome outcome = client.call({.data = request, .descriptors = {}}, results,
                                            Deadline::after(std::chrono::microseconds(i % 100)));
        taken[static_cast<std::size_t>(i)] = outcome == Outcome::ok || Client::dispatched();
      }
    }
    for (std::size_t i = 0; i < kCalls; ++i) EXPECT_TRUE(taken[i] || !served[i]) << i;
  }
}

TEST(Call, ShortRequestsAreBoundedLikeLongOnes) {
  for (const std::size_t most : {std::size_t{100}, std::size_t{10'000}}) {
    Server server(test::echo, 1, WaitMode::adaptive, {.request_bytes = most});
    Client client(server.port.descriptor());
    EXPECT_EQ(ask(client, std::string(most, 'x')).size(), most);
    const auto longer = block(most + 1, 1);
    CallResults results;
    try {
      client.call({.data = longer, .descriptors = {}}, results, soon());
      FAIL() << most + 1 << " bytes were taken";
    } catch (const SystemError& error) {
      EXPECT_EQ(error.code().value(), E2BIG);
    }
    EXPECT_EQ(ask(client, "short"), "short");
  }
}

TEST(Call, MapsMemoryForAReplyThatDoesNotFit) {
  Server server;
  Client client(server.port.descriptor());
  for (const std::size_t size : std::initializer_list<std::size_t>{100, 3568, 5'000, 300'000}) {
    const auto request = block(size, 3);
    std::array<std::byte, 10> small;
    CallResults results;
    results.buffer = small;
    ASSERT_EQ(client.call({.data = request, .descriptors = {}}, results, soon()), Outcome::ok);
    ASSERT_TRUE(results.large);
    EXPECT_EQ(results.large.size(), round_up_to_pages(size));
    EXPECT_EQ(results.data.data(), results.large.data());
    EXPECT_TRUE(std::equal(request.begin(), request.end(), results.data.begin()));
  }
}

TEST(Call, CarriesTheStatus) {
  Server server([](ServerThread& thread, Incoming& incoming) {
    thread.reply(incoming, {}, {}, -static_cast<std::int64_t>(incoming.data().size()));
  });
  Client client(server.port.descriptor());
  CallResults results;
  ASSERT_EQ(client.call({.data = bytes_of("four"), .descriptors = {}}, results, soon()),
            Outcome::ok);
  EXPECT_EQ(results.status, -4);
}

TEST(Call, CarriesDescriptorsBothWays) {
  const auto handler = [](ServerThread& thread, Incoming& incoming) {
    std::vector<int> back;
    for (const UniqueFd& fd : incoming.descriptors()) {
      (void)!::write(fd.get(), "served", 6);
      back.push_back(fd.get());
    }
    thread.reply(incoming, incoming.data(), back);
  };
  // A client that is kept from the processor confirms them late.
  Server server(handler, 1, WaitMode::adaptive, {.patience = 60s});
  Client client(server.port.descriptor());
  for (const std::size_t size : {std::size_t{5}, std::size_t{500'000}}) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd out(ends[0]);
    const UniqueFd in(ends[1]);
    const auto request = block(size, 1);
    CallResults results;
    ASSERT_EQ(
        client.call({.data = request, .descriptors = std::span(&ends[1], 1)}, results, soon()),
        Outcome::ok);
    ASSERT_EQ(results.descriptors.size(), 1U);
    EXPECT_EQ(::fcntl(results.descriptors[0].get(), F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(::write(results.descriptors[0].get(), "!", 1), 1);
    char text[10] = {};
    EXPECT_EQ(::read(out.get(), text, sizeof text), 7);
    EXPECT_STREQ(text, "served!");
  }
}

TEST(Call, BadDescriptorsAreAnErrorAndTheServerMayTryAgain) {
  Server server([](ServerThread& thread, Incoming& incoming) {
    const int bad = 9999;
    EXPECT_THROW(thread.reply(incoming, {}, std::span(&bad, 1)), SystemError);
    thread.reply(incoming, bytes_of("better"));
  });
  Client client(server.port.descriptor());
  EXPECT_EQ(ask(client, "x"), "better");
  const int bad = 9999;
  CallResults results;
  EXPECT_THROW(client.call({.data = {}, .descriptors = std::span(&bad, 1)}, results, soon()),
               SystemError);
  EXPECT_EQ(ask(client, "x"), "better");
}

TEST(Call, OneWayRequestsArriveInOrderWithoutAReply) {
  std::mutex lock;  // a call orders the two threads, too, but through memory mapped twice
  std::vector<std::size_t> sizes;
  Server server([&](ServerThread& thread, Incoming& incoming) {
    if (incoming.wants_reply()) {
      thread.reply(incoming, {});
    } else {
      const std::lock_guard guard(lock);
      sizes.push_back(incoming.data().size());
    }
  });
  Client client(server.port.descriptor());
  std::vector<std::size_t> expected;
  for (std::size_t i = 0; i < 300; ++i) {
    const std::size_t size = i % 50 == 7 ? 200'000 + i : i;
    ASSERT_EQ(client.send({.data = block(size, 1), .descriptors = {}}, soon()), Outcome::ok);
    expected.push_back(size);
  }
  EXPECT_EQ(ask(client, "done"), "");
  const std::lock_guard guard(lock);
  EXPECT_EQ(sizes, expected);
}

TEST(Call, OneWayRequestsOutliveTheirSender) {
  std::atomic<int> taken{0};
  Server server([&](ServerThread&, Incoming& incoming) {
    EXPECT_FALSE(incoming.wants_reply());
    ++taken;
  });
  const int port = server.port.descriptor();
  for (int i = 0; i < 20; ++i) {
    expect_in_child([port] {
      Client client(port);
      return client.send({.data = bytes_of("last words"), .descriptors = {}}, soon()) ==
             Outcome::ok;
    });
  }
  EXPECT_TRUE(eventually([&] { return taken >= 20; }));
  EXPECT_EQ(taken, 20);
}

TEST(Call, KnowsTheCallerFromTheKernel) {
  Server server([](ServerThread& thread, Incoming& incoming) {
    const std::array who{static_cast<std::uint64_t>(incoming.caller().pid),
                         static_cast<std::uint64_t>(incoming.caller().uid)};
    thread.reply(incoming, std::as_bytes(std::span(who)));
  });
  const int port = server.port.descriptor();
  const bool root = ::geteuid() == 0;
  expect_in_child([port, root] {
    if (root && ::setresuid(65534, 65534, 65534) != 0) return false;
    Client client(port);
    std::array<std::uint64_t, 2> who{};
    CallResults results;
    results.buffer = std::as_writable_bytes(std::span(who));
    return client.call({}, results, soon()) == Outcome::ok &&
           who[0] == static_cast<std::uint64_t>(::getpid()) && who[1] == ::geteuid();
  });
}

TEST(Call, ThreadsOfOneClientCallAtOnce) {
  Server server(test::echo, 3);
  Client client(server.port.descriptor());
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&client, i] {
      for (int round = 0; round < 2000; ++round) {
        const std::string question = std::to_string(i) + "/" + std::to_string(round);
        ASSERT_EQ(ask(client, question), question);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(server.port.sessions(), 8U);
}

TEST(Call, OneServerThreadServesManyClientsInTurn) {
  Server server;
  const int port = server.port.descriptor();
  std::vector<std::thread> threads;
  std::array<std::atomic<int>, 4> calls{};
  std::atomic<bool> over{false};
  for (std::size_t i = 0; i < calls.size(); ++i)
    threads.emplace_back([&, i] {
      Client client(port);
      while (!over) {
        ask(client, "again");
        ++calls[i];
      }
    });
  std::this_thread::sleep_for(500ms);
  // Beside others it may take longer; who is passed over waits in vain.
  (void)eventually([&] {
    return std::ranges::all_of(calls, [](const std::atomic<int>& count) { return count > 50; });
  });
  over = true;
  for (std::thread& thread : threads) thread.join();
  for (const std::atomic<int>& count : calls) EXPECT_GT(count, 50);
}

TEST(Call, ServersCallEachOther) {
  Server inner;
  Client to_inner(inner.port.descriptor());
  Server outer([&](ServerThread& thread, Incoming& incoming) {
    thread.reply(incoming, bytes_of("<" + ask(to_inner, text_of(incoming.data())) + ">"));
  });
  Client client(outer.port.descriptor());
  EXPECT_EQ(ask(client, "nested"), "<nested>");
}

TEST(Call, AnyThreadMayReply) {
  std::thread late;
  Port port;
  Client client(port.descriptor());
  std::thread server([&] {
    ServerThread first(port);
    Incoming incoming;
    ASSERT_EQ(first.receive(incoming, soon()), Outcome::ok);
    late = std::thread([&port, waiting = std::move(incoming)]() mutable {
      ServerThread second(port);
      EXPECT_EQ(second.reply(waiting, waiting.data()), Outcome::ok);
    });
    // The first thread is free for others meanwhile.
    EXPECT_EQ(first.receive(incoming, Deadline::after(5ms)), Outcome::timed_out);
  });
  EXPECT_EQ(ask(client, "later"), "later");
  server.join();
  late.join();
}

TEST(Call, DescriptorCanBeDuplicatedInheritedAndPassedOn) {
  Server server;
  const UniqueFd copy(::dup(server.port.descriptor()));
  Client client(copy.get());
  EXPECT_EQ(ask(client, "dup"), "dup");
  expect_in_child([&] { return ask(client, "the parent's client, over fork") != ""; });
  EXPECT_EQ(ask(client, "the parent still"), "the parent still");
  const auto [here, there] = socket_pair();
  const pid_t child = test::fork_while_others_rest();
  if (child == 0) {
    auto fd_message = receive_fd_message(there.get(), soon());
    Client other(fd_message->descriptors.at(0).get());
    ::_exit(ask(other, "passed") == "passed" ? 0 : 1);
  }
  FdMessage fd_message;
  fd_message.descriptors.push_back(copy.duplicate());
  send_fd_message(here.get(), fd_message);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Call, SessionsOfDeadClientsGo) {
  Server server;
  const int port = server.port.descriptor();
  for (int i = 0; i < 10; ++i)
    expect_in_child([port] {
      Client client(port);
      return ask(client, "x") == "x";
    });
  EXPECT_TRUE(eventually([&] { return server.port.sessions() == 0; }));
}

TEST(Call, RefusesMoreSessionsThanAUserMayHave) {
  Server server(test::echo, 1, WaitMode::adaptive, {.sessions = 100, .sessions_per_user = 2});
  Client first(server.port.descriptor());
  Client second(server.port.descriptor());
  Client third(server.port.descriptor());
  EXPECT_EQ(ask(first, "1"), "1");
  EXPECT_EQ(ask(second, "2"), "2");
  CallResults results;
  EXPECT_THROW(third.call({}, results, soon()), SystemError);
  EXPECT_EQ(ask(first, "1"), "1");
}

TEST(Call, RefusesLongerRequestsThanAllowed) {
  Server server(test::echo, 1, WaitMode::adaptive, {.request_bytes = 100'000});
  Client client(server.port.descriptor());
  EXPECT_EQ(ask(client, std::string(100'000, 'x')).size(), 100'000U);
  CallResults results;
  const auto request = block(1'000'000, 1);
  EXPECT_THROW(client.call({.data = request, .descriptors = {}}, results, soon()), SystemError);
  EXPECT_EQ(ask(client, "shorter"), "shorter");
  // Neither side goes on with the memory that the refused one came in.
  EXPECT_EQ(ask(client, std::string(100'000, 'x')).size(), 100'000U);
}

TEST(Call, IdleSessionsTakeNoProcessorTime) {
  Server server(test::echo, 2);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 50; ++i) {
    clients.push_back(std::make_unique<Client>(server.port.descriptor()));
    ask(*clients.back(), "x");
  }
  std::this_thread::sleep_for(100ms);
  const auto us = [](const timeval& time) { return time.tv_sec * 1'000'000 + time.tv_usec; };
  std::int64_t used = 0;
  std::int64_t switches = 0;
  const auto at_rest = [&] { return used < 10'000 && switches <= 20; };
  // What they did before may still have to end where others have the processors; what is always so
  // is so each time.
  for (int tries = 0; tries == 0 || (tries < 8 && !at_rest()); ++tries) {
    rusage before{};
    rusage after{};
    ::getrusage(RUSAGE_SELF, &before);
    std::this_thread::sleep_for(500ms);
    ::getrusage(RUSAGE_SELF, &after);
    used = us(after.ru_utime) + us(after.ru_stime) - us(before.ru_utime) - us(before.ru_stime);
    switches = after.ru_nvcsw - before.ru_nvcsw;
  }
  EXPECT_LT(used, 10'000);
  EXPECT_LE(switches, 20);  // a sanitizer has a thread of its own
}

}  // namespace
}  // namespace farcall
