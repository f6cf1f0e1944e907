// SPDX-License-Identifier: Apache-2.0
//
// Pipes between processes that have nothing in common but a name.
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "c/pipe.hpp"
#include "farcall/socket.hpp"

namespace farcall::c::test {
namespace {

std::string unique_name() {
  static int count = 0;
  return "c-pipe-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}
End serve(const std::string& name, std::int64_t timeout = kLong, int expected = 0) {
  farcall_pipe* end = nullptr;
  EXPECT_EQ(farcall_pipe_serve(name.c_str(), nullptr, timeout, &end), expected);
  return End(end);
}
End open(const std::string& name, std::int64_t timeout = kLong, int expected = 0) {
  farcall_pipe* end = nullptr;
  EXPECT_EQ(farcall_pipe_open(name.c_str(), nullptr, timeout, &end), expected);
  return End(end);
}

TEST(CPipeName, TwoProcessesMeet) {
  const std::string name = unique_name();
  Child child([&] {
    const End end = open(name);
    EXPECT_EQ(send(end, "hello"), 0);
    EXPECT_EQ(receive(end), "hello yourself");
    EXPECT_EQ(receive(end), "EPIPE");
  });
  End end = serve(name);
  EXPECT_EQ(receive(end), "hello");
  EXPECT_EQ(send(end, "hello yourself"), 0);
  end.reset();
  EXPECT_EQ(child.join(), 0);
}

TEST(CPipeName, OneNameMayServeManyInTurn) {
  const std::string name = unique_name();
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 4; ++i)
    children.push_back(std::make_unique<Child>([&] {
      const End end = open(name);
      EXPECT_EQ(receive(end), "yours");
    }));
  for (std::size_t i = 0; i < children.size(); ++i) {
    const End end = serve(name);
    EXPECT_EQ(send(end, "yours"), 0);
    EXPECT_EQ(receive(end), "EPIPE");
  }
  for (const auto& child : children) EXPECT_EQ(child->join(), 0);
}

TEST(CPipeName, WaitsNoLongerThanItIsTold) {
  const std::string name = unique_name();
  serve(name, 0, -EAGAIN);
  serve(name, kShort, -ETIMEDOUT);
  open(name, 0, -ECONNREFUSED);
  open(name, kShort, -ECONNREFUSED);
}

TEST(CPipeName, IsServedByOneAtATime) {
  const std::string name = unique_name();
  const NamedListener other(name);
  serve(name, kLong, -EADDRINUSE);
}

TEST(CPipeName, MustBeOne) {
  serve("", kLong, -EINVAL);
  open("", kLong, -EINVAL);
  serve(std::string(200, 'x'), kLong, -EINVAL);
  farcall_pipe* end = nullptr;
  EXPECT_EQ(farcall_pipe_serve(nullptr, nullptr, 0, &end), -EINVAL);
  EXPECT_EQ(farcall_pipe_open("name", nullptr, 0, nullptr), -EINVAL);
}

TEST(CPipeName, WhoWantsSomethingElseIsTurnedAway) {
  const std::string name = unique_name();
  std::thread others([&] {
    {
      const UniqueFd silent = connect_named(name, Deadline::never());  // and gone
    }
    const UniqueFd wrong = connect_named(name, Deadline::never());
    send_fd_message(wrong.get(), FdMessage{.bytes = std::vector<std::byte>(64), .descriptors = {}});
    const UniqueFd garbage = connect_named(name, Deadline::never());
    EXPECT_EQ(::send(garbage.get(), "garbage garbage", 15, MSG_NOSIGNAL), 15);
    const End right = open(name);
    EXPECT_EQ(send(right, "the right one"), 0);
  });
  const End end = serve(name);
  EXPECT_EQ(receive(end), "the right one");
  others.join();
}

// One that is forked while the name is served has neither that nor the end that somebody gets.
TEST(CPipeName, NoChildHidesThatTheOpenerHasGone) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const std::string name = unique_name();
  End end;
  std::thread serving([&] { end = serve(name); });
  {
    // By the time it is turned away all is made.
    const UniqueFd wrong = connect_named(name, Deadline::never());
    EXPECT_EQ(::send(wrong.get(), "garbage garbage", 15, MSG_NOSIGNAL), 15);
    EXPECT_TRUE(readable(wrong.get(), 10'000));
  }
  const Shared<Event> forked;
  const Shared<Event> over;
  Child worker([&] {
    forked->happens();
    EXPECT_TRUE(over->wait());
  });
  EXPECT_TRUE(forked->wait());
  Child opener([&] {
    const End mine = open(name);
    EXPECT_EQ(send(mine, "hello"), 0);
    EXPECT_TRUE(over->wait());
  });
  serving.join();
  EXPECT_EQ(receive(end), "hello");
  opener.kill();
  EXPECT_EQ(receive(end, 10'000'000'000), "ECONNRESET");
  serve(name, 0, -EAGAIN);  // the name is free
  over->happens();
  EXPECT_EQ(worker.join(), 0);
}

TEST(CPipeName, WhoSaysNothingHoldsUpNobodyForLong) {
  const std::string name = unique_name();
  std::thread others([&] {
    const UniqueFd silent = connect_named(name, Deadline::never());
    const End right = open(name);
    EXPECT_EQ(send(right, "the right one"), 0);
  });
  const End end = serve(name);
  EXPECT_EQ(receive(end), "the right one");
  others.join();
}

TEST(CPipeName, WhatServesSomethingElseIsNoPipe) {
  const std::string name = unique_name();
  NamedListener listener(name);
  std::thread server([&] {
    const UniqueFd client = listener.accept(Deadline::never());
    EXPECT_TRUE(receive_fd_message(client.get(), Deadline::never()));
    send_fd_message(client.get(), FdMessage{});
  });
  open(name, kLong, -EPROTO);
  server.join();
}

// Of either kind: who wants the other one is told, and the pipe is still there for who wants it.
TEST(CPipeName, ServesOneKind) {
  for (const int kind : {FARCALL_PIPE_MESSAGES, FARCALL_PIPE_BYTES}) {
    const std::string name = unique_name();
    const farcall_pipe_options right = options_of(0, FARCALL_WAIT_ADAPTIVE, kind);
    const farcall_pipe_options wrong = options_of(0, FARCALL_WAIT_ADAPTIVE, 1 - kind);
    Child child([&] {
      farcall_pipe* end = nullptr;
      for (int i = 0; i < 3; ++i)
        EXPECT_EQ(farcall_pipe_open(name.c_str(), &wrong, kLong, &end), -EPROTOTYPE);
      ASSERT_EQ(farcall_pipe_open(name.c_str(), &right, kLong, &end), 0);
      const End opened(end);
      if (kind == FARCALL_PIPE_BYTES) {
        EXPECT_EQ(write(opened, "bytes"), 5);
      } else {
        EXPECT_EQ(send(opened, "a message"), 0);
      }
    });
    farcall_pipe* end = nullptr;
    ASSERT_EQ(farcall_pipe_serve(name.c_str(), &right, kLong, &end), 0);
    const End served(end);
    if (kind == FARCALL_PIPE_BYTES) {
      EXPECT_EQ(read_all(served, 6), "bytes");
      EXPECT_EQ(read(served), "");
    } else {
      EXPECT_EQ(receive(served), "a message");
    }
    EXPECT_EQ(child.join(), 0);
  }
}

TEST(CPipeName, IsNoPublishers) {
  const std::string name = unique_name();
  Child child([&] {
    farcall_subscriber* subscriber = nullptr;
    EXPECT_EQ(farcall_subscriber_open(name.c_str(), nullptr, kLong, &subscriber), -EPROTO);
    EXPECT_EQ(send(open(name), "a pipe's"), 0);
  });
  EXPECT_EQ(receive(serve(name)), "a pipe's");
  EXPECT_EQ(child.join(), 0);
}

// It has been stopped for a while, say.
TEST(CPipeName, WhoAsksTooLateAsksAgain) {
  const std::string name = unique_name();
  auto listener = std::make_unique<NamedListener>(name);
  std::thread client([&] { EXPECT_EQ(send(open(name), "asked again"), 0); });
  {
    const UniqueFd late = listener->accept(Deadline::never());
    EXPECT_TRUE(receive_fd_message(late.get(), Deadline::never()));
    listener.reset();
    constexpr std::string_view kTooLate = "farcall pipe too late";
    send_fd_message(late.get(), std::as_bytes(std::span(kTooLate)), {});
  }
  EXPECT_EQ(receive(serve(name)), "asked again");
  client.join();
}

TEST(CPipeName, AServerThatSaysNothingIsNotWaitedForForEver) {
  const std::string name = unique_name();
  const NamedListener listener(name);
  open(name, kShort, -ETIMEDOUT);
}

TEST(CPipeName, AServerThatDiesIsNoServer) {
  const std::string name = unique_name();
  int error = -ETIMEDOUT;
  // One that has had no processor has not died by then.
  for (std::int64_t time = kShort; error == -ETIMEDOUT && time < kLong; time *= 4) {
    auto listener = std::make_unique<NamedListener>(name);
    std::thread server([&] {
      const UniqueFd client = listener->accept(Deadline::never());
      listener.reset();
    });
    farcall_pipe* end = nullptr;
    error = farcall_pipe_open(name.c_str(), nullptr, time, &end);
    server.join();
  }
  EXPECT_EQ(error, -ECONNREFUSED);
}

}  // namespace
}  // namespace farcall::c::test
