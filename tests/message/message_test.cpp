// SPDX-License-Identifier: Apache-2.0
//
// What comes of messages: their bytes, their answers, who sent them.
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <future>

#include "harness/lingering.hpp"
#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

TEST(Message, BringsTheReplyAndItsStatus) {
  Channel channel;
  auto reply = std::async(std::launch::async, [&] { return send(channel.connection, "question"); });
  const Message message = receive(channel.id);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  EXPECT_EQ(message.text, "question");
  EXPECT_EQ(answer(message.id, 42, "answer"), 0);
  EXPECT_EQ(reply.get(), (Reply{.status = 42, .error = 0, .text = "answer"}));
}

TEST(Message, KeepsContentAtEverySizeBetweenProcesses) {
  EchoServer server;
  in_child([&] {
    for (const std::size_t size : std::initializer_list<std::size_t>{0, 1, 47, 48, 49, 256, 3568,
                                                                     3569, 8192, 70'000, 1 << 20}) {
      std::string text(size, 0);
      for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 7 + size);
      for (int round = 0; round < 3; ++round) {
        const Reply reply = send(server.connection, text, size);
        ASSERT_EQ(reply.status, 0) << std::strerror(reply.error);
        ASSERT_TRUE(reply.text == text) << size;
      }
    }
  });
}

TEST(Message, GathersAndScatters) {
  Channel channel;
  std::array<char, 3> front{};
  std::array<char, 10> back{};
  auto client = std::async(std::launch::async, [&] {
    std::array out{iovec{const_cast<char*>("ab"), 2}, iovec{const_cast<char*>("cdefg"), 5}};
    std::array in{iovec{front.data(), front.size()}, iovec{back.data(), back.size()}};
    return farcall_sendv(channel.connection, out.data(), 2, in.data(), 2);
  });
  std::array<char, 1> first{};
  std::array<char, 20> rest{};
  const std::array into{iovec{first.data(), 1}, iovec{rest.data(), rest.size()}};
  farcall_info info{};
  farcall_timeout(std::chrono::nanoseconds(kPatience).count());
  const std::int64_t id = farcall_receivev(channel.id, into.data(), 2, &info);
  ASSERT_GT(id, FARCALL_ONE_WAY);
  EXPECT_EQ(info.length, 7U);
  EXPECT_EQ(info.room, 13U);
  EXPECT_EQ(first[0], 'a');
  EXPECT_STREQ(rest.data(), "bcdefg");
  const std::array reply{iovec{const_cast<char*>("123"), 3}, iovec{const_cast<char*>("4567"), 4}};
  EXPECT_EQ(farcall_replyv(id, 3, reply.data(), 2), 0);
  EXPECT_EQ(client.get(), 3);
  EXPECT_EQ(std::string(front.data(), 3), "123");
  EXPECT_STREQ(back.data(), "4567");
}

TEST(Message, AnErrorReplyIsTheClientsErrno) {
  Channel channel;
  auto reply = std::async(std::launch::async, [&] { return send(channel.connection, "x"); });
  const Message message = receive(channel.id);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  EXPECT_EQ(farcall_error(message.id, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(farcall_error(message.id, EDOM), 0);
  EXPECT_EQ(reply.get().error, EDOM);
}

TEST(Message, AnIdIsGoodForOneAnswer) {
  Channel channel;
  auto reply = std::async(std::launch::async, [&] { return send(channel.connection, "x"); });
  const Message message = receive(channel.id);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  EXPECT_EQ(answer(message.id, 1), 0);
  EXPECT_EQ(reply.get().status, 1);
  for (const std::int64_t id : {message.id, message.id + 1, std::int64_t{0}, std::int64_t{1},
                                std::int64_t{-1}, INT64_MAX}) {
    EXPECT_EQ(answer(id, 1), -1) << id;
    EXPECT_EQ(errno, ESRCH) << id;
  }
  char byte = 0;
  EXPECT_EQ(farcall_read(message.id, 0, &byte, 1), -1);
  EXPECT_EQ(errno, ESRCH);
  EXPECT_EQ(farcall_write(message.id, 0, &byte, 1), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(Message, TheRestOfALongMessageIsReadAtAnyOffset) {
  Channel channel;
  std::string text(100'000, 0);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i % 251);
  auto reply = std::async(std::launch::async, [&] { return send(channel.connection, text); });
  const Message message = receive(channel.id, 10);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  EXPECT_EQ(message.info.length, text.size());
  EXPECT_EQ(message.text, text.substr(0, 10));
  std::string part(1000, 0);
  EXPECT_EQ(farcall_read(message.id, 50'000, part.data(), part.size()), 1000);
  EXPECT_EQ(part, text.substr(50'000, 1000));
  EXPECT_EQ(farcall_read(message.id, 99'990, part.data(), part.size()), 10);
  EXPECT_EQ(farcall_read(message.id, 100'000, part.data(), part.size()), 0);
  EXPECT_EQ(farcall_read(message.id, 0, part.data(), 5), 5);
  EXPECT_EQ(part.substr(0, 5), text.substr(0, 5));
  answer(message.id, 0);
  EXPECT_EQ(reply.get().status, 0);
}

TEST(Message, WhatIsWrittenArrivesAtItsOffset) {
  Channel channel;
  std::string buffer(1000, '.');
  auto client = std::async(std::launch::async, [&] {
    return farcall_send(channel.connection, "x", 1, buffer.data(), buffer.size());
  });
  const Message message = receive(channel.id);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  EXPECT_EQ(farcall_write(message.id, 100, "one", 3), 3);
  EXPECT_EQ(farcall_write(message.id, 997, "trimmed", 7), 3);
  EXPECT_EQ(farcall_write(message.id, 1000, "beyond", 6), 0);
  EXPECT_EQ(farcall_write(message.id, 101, "N", 1), 1);
  EXPECT_EQ(answer(message.id, 7, "reply"), 0);
  EXPECT_EQ(client.get(), 7);
  std::string expected(1000, '.');
  expected.replace(0, 5, "reply");
  expected.replace(100, 3, "oNe");
  expected.replace(997, 3, "tri");
  EXPECT_EQ(buffer, expected);
}

TEST(Message, AReplyWithoutDataKeepsWhatWasWritten) {
  Channel channel;
  auto client = std::async(std::launch::async, [&] { return send(channel.connection, "x", 100); });
  const Message message = receive(channel.id);
  EXPECT_EQ(farcall_write(message.id, 0, "hello ", 6), 6);
  EXPECT_EQ(farcall_write(message.id, 6, "world", 5), 5);
  EXPECT_EQ(answer(message.id, 0), 0);
  EXPECT_EQ(client.get().text, "hello world");
}

TEST(Message, NoMoreIsRepliedThanThereIsRoomFor) {
  Channel channel;
  std::string buffer(10, '.');
  auto client = std::async(std::launch::async, [&] {
    return farcall_send(channel.connection, "x", 1, buffer.data(), 4);
  });
  const Message message = receive(channel.id);
  EXPECT_EQ(message.info.room, 4U);
  EXPECT_EQ(answer(message.id, 0, "abcdefgh"), 0);
  EXPECT_EQ(client.get(), 0);
  EXPECT_EQ(buffer, "abcd......");
}

// However much it writes, no more is sent than there is room for.
TEST(Message, WhatIsWrittenAgainAndAgainIsSentOnce) {
  constexpr std::size_t kOffset = 400'000;
  constexpr std::size_t kPart = 600'000;
  Channel channel;
  std::string buffer(kOffset + kPart, '.');
  auto client = std::async(std::launch::async, [&] {
    return farcall_send(channel.connection, "x", 1, buffer.data(), buffer.size());
  });
  const Message message = receive(channel.id);
  for (const char letter : {'a', 'b', 'c', 'd'}) {
    const std::string part(kPart, letter);
    EXPECT_EQ(farcall_write(message.id, kOffset, part.data(), kPart), static_cast<ssize_t>(kPart));
  }
  EXPECT_EQ(farcall_write(message.id, kOffset - 10, "0123456789xyz", 13), 13);
  EXPECT_EQ(answer(message.id, 7, "reply"), 0);
  EXPECT_EQ(client.get(), 7);
  std::string expected(kOffset + kPart, '.');
  expected.replace(0, 5, "reply");
  expected.replace(kOffset, kPart, kPart, 'd');
  expected.replace(kOffset - 10, 13, "0123456789xyz");
  EXPECT_TRUE(buffer == expected);
}

TEST(Message, TheKernelSaysWhoSends) {
  Channel channel;
  Child child([&] { EXPECT_EQ(send(channel.connection, "x").status, 0); });
  const Message message = receive(channel.id);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  EXPECT_EQ(message.info.pid, child.pid());
  EXPECT_EQ(message.info.tid, child.pid());
  EXPECT_EQ(message.info.uid, ::geteuid());
  EXPECT_EQ(message.info.gid, ::getegid());
  answer(message.id, 0);
  EXPECT_EQ(child.join(), 0);
}

TEST(Message, TheKernelSaysForWhichGroupItsSenderActs) {
  if (!is_root()) GTEST_SKIP() << "needs root, to act for another group";
  constexpr gid_t kGroup = 60'001;
  Channel channel;
  Child child([&] {
    ASSERT_EQ(::setresgid(kGroup, kGroup, kGroup), 0);
    EXPECT_EQ(send(channel.connection, "x").status, 0);
  });
  const Message message = receive(channel.id);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  EXPECT_EQ(message.info.uid, 0U);
  EXPECT_EQ(message.info.gid, kGroup);
  answer(message.id, 0);
  EXPECT_EQ(child.join(), 0);
}

TEST(Message, EachThreadIsKnownByItsId) {
  Channel channel;
  pid_t thread = 0;
  std::thread client([&] {
    thread = static_cast<pid_t>(::syscall(SYS_gettid));
    send(channel.connection, "x");
  });
  const Message message = receive(channel.id);
  answer(message.id, 0);
  client.join();
  EXPECT_EQ(message.info.pid, ::getpid());
  EXPECT_EQ(message.info.tid, thread);
}

TEST(Message, DescriptorsComeAlong) {
  Channel channel;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Child child([&] {
    farcall_message message{};
    const iovec out{.iov_base = const_cast<char*>("fd"), .iov_len = 2};
    message.send = &out;
    message.send_count = 1;
    message.descriptors = &ends[1];
    message.descriptor_count = 1;
    EXPECT_EQ(farcall_send_message(channel.connection, &message), 0);
  });
  const Message message = receive(channel.id);
  ASSERT_GT(message.id, FARCALL_ONE_WAY);
  ASSERT_EQ(message.info.descriptor_count, 1U);
  EXPECT_EQ(::write(message.info.descriptors[0], "y", 1), 1);
  EXPECT_NE(::fcntl(message.info.descriptors[0], F_GETFD) & FD_CLOEXEC, 0);
  ::close(message.info.descriptors[0]);
  answer(message.id, 0);
  EXPECT_EQ(child.join(), 0);
  char byte = 0;
  EXPECT_EQ(::read(ends[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  ::close(ends[0]);
  ::close(ends[1]);
}

// Here a socket whose last close waits for minutes.
TEST(Message, DescriptorsAreDroppedWithoutWaitingForTheirEnd) {
  Channel channel;
  UniqueFd socket = lingering(600);
  std::thread client([&] {
    const int number = socket.get();
    farcall_message message{};
    message.descriptors = &number;
    message.descriptor_count = 1;
    EXPECT_EQ(farcall_send_message(channel.connection, &message), 0);
  });
  Message message = receive(channel.id);
  EXPECT_EQ(message.info.descriptor_count, 1U);
  const int came = message.info.descriptors[0];
  EXPECT_EQ(answer(message.id, 0), 0);
  client.join();
  socket.reset();
  EXPECT_EQ(farcall_drop_descriptors(&message.info), 0);
  EXPECT_EQ(message.info.descriptor_count, 0U);
  EXPECT_TRUE(eventually([&] { return ::fcntl(came, F_GETFD) < 0; }));
  EXPECT_EQ(farcall_drop_descriptors(&message.info), 0) << "there are none";
  EXPECT_EQ(farcall_drop_descriptors(nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(Message, OneWayReturnsWhenItHasBeenReceived) {
  Channel channel;
  std::atomic<bool> sent{false};
  std::thread client([&] {
    EXPECT_EQ(farcall_send_one_way(channel.connection, "hello", 5), 0) << std::strerror(errno);
    sent = true;
  });
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(sent);
  const Message message = receive(channel.id);
  EXPECT_EQ(message.id, FARCALL_ONE_WAY);
  EXPECT_EQ(message.text, "hello");
  client.join();
  EXPECT_EQ(answer(message.id, 0), -1);
}

TEST(Message, IsReadAndWrittenInSeveralBuffersAtAnyPlace) {
  Channel channel;
  std::string buffer(20, '.');
  auto client = std::async(std::launch::async, [&] {
    return farcall_send(channel.connection, "0123456789", 10, buffer.data(), buffer.size());
  });
  const Message message = receive(channel.id, 1);
  std::string two(2, '.');
  std::string three(3, '.');
  const std::array buffers{iovec{.iov_base = two.data(), .iov_len = two.size()},
                           iovec{.iov_base = three.data(), .iov_len = three.size()}};
  EXPECT_EQ(farcall_readv(message.id, 4, buffers.data(), 2), 5);
  EXPECT_EQ(two + three, "45678");
  EXPECT_EQ(farcall_writev(message.id, 7, buffers.data(), 2), 5);
  EXPECT_EQ(farcall_writev(message.id, 18, buffers.data(), 2), 2) << "there is room for no more";
  EXPECT_EQ(answer(message.id, 0), 0);
  EXPECT_EQ(client.get(), 0);
  EXPECT_EQ(buffer, ".......45678......45");
}

// What is refused has not been begun: the client waits on, and nothing has been received.
TEST(Message, BuffersThatAreNowhereAreRefused) {
  Channel channel;
  std::thread client([&] { EXPECT_EQ(send(channel.connection, "hello").status, 7); });
  const Message message = receive(channel.id);
  const iovec nowhere{.iov_base = nullptr, .iov_len = 1};
  const std::int64_t id = message.id;
  const auto refused = [](std::int64_t result) { return result == -1 && errno == EINVAL; };
  EXPECT_TRUE(refused(farcall_reply(id, 0, nullptr, 1)));
  EXPECT_TRUE(refused(farcall_replyv(id, 0, &nowhere, 1)));
  EXPECT_TRUE(refused(farcall_reply_receive(id, 0, nullptr, 1, channel.id, nullptr, 0, nullptr)));
  EXPECT_TRUE(refused(farcall_reply_receive(id, 0, nullptr, 0, channel.id, nullptr, 1, nullptr)));
  EXPECT_TRUE(refused(farcall_read(id, 0, nullptr, 1)));
  EXPECT_TRUE(refused(farcall_readv(id, 0, &nowhere, 1)));
  EXPECT_TRUE(refused(farcall_write(id, 0, nullptr, 1)));
  EXPECT_TRUE(refused(farcall_writev(id, 0, &nowhere, 1)));
  EXPECT_TRUE(refused(farcall_receive(channel.id, nullptr, 1, nullptr)));
  EXPECT_TRUE(refused(farcall_receivev(channel.id, &nowhere, 1, nullptr)));
  EXPECT_TRUE(refused(farcall_send(channel.connection, nullptr, 1, nullptr, 0)));
  EXPECT_TRUE(refused(farcall_send(channel.connection, nullptr, 0, nullptr, 1)));
  EXPECT_TRUE(refused(farcall_sendv(channel.connection, &nowhere, 1, nullptr, 0)));
  EXPECT_TRUE(refused(farcall_sendv(channel.connection, nullptr, 0, &nowhere, 1)));
  EXPECT_TRUE(refused(farcall_send_one_way(channel.connection, nullptr, 1)));
  EXPECT_EQ(answer(id, 7), 0);
  client.join();
}

TEST(Message, WhatNoMessageCanHaveIsRefused) {
  Channel channel;
  const auto refused = [&](auto set) {
    farcall_message message{};
    set(message);
    farcall_timeout(0);
    return farcall_send_message(channel.connection, &message) == -1 && errno == EINVAL;
  };
  const std::vector<int> many(FARCALL_DESCRIPTORS + 1, 0);
  EXPECT_TRUE(refused([](auto& m) { m.flags = FARCALL_KEEP_WAITING << 1; }));
  EXPECT_TRUE(refused([](auto& m) { m.descriptor_count = 1; }));
  EXPECT_TRUE(refused([&](auto& m) {
    m.descriptors = many.data();
    m.descriptor_count = static_cast<unsigned>(many.size());
  }));
  EXPECT_EQ(farcall_send_message(channel.connection, nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
  struct {
    farcall_info info{};
    std::array<int, 16> behind{};
  } more;
  std::ranges::fill(more.info.descriptors, -1);
  more.behind.fill(-1);
  more.info.descriptor_count = FARCALL_DESCRIPTORS + 1;
  EXPECT_EQ(farcall_drop_descriptors(&more.info), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(receive(channel.id, 10, 0ns).error, ETIMEDOUT) << "nothing has come";
}

TEST(Message, TooLongOnesAreRefused) {
  Channel channel;
  char byte = 0;
  EXPECT_EQ(farcall_send(channel.connection, &byte, std::size_t{1} << 40, nullptr, 0), -1);
  EXPECT_EQ(errno, EMSGSIZE);
  EXPECT_EQ(farcall_sendv(channel.connection, nullptr, 1, nullptr, 0), -1);
  EXPECT_EQ(errno, EINVAL);
}

}  // namespace
}  // namespace farcall::message::test
