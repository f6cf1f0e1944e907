// SPDX-License-Identifier: Apache-2.0
//
// door_refuse(): the client's call fails with the errno that the server says, whatever that is.
#include <gtest/gtest.h>
#include <unistd.h>

#include "door/scoped_server.hpp"
#include "farcall/doors.h"

namespace farcall::door::test {
namespace {

struct Asked {
  int error;
  int after_ms;
};

void refuse(void*, char* data, size_t size, door_desc_t*, uint_t) {
  Asked asked{};
  if (size == sizeof asked) std::memcpy(&asked, data, sizeof asked);
  ::usleep(static_cast<useconds_t>(asked.after_ms) * 1000);
  if (asked.error != 0) ::door_refuse(asked.error);
  ::door_return(nullptr, 0, nullptr, 0);
}

int call(int door, Asked asked) {
  door_arg_t arguments{};
  arguments.data_ptr = reinterpret_cast<char*>(&asked);
  arguments.data_size = sizeof asked;
  return ERROR_OF(::door_call(door, &arguments));
}

TEST(DoorRefuse, IsTheErrnoOfTheClientsCall) {
  const ScopedServer server([] { return ::door_create(&refuse, nullptr, 0); });
  // Those that otherwise mean that a server is gone, or time is up, among them; at once, and when
  // the client has gone to sleep.
  for (const int error : {EDOM, EPIPE, ECONNRESET, ENOTCONN, ETIMEDOUT, EINTR, EAGAIN, EBADF, ESRCH,
                          ENOTTY, ENOTSOCK, E2BIG})
    for (const int after_ms : {0, 40}) {
      EXPECT_EQ(call(server.door(), {.error = error, .after_ms = after_ms}), error) << after_ms;
      EXPECT_EQ(call(server.door(), {}), 0) << "the thread serves on";
    }
}

void close_and_refuse(void* cookie, char*, size_t, door_desc_t* descriptors, uint_t count) {
  for (uint_t i = 0; i < count; ++i) ::close(fd_of(descriptors[i]));
  ::door_refuse(*static_cast<const int*>(cookie));
}

void close_and_refuse_later(void* cookie, char*, size_t, door_desc_t* descriptors, uint_t count) {
  for (uint_t i = 0; i < count; ++i) ::close(fd_of(descriptors[i]));
  door_deferred_t* call = nullptr;
  if (::door_defer(&call) != 0) ::door_refuse(EPROTO);
  EXPECT_EQ(::door_deferred_refuse(call, *static_cast<const int*>(cookie)), 0);
  ::door_return(nullptr, 0, nullptr, 0);
}

// Whether the caller's own descriptor is open after a call that passed it to be released.
bool keeps_released(int door, int error) {
  const int mine = ::dup(STDIN_FILENO);
  EXPECT_EQ(error_of(door, "x", {pass(mine, DOOR_DESCRIPTOR | DOOR_RELEASE)}), error);
  const bool kept = ::fcntl(mine, F_GETFD) >= 0;
  if (kept) ::close(mine);
  return kept;
}

TEST(DoorRefuse, TakesTheDescriptorsThatTheProcedureHasHad) {
  static int error;
  const int now = ::door_create(&close_and_refuse, &error, 0);
  const int later = ::door_create(&close_and_refuse_later, &error, 0);
  for (const int each : {EDOM, EINVAL, EINTR, EBADF, E2BIG, ENFILE}) {
    error = each;
    in_server_and_client([&] {
      EXPECT_FALSE(keeps_released(now, each)) << each;
      EXPECT_FALSE(keeps_released(later, each)) << each;
    });
  }
}

TEST(DoorRefuse, LeavesTheDescriptorsThatNoProcedureHasHad) {
  const int door = ::door_create(&refuse, nullptr, DOOR_REFUSE_DESC);
  in_server_and_client([&] { EXPECT_TRUE(keeps_released(door, ENOTSUP)); });
}

TEST(DoorRefuse, TakesNothingThatIsNoError) {
  const auto attempts = [](void*, char*, size_t, door_desc_t*, uint_t) {
    for (const int none : {0, -1, EHWPOISON + 1, 4095})
      if (ERROR_OF(::door_refuse(none)) != EINVAL) ::door_refuse(EPROTO);
    ::door_refuse(EHWPOISON);
  };
  const int door = ::door_create(attempts, nullptr, 0);
  in_server_and_client([&] { EXPECT_EQ(error_of(door, "x"), EHWPOISON); });
}

TEST(DoorRefuse, OutsideOfACallIsAnError) {
  EXPECT_EQ(ERROR_OF(::door_refuse(EDOM)), EINVAL);
  EXPECT_EQ(ERROR_OF(::door_refuse(0)), EINVAL);
}

}  // namespace
}  // namespace farcall::door::test
