// SPDX-License-Identifier: Apache-2.0
//
// The pulses that wait in a channel, by user and priority.
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "message/shared.hpp"

namespace farcall::message {

void SharedChannel::queue(Pulse pulse) noexcept {
  const auto priority = static_cast<std::uint8_t>(std::clamp(pulse.priority, 0, 255));
  const uid_t user = pulse.user ? *pulse.user : ::geteuid();
  const bool counts = pulse.user.has_value();
  bool queued = false;
  try {
    {
      const std::lock_guard guard(pulses_lock_);
      OfUser& his = pulses_of_[user];
      his.pulses.emplace(-static_cast<int>(priority), std::move(pulse));
      if (counts) ++his.queued;
      queued = true;
    }
    port_.post(notices_, priority, user);
  } catch (const std::exception&) {  // there is no memory for it
    // There are as many as notices: each notice takes the most urgent one.
    if (queued) (void)take_pulse_of(user, true);
  }
}

bool SharedChannel::OfUser::has_more_than(std::size_t many, int key) const noexcept {
  if (queued <= many) return false;
  std::size_t found = 0;
  for (auto one = pulses.begin(); one != pulses.end() && one->first <= key && found <= many; ++one)
    if (one->second.user) ++found;
  return found > many;
}

bool SharedChannel::has_room(uid_t user, int priority, std::weak_ptr<Link::Pulses> waiting,
                             bool ahead) noexcept {
  try {
    const std::lock_guard guard(pulses_lock_);
    OfUser& his = pulses_of_[user];
    if (his.queued < kMostPulsesAhead && (ahead || !his.has_more_than(kMostPulses - 1, -priority)))
      return true;
    if (!waiting.expired()) his.paused.emplace(-priority, std::move(waiting));
    return false;
  } catch (const std::bad_alloc&) {
    return true;  // rather too many than none
  }
}

std::optional<Pulse> SharedChannel::take_pulse_of(uid_t user, bool last) noexcept {
  std::optional<Pulse> pulse;
  {
    const std::lock_guard guard(pulses_lock_);
    const auto found = pulses_of_.find(user);
    if (found == pulses_of_.end() || found->second.pulses.empty()) return {};
    auto& pulses = found->second.pulses;
    const auto one = last ? std::prev(pulses.end()) : pulses.begin();
    pulse = std::move(one->second);
    pulses.erase(one);
    if (!pulse->user && found->second.unused()) pulses_of_.erase(found);
  }
  if (pulse->user) pulse_taken(*pulse->user);
  return pulse;
}

// The notice was that of one of the user's pulses: of these the most urgent.
bool SharedChannel::take_pulse(uid_t user, farcall_info* info) {
  const std::optional<Pulse> pulse = take_pulse_of(user, false);
  if (!pulse) return false;
  if (info != nullptr) {
    *info = {};
    info->connection = pulse->link ? pulse->link->number : 0;
    info->pid = pulse->sender.pid;
    info->tid = pulse->thread;
    info->uid = pulse->sender.uid;
    info->gid = pulse->sender.gid;
    info->code = pulse->code;
    info->value = pulse->value;
    info->priority = pulse->priority;
  }
  return true;
}

namespace {

// A thread's number may be another process's, in a namespace, and who has the connection, too, can
// say any. Of processes that cannot be seen from here the user is known.
bool is_of(const SharedPendingReply& pending, const Credentials& sender) noexcept {
  return pending.process.load(std::memory_order_acquire) == sender.pid &&
         (sender.pid != 0 || pending.user.load(std::memory_order_acquire) == sender.uid);
}

}  // namespace

bool SharedChannel::unblock(const Link& link, UnblockRequest request,
                            const Credentials& sender) noexcept {
  bool found = false;
  const std::lock_guard guard(lock_);
  for (const auto& pending : all_pending_) {
    const std::int64_t id = pending->id();
    if (id == 0 || pending->connection.load(std::memory_order_acquire) != link.number ||
        pending->origin.load(std::memory_order_acquire) != request.origin ||
        (request.number != 0 &&
         pending->number.load(std::memory_order_acquire) != request.number) ||
        !is_of(*pending, sender) || pending->id() != id)
      continue;
    if (pending->unblocking.exchange(id, std::memory_order_relaxed) == id) continue;
    found = true;
    queue({.code = FARCALL_PULSE_UNBLOCK,
           .value = id,
           .priority = pending->priority.load(std::memory_order_relaxed),
           .link = nullptr,
           .user = link.user});
  }
  return found;
}

}  // namespace farcall::message
