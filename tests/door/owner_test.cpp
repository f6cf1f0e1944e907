// SPDX-License-Identifier: Apache-2.0
//
// What somebody may do, through a file of their own, to those who open it, and to the server of a
// door that they attach there.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "door/impostor.hpp"
#include "harness/lingering.hpp"

namespace farcall::door::test {
namespace {

struct DoorOwner : DoorImpostor {
  Sandbox sandbox;
  std::string path = sandbox.file("file", 0666);

  void SetUp() override {
    if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
    ASSERT_EQ(::chown(path.c_str(), kNobody, kNobody), 0);
  }

  // Runs `opener` while the owner of the file serves its name by hand: each visitor goes to
  // `serve`, with what it has sent.
  template <class Serve, class Opener>
  void beside_owner(Serve serve, Opener opener) {
    const AttachAddress address(path);
    Shared<Event> ready;
    Child owner([&] {
      ASSERT_TRUE(become(kNobody));
      serve_name(address, *ready, serve);
    });
    ASSERT_TRUE(ready->wait());
    opener();
  }
};

// Root's own descriptor would show them where root writes, and they could undo root's locks.
TEST_F(DoorOwner, GetsNoDescriptorOfWhatRootOpens) {
  Shared<std::atomic<int>> brought{};
  beside_owner(
      [&](int, const Packet& packet) {
        if (packet.purpose == kPurposeOpen)
          brought->store(1 + static_cast<int>(packet.descriptors.size()));
      },
      [&] {
        const UniqueFd opened(::open(path.c_str(), O_RDWR));
        EXPECT_GE(opened.get(), 0) << std::strerror(errno);
      });
  EXPECT_EQ(brought->load(), 1) << "one more than the number of descriptors";
}

TEST_F(DoorOwner, GetsOneToReadWithOfWhatOthersOpen) {
  constexpr uid_t kOther = 2000;
  Shared<std::atomic<int>> seen{};
  beside_owner(
      [&](int, const Packet& packet) {
        if (packet.descriptors.size() != 1) return;
        seen->store(1 + (::fcntl(packet.descriptors[0].get(), F_GETFL) & (O_ACCMODE | O_APPEND)));
      },
      [&] {
        in_child([&] {
          ASSERT_TRUE(become(kOther));
          const UniqueFd opened(::open(path.c_str(), O_RDWR | O_APPEND));
          EXPECT_GE(opened.get(), 0) << std::strerror(errno);
        });
      });
  EXPECT_EQ(seen->load(), 1 + O_RDONLY);
}

TEST_F(DoorOwner, MakesNobodyWaitByTheSocketsThatHeSends) {
  constexpr int kLinger = 60;
  std::int64_t longest = 0;
  beside_owner(
      [&](int visitor, const Packet&) {
        const UniqueFd socket = lingering(kLinger);
        send_descriptors(visitor, std::array{socket.get()});
      },
      [&] {
        const std::int64_t begun = now_ns();
        const UniqueFd opened(::open(path.c_str(), O_RDONLY));
        longest = now_ns() - begun;
        EXPECT_GE(opened.get(), 0) << std::strerror(errno);
      });
  EXPECT_LT(longest, kLinger * std::int64_t{1'000'000'000} / 2);
}

// What somebody attaches to files of their own counts as theirs, and nobody else is short of it.
TEST_F(DoorOwner, MayAttachAsManyAsHisShareAndIsToldSo) {
  giver.door = door;
  std::vector<std::string> files;
  for (int i = 0; i < 400; ++i) {
    files.push_back(sandbox.file("file" + std::to_string(i)));
    ASSERT_EQ(::chown(files.back().c_str(), kNobody, kNobody), 0);
  }
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &few);
  in_child([&] {
    const UniqueFd his(receive_door(giving));
    ASSERT_TRUE(become(kNobody));
    std::size_t attached = 0;
    while (attached < files.size() && ::fattach(his.get(), files[attached].c_str()) == 0)
      ++attached;
    EXPECT_EQ(errno, EAGAIN);
    EXPECT_GT(attached, 20U);
    EXPECT_LT(attached, 1000U / 4);
  });
  const std::string own = sandbox.file("own");
  EXPECT_EQ(::fattach(door, own.c_str()), 0) << std::strerror(errno);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

// Who attaches a door shares the flags of the listener with the server, and can have accept() wait.
// So do more users than there are threads for; the server goes on, and believes none of them.
TEST_F(DoorOwner, HoldsUpNobodyByAListenerThatWaits) {
  giver.door = door;
  constexpr int kUsers = 40;
  std::vector<std::string> files;
  for (int i = 0; i < kUsers; ++i) {
    files.push_back(sandbox.file("file" + std::to_string(i)));
    ASSERT_EQ(::chown(files.back().c_str(), kNobody + 1 + static_cast<uid_t>(i), kNobody), 0);
  }
  Shared<Event> over;
  std::deque<Child> attackers;
  Shared<std::atomic<int>> blocking{};
  for (int i = 0; i < kUsers; ++i)
    attackers.emplace_back([&, i] {
      const std::string& file = files[static_cast<std::size_t>(i)];
      const AttachAddress address(file);
      const UniqueFd mine(receive_door(giving));
      ASSERT_TRUE(become(kNobody + 1 + static_cast<uid_t>(i)));
      const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
      ASSERT_EQ(::bind(listener.get(), address.get(), address.size), 0);
      ASSERT_EQ(::listen(listener.get(), 5), 0);
      const UniqueFd name(::open(file.c_str(), O_PATH));
      auto [answers, theirs] = packet_socket_pair();
      send_descriptors(mine.get(), std::array{listener.get(), name.get(), theirs.get()},
                       kPurposeAttach);
      pollfd answer{.fd = answers.get(), .events = POLLIN, .revents = 0};
      ASSERT_EQ(::poll(&answer, 1, 20'000), 1);
      ::fcntl(listener.get(), F_SETFL, 0);
      const UniqueFd visitor = visit(address);
      blocking->fetch_add(1);
      over->await();
    });
  EXPECT_TRUE(eventually([&] { return blocking->load() == kUsers; }));
  const std::string own = sandbox.file("own");
  EXPECT_EQ(::fattach(door, own.c_str()), 0) << std::strerror(errno);
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    const UniqueFd opened(::open(own.c_str(), O_RDONLY));
    EXPECT_EQ(call(opened.get(), "x").data, "x");
  });
  over->happens();
}

TEST(DoorAttachMany, AServerGivesItsDoorAsManyNamesAsItHasDescriptorsFor) {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  constexpr rlim_t kWanted = 8192;
  if (before.rlim_max < kWanted) GTEST_SKIP() << "needs root, to have more descriptors";
  const rlimit many{.rlim_cur = kWanted, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &many);
  const Sandbox sandbox;
  const int door = ::door_create(echo, nullptr, 0);
  constexpr int kNames = 1200;
  for (int i = 0; i < kNames; ++i)
    ASSERT_EQ(::fattach(door, sandbox.file(std::to_string(i)).c_str()), 0)
        << i << ": " << std::strerror(errno);
  const UniqueFd last(
      ::open((sandbox.path() + "/" + std::to_string(kNames - 1)).c_str(), O_RDONLY));
  EXPECT_EQ(call(last.get(), "x").data, "x");
  ::door_revoke(door);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace farcall::door::test
