// SPDX-License-Identifier: Apache-2.0
#include "socket/acceptor.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "farcall/memory.hpp"
#include "farcall/socket.hpp"
#include "harness/child.hpp"
#include "harness/descriptors.hpp"
#include "harness/forbidden_call.hpp"

namespace farcall::test {
namespace {

UniqueFd stream() { return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

// Counts those who come.
class Door final : public process::Watch, public std::enable_shared_from_this<Door> {
 public:
  explicit Door(UniqueFd listener) : acceptor_(std::move(listener)) {}
  void open() { acceptor_.start(shared_from_this()); }
  void close() { acceptor_.close(); }
  void on_readable(std::uint32_t) noexcept override {
    if (refused.exchange(false)) {
      std::thread([this] {
        EXPECT_TRUE(forbid_call(SYS_accept4));  // to this thread
        look();
      }).join();
    } else {
      look();
    }
  }
  std::atomic<bool> refused{false};  // the first time
  std::atomic<int> let_in{0};
  std::atomic<int> looks{0};

 private:
  void look() {
    acceptor_.accept_waiting([this](UniqueFd&, const Credentials&, bool) { ++let_in; });
    ++looks;
  }

  process::Acceptor acceptor_;
};

// As long as this lives the process may have no more descriptors than it has.
class FullTable {
 public:
  FullTable() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    // A table of some size: the smaller it is, the less may wait to be done in the background.
    while (others_.size() < 100) others_.emplace_back(::dup(STDIN_FILENO));
    const UniqueFd next(::dup(STDIN_FILENO));
    const rlimit limit{.rlim_cur = static_cast<rlim_t>(next.get()), .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  FullTable(const FullTable&) = delete;
  FullTable& operator=(const FullTable&) = delete;
  ~FullTable() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
  std::vector<UniqueFd> others_;
};

// Though nobody else comes, and there was no descriptor to spare.
TEST(Acceptor, LetsInWhoCameWhileTheTableWasFull) {
  if (kAddressSanitizer) GTEST_SKIP() << "the sanitizer itself needs descriptors to look at memory";
  (void)process::Reactor::here();
  const std::size_t descriptors = open_descriptors();
  const AbstractAddress address("farcall-test/acceptor/" + std::to_string(::getpid()));
  UniqueFd listener = stream();
  ASSERT_EQ(::bind(listener.get(), address.get(), address.size()), 0);
  ASSERT_EQ(::listen(listener.get(), 4), 0);
  UniqueFd visitor = stream();
  std::shared_ptr<Door> door;
  {
    const FullTable full;
    door = std::make_shared<Door>(std::move(listener));
    door->open();
    ASSERT_EQ(::connect(visitor.get(), address.get(), address.size()), 0);
    EXPECT_TRUE(eventually([&] { return door->looks > 0; }));
    EXPECT_EQ(door->let_in, 0);
  }
  EXPECT_TRUE(eventually([&] { return door->let_in == 1; }));
  door->close();
  visitor.reset();
  EXPECT_TRUE(eventually([&] { return open_descriptors() == descriptors; }));
}

// Who may not accept for a moment, as where the kernel has no memory, tries again.
TEST(Acceptor, LetsInWhoCameWhileTheKernelHadNoRoom) {
  in_child([] {
    (void)process::Reactor::here();  // its thread may go on
    const AbstractAddress address("farcall-test/acceptor/" + std::to_string(::getpid()));
    UniqueFd listener = stream();
    ASSERT_EQ(::bind(listener.get(), address.get(), address.size()), 0);
    ASSERT_EQ(::listen(listener.get(), 4), 0);
    const auto door = std::make_shared<Door>(std::move(listener));
    door->refused = true;
    door->open();
    const UniqueFd visitor = stream();
    ASSERT_EQ(::connect(visitor.get(), address.get(), address.size()), 0);
    EXPECT_TRUE(eventually([&] { return door->let_in == 1; }));
    EXPECT_TRUE(eventually([&] { return door->looks >= 2; }));
    door->close();
  });
}

// Of those who have come by then the kernel tells once.
TEST(Acceptor, LetsInAllWhoHaveComeTogether) {
  (void)process::Reactor::here();
  const AbstractAddress address("farcall-test/acceptor/" + std::to_string(::getpid()));
  UniqueFd listener = stream();
  ASSERT_EQ(::bind(listener.get(), address.get(), address.size()), 0);
  constexpr int kMany = 40;
  ASSERT_EQ(::listen(listener.get(), kMany), 0);
  std::vector<UniqueFd> visitors;
  for (int i = 0; i < kMany; ++i) {
    visitors.push_back(stream());
    ASSERT_EQ(::connect(visitors.back().get(), address.get(), address.size()), 0);
  }
  const auto door = std::make_shared<Door>(std::move(listener));
  door->open();
  EXPECT_TRUE(eventually([&] { return door->let_in == kMany; }));
  door->close();
}

}  // namespace
}  // namespace farcall::test
