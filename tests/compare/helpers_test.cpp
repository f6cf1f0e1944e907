// SPDX-License-Identifier: Apache-2.0
//
// Processes beside the two sides of a row: what they use belongs to it, and they run where they
// like.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "compare/placement.hpp"
#include "compare/sides.hpp"
#include "farcall/memory.hpp"

namespace farcall::compare {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kWork = 20 * kMillisecond;  // of processor time, for each byte that it gets

// Works for each byte from one pipe and then answers by the other.
class Helper {
 public:
  Helper() {
    if (::pipe(there_) != 0 || ::pipe(back_) != 0) throw_errno("pipe");
    pid_ = ::fork();
    if (pid_ == 0) work();
  }
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;
  ~Helper() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    for (const int fd : {there_[0], there_[1], back_[0], back_[1]}) ::close(fd);
  }
  [[nodiscard]] pid_t pid() const { return pid_; }
  void call() const {
    char byte = 0;
    if (::write(there_[1], &byte, 1) != 1 || ::read(back_[0], &byte, 1) != 1) throw_errno("call");
  }

 private:
  [[noreturn]] void work() const {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (char byte = 0; ::read(there_[0], &byte, 1) == 1;) {
      const std::int64_t until = Usage::now().cpu_ns + kWork;
      while (Usage::now().cpu_ns < until) continue;
      if (::write(back_[1], &byte, 1) != 1) break;
    }
    ::_exit(0);
  }

  int there_[2]{};
  int back_[2]{};
  pid_t pid_ = -1;
};

TEST(HelpersOfARow, AddWhatTheyUseToIt) {
  const Helper helper;
  const auto memory = Mapping::anonymous_shared(sizeof(Board));
  Board& board = *reinterpret_cast<Board*>(memory.data());
  board.helpers[0] = helper.pid();
  std::array<float, 4> samples{};
  Effort effort = Effort::tiny(kMillisecond);
  effort.rtt_samples = 3;
  time_round_trips(effort, board, samples, [&](std::int64_t& after, bool) {
    const std::int64_t before = now();
    helper.call();
    after = now();
    return after - before;
  });
  EXPECT_GE(board.rtt[0].cpu_ns, 3 * kWork);
  EXPECT_GE(board.rtt[0].switches, 3);
}

int processors_of(pid_t process) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(process, sizeof set, &set) != 0) throw_errno("sched_getaffinity");
  return CPU_COUNT(&set);
}

TEST(HelpersOfARow, AreNotPinnedAsTheClientIs) {
  const int before = processors_of(0);
  if (before < 2) GTEST_SKIP() << "there is one processor only";
  const pid_t client = ::fork();
  if (client == 0) {
    pin_to(Processors().allowed().front());
    if (processors_of(0) != 1) ::_exit(2);
    unpin();
    ::_exit(processors_of(0) == before ? 0 : 1);
  }
  int status = -1;
  ::waitpid(client, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(HelpersOfARow, OfADaemonRunWhereTheyLike) {
  const int before = processors_of(0);
  if (before < 2) GTEST_SKIP() << "there is one processor only";
  for (const auto& row : all_rows().rows) {
    if (!row->info().helped || !row->refuses({.message_bytes = 8, .name = {}}).empty()) continue;
    const pid_t client = ::fork();
    if (client == 0) {
      pin_to(Processors().allowed().front());
      auto connection = row->make({.message_bytes = 8, .name = "farcall-helpers"});
      const std::vector<pid_t> helpers = connection->helpers();
      int wrong = helpers.empty() ? 1 : 0;
      for (const pid_t helper : helpers) wrong += processors_of(helper) == before ? 0 : 1;
      connection.reset();
      ::_exit(wrong);
    }
    int status = -1;
    ::waitpid(client, &status, 0);
    EXPECT_EQ(status, 0) << row->info().mechanism;
  }
}

}  // namespace
}  // namespace farcall::compare
