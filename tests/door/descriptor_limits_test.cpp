// SPDX-License-Identifier: Apache-2.0
//
// Descriptors for which the receiver has no room.
#include <gtest/gtest.h>

#include <array>

#include "door/scoped_server.hpp"
#include "farcall/limits.h"
#include "harness/sandbox.hpp"

namespace farcall::door::test {
namespace {

std::vector<door_desc_t> copied(const door_desc_t* descriptors, uint_t count) {
  return {descriptors, descriptors + count};
}
void close_all(const std::vector<door_desc_t>& descriptors) {
  for (const door_desc_t& descriptor : descriptors) ::close(fd_of(descriptor));
}
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(DoorDescriptors, ServersWithAFullTableGiveEmfile) {
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  // "full" takes what descriptors are left; then some come.
  struct Full {
    std::vector<UniqueFd> taken;
    Answer operator()(char* data, size_t size, door_desc_t* descriptors, uint_t count) {
      const std::string_view wish(data, size);
      if (wish == "full") {
        // Also what the library's threads are about to close: none has anything to do any more.
        (void)others_come_to_rest();
        for (int pass = 0; pass < 4; ++pass) {
          for (int fd; (fd = ::fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0;) taken.emplace_back(fd);
          std::this_thread::sleep_for(20ms);
        }
        for (int i = 0; i < 3; ++i) taken.pop_back();
      } else if (wish == "free") {
        taken.clear();
      }
      close_all(copied(descriptors, count));
      return std::to_string(count);
    }
  };
  ScopedServer server([] {
    rlimit few{.rlim_cur = 200, .rlim_max = 200};
    ::setrlimit(RLIMIT_NOFILE, &few);
    static Full full;
    return make_door(full);
  });
  const int door = server.door();
  EXPECT_EQ(call(door, "", {pass(0)}).data, "1");
  ASSERT_EQ(call(door, "full").data, "0");
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(error_of(door, "", std::vector<door_desc_t>(4, pass(0))), EMFILE);
    EXPECT_EQ(error_of(door, "", std::vector<door_desc_t>(150, pass(0))), EMFILE);
    EXPECT_EQ(call(door, "x").data, "0") << "without descriptors";
  }
  // A refused call leaves nothing there, once its descriptors have been closed.
  EXPECT_TRUE(
      eventually([&] { return call(door, "", std::vector<door_desc_t>(3, pass(0))).data == "3"; }));
  // The server's table does not matter to the client's own.
  const int released = ::dup(0);
  std::vector<door_desc_t> four(4, pass(0));
  four[2] = pass(released, DOOR_DESCRIPTOR | DOOR_RELEASE);
  EXPECT_EQ(error_of(door, "", four), EMFILE);
  EXPECT_FALSE(is_open(released));
  // A bad descriptor comes before a full table.
  EXPECT_EQ(error_of(door, "", std::vector<door_desc_t>(4, pass(9999))), EINVAL);
  EXPECT_EQ(call(door, "free").data, "0");
  EXPECT_EQ(call(door, "", std::vector<door_desc_t>(100, pass(0))).data, "100");
}

void expect_that_clients_keep_waiting(bool of_another_user) {
  auto procedure = [](char* data, size_t size, door_desc_t*, uint_t) {
    const int wanted = std::stoi(std::string(data, size));
    std::array<door_desc_t, 200> array;
    array.fill(pass(0));
    const int error =
        ERROR_OF(::door_return(data, size, array.data(), static_cast<uint_t>(wanted)));
    answer_number(error);  // the second attempt
  };
  const int door = make_door(procedure);
  in_child([&] {
    if (of_another_user) {
      ASSERT_TRUE(become(kNobody));
    }
    close_all(call(door, "1").descriptors);
    {
      std::vector<UniqueFd> taken;
      rlimit few{.rlim_cur = 200, .rlim_max = 200};
      ::setrlimit(RLIMIT_NOFILE, &few);
      for (int fd; (fd = ::fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0;) taken.emplace_back(fd);
      for (int i = 0; i < 3; ++i) taken.pop_back();
      for (int i = 0; i < 10; ++i) {
        for (const char* count : {"4", "5", "150"}) {
          const Reply reply = call(door, count);
          ASSERT_EQ(reply.error, 0) << std::strerror(reply.error);
          EXPECT_TRUE(reply.descriptors.empty());
          EXPECT_EQ(reply.number<int>(), EMFILE);
        }
      }
      Reply reply = call(door, "3");
      // What comes of others is closed by other threads.
      EXPECT_TRUE(!of_another_user || eventually([&] {
        if (reply.descriptors.size() != 3) reply = call(door, "3");
        return reply.descriptors.size() == 3;
      }));
      EXPECT_EQ(reply.descriptors.size(), 3U) << "a refused reply has left descriptors";
      close_all(reply.descriptors);
    }
    const Reply reply = call(door, "100");
    EXPECT_EQ(reply.descriptors.size(), 100U);
    close_all(reply.descriptors);
  });
}
TEST(DoorDescriptors, ClientsWithAFullTableMakeDoorReturnFailAndKeepWaiting) {
  expect_that_clients_keep_waiting(false);
}
TEST(DoorDescriptors, ClientsOfAnotherUserWithAFullTableKeepWaitingToo) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  expect_that_clients_keep_waiting(true);
}

// It did not fit the client's buffer; the next one does.
TEST(DoorDescriptors, NothingIsLeftOfAReplyForWhichTheClientHadNoRoom) {
  if (over_module()) GTEST_SKIP() << "the module is here";
  auto procedure = [](char*, size_t, door_desc_t*, uint_t) {
    static std::string much(5000, 'A');  // the thread leaves without ending its variables
    std::array<door_desc_t, 4> array;
    array.fill(pass(0));
    EXPECT_EQ(ERROR_OF(::door_return(much.data(), much.size(), array.data(), 4)), EMFILE);
    answer("no");
  };
  const int door = make_door(procedure);
  in_child([&] {
    rlimit few{.rlim_cur = 200, .rlim_max = 200};
    ::setrlimit(RLIMIT_NOFILE, &few);
    std::vector<UniqueFd> taken;
    for (int fd; (fd = ::fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0;) taken.emplace_back(fd);
    // For a session, and what is held while one is opened: more than for a call.
    for (int i = 0; i < 12; ++i) taken.pop_back();
    ASSERT_EQ(error_of(door, {}, {pass(9999)}), EINVAL);
    for (int fd; (fd = ::fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0;) taken.emplace_back(fd);
    for (int i = 0; i < 3; ++i) taken.pop_back();
    std::array<char, 64> buffer{};
    door_arg_t arguments{};
    arguments.rbuf = buffer.data();
    arguments.rsize = buffer.size();
    ASSERT_EQ(::door_call(door, &arguments), 0) << std::strerror(errno);
    EXPECT_EQ(arguments.rbuf, buffer.data());
    EXPECT_EQ(arguments.rsize, buffer.size());
    EXPECT_EQ(std::string(arguments.data_ptr, arguments.data_size), "no");
  });
}

TEST(DoorDescriptors, TooManyForOneMessageAreRefusedBothWays) {
  constexpr uint_t kTooMany = 1025;  // see door_call(3)
  static std::vector<door_desc_t> many(kTooMany, pass(0));
  auto procedure = [](char*, size_t, door_desc_t*, uint_t) {
    answer_number(ERROR_OF(::door_return(nullptr, 0, many.data(), kTooMany)));
  };
  const int door = make_door(procedure);
  in_server_and_client([&] {
    const Reply reply = call(door);
    EXPECT_EQ(reply.number<int>(), E2BIG);
    EXPECT_TRUE(reply.descriptors.empty());
    EXPECT_EQ(error_of(door, "", many), E2BIG);
  });
}

// A quarter of the table is what a user has where nobody says more.
TEST(DoorDescriptors, AUserOpensAsManyAsTheProgramPermits) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  constexpr int kTable = 256;
  constexpr int kMost = 100;
  constexpr int kOpened = 75;  // who has been answered counts until its socket is closed
  const farcall::test::Sandbox sandbox;
  const std::string path = sandbox.file("door", 0666);
  const ScopedServer server([&] {
    const rlimit few{.rlim_cur = kTable, .rlim_max = kTable};
    ::setrlimit(RLIMIT_NOFILE, &few);
    farcall_limits limits{};
    limits.size = sizeof limits;
    limits.descriptors_per_user = kMost;
    EXPECT_EQ(::door_limits_set(&limits), 0);
    const int door = ::door_create(echo, nullptr, 0);
    EXPECT_EQ(::fattach(door, path.c_str()), 0);
    return door;
  });
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    std::vector<UniqueFd> all;
    for (int i = 0; i < kOpened; ++i) {
      const auto opened = [&] {
        all.emplace_back(::open(path.c_str(), O_RDONLY));
        if (!all.back()) all.pop_back();
        return all.size() == static_cast<std::size_t>(i) + 1;
      };
      ASSERT_TRUE(eventually(opened)) << i << ": " << std::strerror(errno);
    }
  });
}

}  // namespace
}  // namespace farcall::door::test
