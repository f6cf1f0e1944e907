// SPDX-License-Identifier: Apache-2.0
//
// Doorbells that ask for nothing. Each is an event that some thread has to look at. It is put to
// its user's account; and a session that goes on ringing is not listened to for a while, the longer
// the more often that has happened. The reactor then listens again, and what has come meanwhile
// rings once.
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "call/port.hpp"
#include "farcall/error.hpp"

namespace farcall::call {
namespace {

// Who sends a request in earnest rings more than once where descriptors and ids come before it, or
// where a thread that leaves the session finds the request by itself.
constexpr unsigned kMostInVain = 16;
constexpr std::int64_t kShortestRest = 10'000'000;
constexpr unsigned kMostDoublings = 7;
constexpr std::int64_t kPause = 2'000'000;  // between two times that rests end
constexpr int kMostAtOnce = 64;

class RestAlarm final : public Watch {
 public:
  explicit RestAlarm(std::weak_ptr<PortState> port) : port_(std::move(port)) {}
  void on_readable(std::uint32_t) noexcept override {
    if (const auto port = port_.lock()) port->end_rests();
  }

 private:
  const std::weak_ptr<PortState> port_;
};

void set_alarm(Resting& resting, std::int64_t now) noexcept {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const std::int64_t at = std::max(resting.until.begin()->first, now + kPause);
  Alarm& alarm = *resting.alarm;
  if (alarm.at != 0 && alarm.at <= at) return;
  alarm.at = at;
  const itimerspec when{.it_interval = {}, .it_value = {at / kSecond, at % kSecond}};
  ::timerfd_settime(alarm.timer.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

}  // namespace

void PortState::rung_in_vain(ServerSession& session) noexcept {
  waiting.charge_at_once(*session.account, kTicksPerEvent);
  auto& vain = session.vain;
  const std::uint32_t taken = session.last_taken();
  if (vain.number.exchange(taken, std::memory_order_relaxed) != taken) {
    vain.count.store(0, std::memory_order_relaxed);
    vain.rests.store(0, std::memory_order_relaxed);
  }
  if (vain.count.fetch_add(1, std::memory_order_relaxed) + 1 < kMostInVain) return;
  const std::lock_guard guard(lock);
  if (session.resting || closed || !sessions.contains(session.id)) return;
  const std::int64_t now = monotonic_ns();
  const unsigned rests = vain.rests.fetch_add(1, std::memory_order_relaxed);
  try {
    if (!resting.alarm) {
      auto made = std::make_unique<Alarm>();
      made->timer =
          PrivateFd(UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)));
      if (!made->timer) return;
      made->registration.start(made->timer.get(), EPOLLIN,
                               std::make_shared<RestAlarm>(weak_from_this()));
      resting.alarm = std::move(made);
    }
    resting.until.emplace(now + (kShortestRest << std::min(rests, kMostDoublings)), session.id);
  } catch (const std::exception&) {
    return;  // it is listened to as before
  }
  session.resting = true;
  // Without EPOLLIN; that the client goes is told in any case.
  epoll_event event{.events = EPOLLET, .data = {.u64 = session.id}};
  ::epoll_ctl(epoll.get(), EPOLL_CTL_MOD, session.socket(), &event);
  set_alarm(resting, now);
}

void PortState::end_rests() noexcept {
  std::unique_ptr<Alarm> last;  // destroyed without the lock
  const std::lock_guard guard(lock);
  if (!resting.alarm) return;
  std::uint64_t times = 0;
  (void)!::read(resting.alarm->timer.get(), &times, sizeof times);
  const std::int64_t now = monotonic_ns();
  auto& until = resting.until;
  for (int i = 0; i < kMostAtOnce && !until.empty() && until.begin()->first <= now; ++i) {
    const std::uint64_t id = until.begin()->second;
    until.erase(until.begin());
    const auto found = sessions.find(id);
    if (found == sessions.end()) continue;
    ServerSession& session = *found->second.session;
    session.resting = false;
    // If that brings nothing it rests again at once.
    session.vain.count.store(kMostInVain - 1, std::memory_order_relaxed);
    epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.u64 = id}};
    ::epoll_ctl(epoll.get(), EPOLL_CTL_MOD, session.socket(), &event);
  }
  resting.alarm->at = 0;
  if (until.empty())
    last = std::move(resting.alarm);
  else
    set_alarm(resting, now);
}

}  // namespace farcall::call
