// SPDX-License-Identifier: Apache-2.0
#include "process/reactor.hpp"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <memory>

#include "farcall/memory.hpp"
#include "harness/child.hpp"

namespace farcall::test {
namespace {

struct Counts final : process::Watch {
  void on_readable(std::uint32_t) noexcept override { came.happens(); }
  Event came;
};

std::ptrdiff_t threads() {
  const std::filesystem::directory_iterator all("/proc/self/task");
  return std::distance(begin(all), end(all));
}

TEST(Reactor, IsNotMadeInAChildForWhatItsParentWatches) {
  const UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const auto watch = std::make_shared<Counts>();
  process::Registration registration;
  registration.start(fd.get(), EPOLLIN | EPOLLONESHOT, watch);
  in_child([&] {
    const std::ptrdiff_t before = threads();
    registration.rearm(EPOLLIN);
    registration.stop();
    EXPECT_EQ(threads(), before);
  });
  ASSERT_EQ(::eventfd_write(fd.get(), 1), 0);
  EXPECT_TRUE(watch->came.wait()) << "the parent is told no more";
  registration.stop();
}

}  // namespace
}  // namespace farcall::test
