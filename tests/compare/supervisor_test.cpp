// SPDX-License-Identifier: Apache-2.0
//
// What becomes of rows that misbehave: an error that says how, and no process left.
#include "compare/supervisor.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "farcall/memory.hpp"

namespace farcall::compare {
namespace {

constexpr std::int64_t kMilli = 1'000'000;

struct Shared {
  std::atomic<std::uint64_t> word[2];
};

// Exchanges words through shared memory; `before_send` may change what a server sends, or not
// come back.
using Mischief = std::function<void(std::span<std::byte>, std::uint64_t count)>;

class MischievousEnd final : public Endpoint {
 public:
  MischievousEnd(Shared& shared, Role role, const Mischief& mischief)
      : shared_(shared), me_(static_cast<std::size_t>(role)), mischief_(mischief) {}
  void send(std::span<const std::byte> message) override {
    std::uint64_t word = 0;
    std::memcpy(&word, message.data(), sizeof word);
    if (me_ == 1) mischief_({reinterpret_cast<std::byte*>(&word), sizeof word}, ++sent_);
    shared_.word[me_].store(word);
  }
  void receive(std::span<std::byte> message) override {
    std::uint64_t word = 0;
    while ((word = shared_.word[1 - me_].load()) == last_) ::usleep(10);
    last_ = word;
    std::memcpy(message.data(), &word, sizeof word);
  }

 private:
  Shared& shared_;
  std::size_t me_;
  const Mischief& mischief_;
  std::uint64_t last_ = 0;
  std::uint64_t sent_ = 0;
};

class MischievousConnection final : public Connection {
 public:
  explicit MischievousConnection(const Mischief& mischief) : mischief_(mischief) {}
  std::unique_ptr<Endpoint> open(Role role) override {
    return std::make_unique<MischievousEnd>(*reinterpret_cast<Shared*>(memory_.data()), role,
                                            mischief_);
  }

 private:
  Mapping memory_ = Mapping::anonymous_shared(sizeof(Shared));
  const Mischief& mischief_;
};

Row mischievous_row(Mischief mischief) {
  return {{.mechanism = "mischief",
           .engine = "control",
           .wait = "spin",
           .description = "",
           .fixed_bytes = 8,
           .streams = false},
          [mischief = std::move(mischief)](const Conditions&) {
            return std::make_unique<MischievousConnection>(mischief);
          }};
}

SlotPlan plan_for(const Row& row) {
  return {.row = &row,
          .conditions = {.message_bytes = 8, .depth_bytes = 0, .name = "farcall-test"},
          .processor = {},
          .effort = Effort::tiny(4 * kMilli),
          .key = 99,
          .measure_depth = false,
          .depth = 0,
          .trace = std::nullopt};
}

// `patience_ns` is short only where it is to be over.
std::string run(const Row& row, std::int64_t patience_ns = 20'000 * kMilli) {
  Supervisor supervisor(1000, patience_ns);
  return supervisor.run(plan_for(row));
}

class SupervisedRow : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD) << "a process was left";
  }
};

TEST_F(SupervisedRow, ThatBehavesHasSamplesAndNoError) {
  const Row row = mischievous_row([](auto, auto) {});
  Supervisor supervisor(1000, 20'000 * kMilli);
  EXPECT_EQ(supervisor.run(plan_for(row)), "");
  EXPECT_GE(supervisor.samples().size(), kLeastSamples);
  for (const float sample : supervisor.samples()) EXPECT_GT(sample, 0);
}

TEST_F(SupervisedRow, ThatSendsAWrongWordFailsWithWhatWasWrong) {
  const Row row = mischievous_row([](std::span<std::byte> word, std::uint64_t count) {
    if (count == 3) word[3] ^= std::byte{1};
  });
  const std::string error = run(row);
  EXPECT_NE(error.find("client: wrong payload at byte 0 of 8"), std::string::npos) << error;
}

TEST_F(SupervisedRow, ThatThrowsFailsWithItsError) {
  const Row row = mischievous_row([](auto, std::uint64_t count) {
    if (count == 2) throw SystemError(EIO, "mischief");
  });
  const std::string error = run(row);
  EXPECT_NE(error.find("server: mischief: EIO"), std::string::npos) << error;
}

TEST_F(SupervisedRow, ThatHangsIsKilledAndFails) {
  const Row row = mischievous_row([](auto, std::uint64_t count) {
    if (count == 2) ::sleep(3600);
  });
  const std::string error = run(row, 300 * kMilli);
  EXPECT_NE(error.find("no answer within"), std::string::npos) << error;
}

TEST_F(SupervisedRow, WhoseServerDiesFails) {
  const Row row = mischievous_row([](auto, std::uint64_t count) {
    if (count == 2) ::kill(::getpid(), SIGKILL);
  });
  EXPECT_EQ(run(row), "the server process died");
}

TEST_F(SupervisedRow, HasItsSystemCallsCounted) {
  // The server sleeps at least once before each message that it receives.
  const Row row = mischievous_row([](auto, auto) {});
  SlotPlan plan = plan_for(row);
  plan.trace = Role::server;
  std::string why;
  Supervisor supervisor(1000, 20'000 * kMilli);
  const auto count = supervisor.trace(plan, why);
  if (!count && why.find("ptrace") != std::string::npos) GTEST_SKIP() << why;
  ASSERT_TRUE(count) << why;
  EXPECT_GE(*count, 0.9);
}

// A child that was there before the comparison, as of a shell that has put it in its own place, and
// that ends when the comparison does.
class OtherChild {
 public:
  OtherChild() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("pipe");
    mine_ = UniqueFd(ends[1]);
    const UniqueFd its(ends[0]);
    pid_ = ::fork();
    if (pid_ < 0) throw_errno("fork");
    if (pid_ != 0) return;
    mine_.reset();
    char byte = 0;
    ::_exit(::read(its.get(), &byte, 1) == 0 ? 7 : 1);
  }
  OtherChild(const OtherChild&) = delete;
  OtherChild& operator=(const OtherChild&) = delete;
  ~OtherChild() {
    mine_.reset();
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << "it was ended";
  }

 private:
  UniqueFd mine_;
  pid_t pid_ = -1;
};

TEST_F(SupervisedRow, IsNotHeldUpByAChildThatIsNotOfIt) {
  const OtherChild child;
  const Row row = mischievous_row([](auto, auto) {});
  EXPECT_EQ(run(row), "");
}

TEST_F(SupervisedRow, WhoseServerDiesIsNotHeldUpByAChildThatIsNotOfIt) {
  const OtherChild child;
  const Row row = mischievous_row([](auto, std::uint64_t count) {
    if (count == 2) ::kill(::getpid(), SIGKILL);
  });
  EXPECT_EQ(run(row), "the server process died");
}

TEST_F(SupervisedRow, IsCountedBesideAChildThatIsNotOfIt) {
  for (const Role traced : {Role::client, Role::server}) {
    const OtherChild child;
    const Row row = mischievous_row([](auto, auto) {});
    SlotPlan plan = plan_for(row);
    plan.trace = traced;
    std::string why;
    Supervisor supervisor(1000, 20'000 * kMilli);
    const auto count = supervisor.trace(plan, why);
    if (!count && why.find("ptrace") != std::string::npos) GTEST_SKIP() << why;
    EXPECT_TRUE(count) << why;
  }
}

// A pipe of one page, whose client is stopped for a while before it has filled it: as one is that
// waits for a processor.
class StoppedEnd final : public Endpoint {
 public:
  StoppedEnd(Role role, const int (&there)[2], const int (&back)[2])
      : in_(role == Role::client ? back[0] : there[0]),
        out_(role == Role::client ? there[1] : back[1]),
        stops_(role == Role::client) {}
  void send(std::span<const std::byte> message) override {
    if (stops_ && ++sent_ > kCalls && !stopped_ && filling()) stop();
    if (::write(out_, message.data(), message.size()) < 0) throw_errno("write");
  }
  void receive(std::span<std::byte> message) override {
    if (stops_) filled_ = 0;
    if (::read(in_, message.data(), message.size()) < 0) throw_errno("read");
  }

 private:
  static constexpr int kCalls = 3;
  // Several messages without an answer between them.
  bool filling() { return ++filled_ == 10; }
  void stop() {
    stopped_ = true;
    const pid_t me = ::getpid();
    const pid_t waker = ::fork();
    if (waker == 0) {
      ::usleep(100'000);
      ::kill(me, SIGCONT);
      ::_exit(0);
    }
    ::kill(me, SIGSTOP);
    ::waitpid(waker, nullptr, 0);
  }

  const int in_;
  const int out_;
  const bool stops_;
  int sent_ = 0;
  int filled_ = 0;
  bool stopped_ = false;
};

class StoppedConnection final : public Connection {
 public:
  StoppedConnection() {
    constexpr int kPage = 4096;
    if (::pipe(there_) != 0 || ::pipe(back_) != 0) throw_errno("pipe");
    if (::fcntl(there_[1], F_SETPIPE_SZ, kPage) < 0) throw_errno("F_SETPIPE_SZ");
  }
  std::unique_ptr<Endpoint> open(Role role) override {
    return std::make_unique<StoppedEnd>(role, there_, back_);
  }

 private:
  int there_[2]{};
  int back_[2]{};
};

TEST_F(SupervisedRow, WhoseClientIsStoppedIsNotTakenForFull) {
  const Row row({.mechanism = "stopped", .engine = "control", .wait = "block", .description = ""},
                [](const Conditions&) { return std::make_unique<StoppedConnection>(); });
  SlotPlan plan = plan_for(row);
  plan.measure_depth = true;
  Supervisor supervisor(1000, 20'000 * kMilli);
  EXPECT_EQ(supervisor.run(plan), "");
  EXPECT_EQ(supervisor.board().depth, 4096U / 8U);
}

}  // namespace
}  // namespace farcall::compare
