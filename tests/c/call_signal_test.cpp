// SPDX-License-Identifier: Apache-2.0
//
// Calls that signals may end.
#include <atomic>
#include <thread>

#include "c/call.hpp"
#include "farcall/doors.h"

namespace farcall::c::test {
namespace {

// What is asked whether a call is to be given up.
struct Asked {
  std::atomic<int> times{0};
  int give_up_at = 0;

  static int ask(void* context) {
    auto& self = *static_cast<Asked*>(context);
    return ++self.times == self.give_up_at ? 1 : 0;
  }
};

struct CCallSignal : CCall {
  CCallSignal() {
    struct sigaction action {};
    action.sa_handler = [](int) { farcall_note_signal(); };
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGUSR1, &action, nullptr);
  }
  // Calls a procedure that sends so many signals to the caller, or until it has seen enough of
  // them; returns what came of it. A caller that has had no processor takes many for one.
  std::string call_and_be_interrupted(Asked* asked, int signals) {
    const pthread_t self = ::pthread_self();
    std::atomic<int> calls{0};
    std::atomic<bool> over{false};
    std::atomic<bool> finished{false};
    const Server server = serve(path, [&](std::string_view, farcall_call_reply* reply) {
      ++calls;
      const bool gives_up = asked != nullptr && asked->give_up_at > 0;
      for (int i = 0; !over && i < (gives_up ? 1000 : signals); ++i) {
        ::pthread_kill(self, SIGUSR1);
        std::this_thread::sleep_for(kGlance);
      }
      for (int i = 0; i < 1000 && !over && (asked == nullptr || asked->times == 0); ++i)
        std::this_thread::sleep_for(kGlance);
      const int error = write(reply, "done");
      finished = true;
      return error;
    });
    const Client client = open(path);
    auto options = usual<farcall_call_options>();
    if (asked != nullptr) {
      options.give_up = Asked::ask;
      options.context = asked;
    }
    std::string result = call(client, "interrupt", options);
    over = true;
    EXPECT_TRUE(eventually([&] { return finished.load(); }));
    EXPECT_EQ(calls, 1);
    return result;
  }
};

TEST_F(CCallSignal, EndsACall) { EXPECT_EQ(call_and_be_interrupted(nullptr, 1), "EINTR"); }

TEST_F(CCallSignal, DoesNotIfTheProgramWantsToWait) {
  Asked asked;
  EXPECT_EQ(call_and_be_interrupted(&asked, 3), "done");
  EXPECT_GT(asked.times, 0);
}

TEST_F(CCallSignal, EndsItWhenTheProgramHasHadEnough) {
  Asked asked{.give_up_at = 2};
  EXPECT_EQ(call_and_be_interrupted(&asked, 2), "EINTR");
  EXPECT_EQ(asked.times, 2);
}

TEST_F(CCall, AsksOnceWithoutASignal) {
  // A reply that is there is not asked about, so none comes before.
  auto& asked = lasting<Asked>();
  const Server server = serve(path, [&asked](std::string_view, farcall_call_reply* reply) {
    EXPECT_TRUE(eventually([&] { return asked.times > 0; }));
    std::this_thread::sleep_for(std::chrono::nanoseconds(4 * kShort));
    return write(reply, "done");
  });
  const Client client = open(path);
  const auto asking = calling([&](auto& o) {
    o.give_up = Asked::ask;
    o.context = &asked;
    o.ask_after = kShort / 2;
  });
  EXPECT_EQ(call(client, "slow", asking), "done");
  EXPECT_EQ(asked.times, 1);
  asked.times = 0;
  asked.give_up_at = 1;
  EXPECT_EQ(call(client, "slow", asking), "EINTR");
}

TEST_F(CCall, AsksNobodyWhereThereIsNobodyToAsk) {
  const Server server = serve(path, [](std::string_view, farcall_call_reply* reply) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(kShort));
    return write(reply, "done");
  });
  EXPECT_EQ(call(open(path), "slow", calling([](auto& o) { o.ask_after = 1; })), "done");
}

}  // namespace
}  // namespace farcall::c::test
