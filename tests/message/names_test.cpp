// SPDX-License-Identifier: Apache-2.0
//
// Names of channels, who may connect to them, what is believed of who serves them, and the numbers
// that programs have for what they open.
#include "message/names.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "farcall/error.hpp"
#include "harness/error_of.hpp"
#include "message/channel.hpp"
#include "message/shared.hpp"
#include "message/table.hpp"

namespace farcall::message::test {
namespace {

TEST(MessageNames, AreOfVisibleBytesAndNotTooLong) {
  const auto error_of_name = [](const std::string& name) {
    return error_of([&] { (void)own_name(name); });
  };
  EXPECT_EQ(error_of_name("!"), 0) << "the first that is visible";
  EXPECT_EQ(error_of_name("~"), 0) << "the last of ASCII";
  EXPECT_EQ(error_of_name("\xc3\xa4"), 0);
  EXPECT_EQ(error_of_name(std::string(FARCALL_NAME_MAX, 'x')), 0);
  EXPECT_EQ(error_of_name(std::string(FARCALL_NAME_MAX + 1, 'x')), ENAMETOOLONG);
  for (const char* wrong : {"", " ", "a b", "a\n", "\x1f", "\x7f", "a/b", "/"})
    EXPECT_EQ(error_of_name(wrong), EINVAL) << wrong;
}

TEST(MessageNames, MayBeginWithTheirUsersNumber) {
  EXPECT_EQ(full_names("17/x"), std::vector<std::string>{"17/x"});
  for (const char* wrong : {"/x", "x/y", "17x/y", "-1/x", "17/", "17/a b", "17 /x"})
    EXPECT_EQ(error_of([&] { (void)full_names(wrong); }), EINVAL) << wrong;
  EXPECT_EQ(full_names("17").front(), std::to_string(::geteuid()) + "/17");
  EXPECT_EQ(full_names("x", kModulesOwnUser), (std::vector<std::string>{"~/x", "0/x"}));
}

Permissions of(mode_t mode) { return {.owner = ::geteuid(), .group = ::getegid(), .mode = mode}; }

// As with files: of the three only the one that is about somebody counts.
TEST(MessageNames, TheModeIsReadAsThatOfAFile) {
  const Credentials own{.pid = 1, .uid = ::geteuid(), .gid = ::getegid() + 1};
  const Credentials group{.pid = 1, .uid = kNobody, .gid = ::getegid()};
  const Credentials other{.pid = 1, .uid = kNobody, .gid = ::getegid() + 1};
  const Credentials root{.pid = 1, .uid = 0, .gid = 0};
  EXPECT_TRUE(may_connect(root, {}, of(0)));
  if (::geteuid() != 0) {
    EXPECT_TRUE(may_connect(own, {}, of(0200)));
    EXPECT_FALSE(may_connect(own, {}, of(0577)));
  }
  EXPECT_TRUE(may_connect(group, {}, of(0020)));
  EXPECT_FALSE(may_connect(group, {}, of(0757)));
  EXPECT_TRUE(may_connect(other, {}, of(0002)));
  EXPECT_FALSE(may_connect(other, {}, of(0775)));
}

// Where a process does not know other groups, they all look alike, and like its own.
TEST(MessageNames, WhoseGroupCannotBeKnownIsInNone) {
  in_child([] {
    if (::unshare(CLONE_NEWUSER) != 0) GTEST_SKIP() << "no user namespaces here";
    const Credentials unknown{.pid = 1, .uid = kNobody, .gid = ::getegid()};
    EXPECT_FALSE(may_connect(unknown, {}, of(0020)));
    EXPECT_TRUE(may_connect(unknown, {}, of(0002)));
  });
}

// Sockets that were connected to one carry its name, too.
TEST(MessageNames, AreThoseOfWhoListens) {
  const std::string full = std::to_string(::geteuid()) + "/" + unique_name("listed");
  const auto listed = [&] { return std::ranges::count(all_names(), full); };
  UniqueFd accepted;
  UniqueFd client(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  {
    const UniqueFd listener = listen_at(kStatusPrefix, full);
    EXPECT_EQ(listed(), 1);
    const AbstractAddress address(std::string(kStatusPrefix) + full);
    ASSERT_EQ(::connect(client.get(), address.get(), address.size()), 0);
    accepted = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_EQ(listed(), 1);
  }
  ASSERT_TRUE(accepted);
  EXPECT_EQ(listed(), 0);
}

// Who serves a name answers `answer` to one who asks there.
template <class Answer, class Ask>
int failure_where(std::string_view prefix, Answer answer, Ask ask) {
  const std::string full = std::to_string(::geteuid()) + "/" + unique_name("answers");
  const UniqueFd listener = listen_at(prefix, full);
  std::thread server([&] {
    pollfd entry{.fd = listener.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&entry, 1, static_cast<int>(kPatience.count())), 1);
    const UniqueFd client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    answer(client.get());
    char end = 0;
    (void)!::recv(client.get(), &end, 1, 0);
  });
  const int error = error_of([&] { ask(full); });
  server.join();
  return error;
}

TEST(MessageNames, WhatIsNoErrnoIsNotBelieved) {
  const auto error_of_answer = [](int error, int descriptor) {
    return failure_where(
        kOpenPrefix,
        [&](int client) {
          message::answer(client, error, UniqueFd(descriptor < 0 ? -1 : ::dup(descriptor)));
        },
        [](const std::string& full) {
          (void)message::ask(kOpenPrefix, full, Deadline::after(kPatience));
        });
  };
  EXPECT_EQ(error_of_answer(EACCES, -1), EACCES);
  EXPECT_EQ(error_of_answer(EHWPOISON, -1), EHWPOISON);
  for (const int none : {EHWPOISON + 1, 1 << 20, -1, -EACCES})
    EXPECT_EQ(error_of_answer(none, -1), EPROTO) << none;
  EXPECT_EQ(error_of_answer(0, -1), EPROTO) << "nothing came";
  EXPECT_EQ(error_of_answer(0, 0), 0);
}

// Of anything else to read might mean to wait for somebody.
TEST(MessageNames, AStatusIsReadFromMemoryAlone) {
  const auto error_of_status = [](int file) {
    return failure_where(
        kStatusPrefix, [&](int client) { message::answer(client, 0, UniqueFd(::dup(file))); },
        [](const std::string& full) { (void)ask_status(full); });
  };
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(error_of_status(nothing.get()), EPROTO);
  const auto [here, there] = packet_socket_pair();
  EXPECT_EQ(error_of_status(here.get()), EPROTO);
  const SharedMemory memory = SharedMemory::create(1);
  EXPECT_EQ(error_of_status(memory.fd()), 0);
}

// A program may still use one for a while after it has been given back.
TEST(MessageNumbers, AreNotUsedAgainForALongTime) {
  Table<int> table;
  std::set<int> seen;
  const auto object = std::make_shared<int>(1);
  for (int i = 0; i < 200'000; ++i) {
    const int number = table.add(object);
    ASSERT_GT(number, 0);
    ASSERT_TRUE(seen.insert(number).second) << "after " << i;
    ASSERT_EQ(table.find(number), object);
    ASSERT_EQ(table.remove(number), object);
    if (i % 1000 != 0) continue;
    ASSERT_EQ(error_of([&] { (void)table.find(number); }), EBADF);
    ASSERT_EQ(error_of([&] { (void)table.remove(number); }), EBADF);
  }
  EXPECT_EQ(object.use_count(), 1) << "the table keeps none";
}

// A place has so many in turn, and then the first ones again.
TEST(MessageNumbers, AreAboveZeroHoweverManyHaveBeenUsed) {
  Table<int> table;
  const auto object = std::make_shared<int>(1);
  std::set<int> first;
  constexpr int kPlaces = 65;  // which are used in turn
  constexpr int kOfEach = (1 << 16) - 1;
  for (int i = 0; i < kPlaces * (kOfEach + 1); ++i) {
    const int number = table.add(object);
    ASSERT_GT(number, 0) << "after " << i;
    if (i < kPlaces) first.insert(number);
    if (i >= kPlaces * kOfEach) {
      ASSERT_TRUE(first.contains(number)) << "after " << i;
    }
    (void)table.remove(number);
  }
}

TEST(MessageNumbers, ThereAreAsManyAsTheTableHas) {
  Table<int> table;
  std::vector<int> numbers;
  const auto object = std::make_shared<int>(1);
  EXPECT_EQ(error_of([&] {
              while (numbers.size() <= std::size_t{1} << 16) numbers.push_back(table.add(object));
            }),
            EMFILE);
  EXPECT_EQ(numbers.size(), std::size_t{1} << 15);
  for (const int number : {numbers.front(), numbers.back()}) (void)table.remove(number);
  EXPECT_NE(table.add(object), numbers.front());
  EXPECT_NE(table.add(object), numbers.back());
  EXPECT_EQ(error_of([&] { (void)table.add(object); }), EMFILE);
}

}  // namespace
}  // namespace farcall::message::test
