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
  for (const int error :
       {EDOM, EPIPE, ECONNRESET, ENOTCONN, ETIMEDOUT, EINTR, EAGAIN, EBADF, ESRCH, ENOTTY, E2BIG})
    for (const int after_ms : {0, 40}) {
      EXPECT_EQ(call(server.door(), {.error = error, .after_ms = after_ms}), error) << after_ms;
      EXPECT_EQ(call(server.door(), {}), 0) << "the thread serves on";
    }
}

TEST(DoorRefuse, OutsideOfACallIsAnError) {
  EXPECT_EQ(ERROR_OF(::door_refuse(EDOM)), EINVAL);
  EXPECT_EQ(ERROR_OF(::door_refuse(0)), EINVAL);
}

}  // namespace
}  // namespace farcall::door::test
