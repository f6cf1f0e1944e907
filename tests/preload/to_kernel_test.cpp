// SPDX-License-Identifier: Apache-2.0
//
// What makes a stream the kernel's whose bytes have gone through memory until then.
// The tests run as those of contract_test.cpp do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "farcall/memory.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

struct Way {
  const char* name;
  void (*go)(int fd);
};

// Whether or not this kind of socket has the option.
void set(int fd, int level, int option, int value) {
  (void)::setsockopt(fd, level, option, &value, sizeof value);
}

void filter(int fd) {
  sock_filter all{.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = 0xffff};
  const sock_fprog program{.len = 1, .filter = &all};
  (void)::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

void become_standard(int stream, int fd) {
  const UniqueFd kept(::dup(stream));
  EXPECT_EQ(::dup2(fd, stream), stream);
  EXPECT_EQ(::dup2(kept.get(), stream), stream);
}

const Way kWays[] = {
    {"peeking_on", [](int fd) { set(fd, SOL_SOCKET, SO_PEEK_OFF, 0); }},
    {"low_water_mark", [](int fd) { set(fd, SOL_SOCKET, SO_RCVLOWAT, 2); }},
    {"overflows", [](int fd) { set(fd, SOL_SOCKET, SO_RXQ_OVFL, 1); }},
    {"time", [](int fd) { set(fd, SOL_SOCKET, SO_TIMESTAMP, 1); }},
    {"credentials", [](int fd) { set(fd, SOL_SOCKET, SO_PASSCRED, 1); }},
    {"no_copies", [](int fd) { set(fd, SOL_SOCKET, SO_ZEROCOPY, 1); }},
    {"what_is_left", [](int fd) { set(fd, IPPROTO_TCP, TCP_INQ, 1); }},
    {"filter", filter},
    {"asynchronous",
     [](int fd) { EXPECT_EQ(::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_ASYNC), 0); }},
    {"asynchronous_by_ioctl",
     [](int fd) {
       int on = 1;
       EXPECT_EQ(::ioctl(fd, FIOASYNC, &on), 0);
     }},
    {"standard_output", [](int fd) { become_standard(STDOUT_FILENO, fd); }},
    {"standard_error", [](int fd) { become_standard(STDERR_FILENO, fd); }},
};

class ToKernel : public ::testing::TestWithParam<Way> {};

TEST_P(ToKernel, GoesWhatIsSentFromThenOn) {
  const UsedPair pair;
  GetParam().go(pair.server.get());
  pair.put("by the kernel");
  EXPECT_TRUE(readable_for_kernel(pair.server.get()));
  EXPECT_EQ(receive(pair.server.get()), "by the kernel");
}

INSTANTIATE_TEST_SUITE_P(Ways, ToKernel, ::testing::ValuesIn(kWays),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace farcall::preload
