// SPDX-License-Identifier: Apache-2.0
//
// Calls of doors that refuse with any error.
#include <atomic>

#include "c/call.hpp"
#include "farcall/doors.h"

namespace farcall::c::test {
namespace {

// Doors can refuse with anything, also with what has another meaning here.
class CCallRefused : public CCall {
 protected:
  CCallRefused() {
    door_ = ::door_create(
        [](void*, char* data, size_t size, door_desc_t*, uint_t) {
          ++asked;
          int error = 0;
          std::memcpy(&error, data, std::min(size, sizeof error));
          ::door_refuse(error);
        },
        nullptr, 0);
    asked = 0;
    ::close(::open(path.c_str(), O_CREAT | O_CLOEXEC, 0600));
    EXPECT_EQ(::fattach(door_, path.c_str()), 0) << std::strerror(errno);
  }
  ~CCallRefused() override {
    EXPECT_EQ(::fdetach(path.c_str()), 0);
    EXPECT_EQ(::door_revoke(door_), 0);
  }
  static int refused_with(const Client& client, int error,
                          const farcall_call_options* options = nullptr) {
    auto answer = usual<farcall_answer>();
    return farcall_client_call(client.get(), &error, sizeof error, &answer, options);
  }

  static inline std::atomic<int> asked{0};

 private:
  int door_ = -1;
};

TEST_F(CCallRefused, WithEagainItIsNotAskedAgain) {
  const Client client = open(path);
  EXPECT_EQ(refused_with(client, EAGAIN), -EUSERS);
  EXPECT_EQ(asked, 1);
  const auto options = calling([](auto& all) {
    all.timeout = FARCALL_FOREVER;
    all.give_up = [](void*) { return int{asked > 3}; };
  });
  EXPECT_EQ(refused_with(client, EAGAIN, &options), -EUSERS);
  EXPECT_EQ(asked, 2);
}

// Who is told that the request has not been seen may send it once more.
TEST_F(CCallRefused, WithTheErrorOfARequestThatWasNotSeenItIsToldAsSeen) {
  const Client client = open(path);
  for (const int error : {EPIPE, EBADF, EINTR})
    EXPECT_EQ(refused_with(client, error), -ECONNABORTED) << error;
  EXPECT_EQ(refused_with(client, EACCES), -EACCES);
}

TEST_F(CCallRefused, WhatNobodyWaitsInIsOver) {
  const Client client = open(path);
  for (const int error : {EPIPE, EBADF, EINTR}) {
    farcall_call* call = nullptr;
    ASSERT_EQ(farcall_client_begin(client.get(), &error, sizeof error, nullptr, &call), 0);
    auto answer = usual<farcall_answer>();
    EXPECT_EQ(farcall_call_take(call, &answer, FARCALL_FOREVER), -ECONNABORTED) << error;
    EXPECT_EQ(farcall_call_take(call, &answer, FARCALL_FOREVER), -EINVAL) << "it has ended";
    farcall_call_close(call);
  }
}

}  // namespace
}  // namespace farcall::c::test
