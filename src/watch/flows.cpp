// SPDX-License-Identifier: Apache-2.0
#include "watch/flows.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "observe/clock.hpp"
#include "watch/lease.hpp"
#include "watch/status.hpp"
#include "watch/text.hpp"

namespace farcall::watch {
namespace {

using observe::Counters;
using observe::Half;
using observe::Kind;
using observe::Role;
using observe::Times;

constexpr std::uint64_t kSamplesPerSecond = 1000;

// Whose answers can be timed: not of one-way ends, nor of who answers.
bool asks(const End& end) { return end.role == Role::client || end.role == Role::none; }
bool is_left(const End& end) { return end.role == Role::client || end.role == Role::writer; }
bool is_right(const End& end) { return end.role == Role::server || end.role == Role::reader; }

// A counter that has gone back is somebody's scribble: then nothing has passed.
std::uint64_t more(std::uint64_t now, std::uint64_t before) {
  return now > before ? now - before : 0;
}

void add_passed(Passed& to, const Half& now, const Half& before) {
  to.messages += more(now.messages, before.messages);
  to.bytes += more(now.bytes, before.bytes);
  to.kernel_messages += more(now.kernel_messages, before.kernel_messages);
  to.kernel_bytes += more(now.kernel_bytes, before.kernel_bytes);
}

void add_waits(Waits& to, const Half& now, const Half& before) {
  to.sleeps += more(now.sleeps, before.sleeps);
  to.slept_ns += more(now.slept_ns, before.slept_ns);
  to.spun_ns += more(now.spun_ns, before.spun_ns);
  if (now.waiting_since != 0 && (to.since == 0 || now.waiting_since < to.since))
    to.since = now.waiting_since;
}

// With the user who says so: nobody is believed about others.
using AddressPair = std::tuple<uid_t, std::array<std::uint8_t, 16>, std::uint16_t,
                               std::array<std::uint8_t, 16>, std::uint16_t>;
AddressPair pair_of(const Process& process, const observe::Address& one,
                    const observe::Address& other) {
  return {process.user, one.bytes, one.port, other.bytes, other.port};
}

unsigned sampling_for(std::uint64_t messages, std::int64_t elapsed_ns) {
  if (elapsed_ns <= 0) return 4;
  const double per_second = static_cast<double>(messages) * 1e9 / static_cast<double>(elapsed_ns);
  unsigned sampling = 0;
  while (sampling < 15 && per_second / static_cast<double>(1U << sampling) > kSamplesPerSecond)
    ++sampling;
  return sampling;
}

}  // namespace

void add_times(Times& to, const Times& now, const Times& before) {
  for (std::size_t i = 0; i < Times::kClasses; ++i)
    to.classes[i] += static_cast<std::uint32_t>(more(now.classes[i], before.classes[i]));
  to.count += more(now.count, before.count);
  to.sum_ns += more(now.sum_ns, before.sum_ns);
}

std::uint64_t percentile(const Times& times, unsigned percent) {
  std::uint64_t all = 0;
  for (const std::uint32_t in_class : times.classes) all += in_class;
  if (all == 0) return 0;
  const std::uint64_t wanted = (all * percent + 99) / 100;
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < Times::kClasses; ++i) {
    seen += times.classes[i];
    // The middle of the class.
    if (seen >= wanted) return (observe::least_of(i) + observe::least_of(i + 1)) / 2;
  }
  return 0;
}

const char* reason_text(std::uint8_t reason) noexcept {
  // In the order of preload/stats.hpp.
  static constexpr std::array kTexts{"",
                                     "the peer is on another machine",
                                     "excluded by the settings",
                                     "ended before it was worth it",
                                     "the peer has no library, or goes round it",
                                     "the peer belongs to another user",
                                     "the kernel does not tell who holds the other end",
                                     "as many as the settings allow are accelerated",
                                     "no memory, or no descriptors",
                                     "several processes held it from the beginning",
                                     "data had passed before the library saw it",
                                     "an option that changes the stream itself",
                                     "out-of-band data",
                                     "passed to another program",
                                     "the peer broke the protocol",
                                     "the program uses io_uring, or is confined by seccomp",
                                     "unknown"};
  static_assert(kTexts.size() == kUnknownReason + 1);
  if (reason == observe::kLeftByPeer) return "the other end gave it back to the kernel";
  return kTexts[std::min(reason, kUnknownReason)];
}

Flows::Key Flows::key_of(const Ref& ref) {
  return {ref.process->pid, ref.process->started, ref.end->table, ref.end->index,
          ref.end->generation};
}

void Flows::read_all_times(const std::vector<Process>& processes) {
  now_.clear();
  for (const Process& process : processes)
    for (const End& end : process.ends) {
      const Key key = key_of({&process, &end});
      Last& now = now_[key];
      now.counters = end.counters;
      now.times = {};
      if (!options_.timed || !asks(end)) continue;
      const auto before = last_.find(key);
      // What has not moved has no new times.
      const bool moved = before == last_.end() || std::memcmp(&before->second.counters,
                                                              &end.counters, sizeof(Counters)) != 0;
      if (!moved)
        now.times = before->second.times;
      else if (!read_times(process, end, now.times))
        now.times = {};
    }
}

void Flows::time_answers(const std::vector<Process>& processes) {
  const auto duration = std::chrono::nanoseconds(
      std::clamp<std::int64_t>(3 * options_.interval_ns, 1'000'000'000, 15'000'000'000));
  for (const Process& process : processes) {
    std::vector<Lease> leases;
    for (const End& end : process.ends) {
      if (!asks(end) || end.inherited) continue;
      const auto before = last_.find(key_of({&process, &end}));
      const Half& sent = end.counters.sent;
      const std::uint64_t messages = before == last_.end()
                                         ? 0
                                         : more(sent.messages + sent.kernel_messages,
                                                before->second.counters.sent.messages +
                                                    before->second.counters.sent.kernel_messages);
      leases.push_back(
          {.word = Lease::Word::watch,
           .end = &end,
           .sampling = sampling_for(messages, before == last_.end() ? 0 : elapsed_ns_)});
    }
    if (!leases.empty()) renew(process, leases, duration);
  }
}

void Flows::add_half(Flow& flow, const Ref& ref, bool left, const Ref& other) const {
  const Counters& now = now_.at(key_of(ref)).counters;
  static constexpr Last kNothing{};
  const auto found = last_.find(key_of(ref));
  const Last& before = found == last_.end() ? kNothing : found->second;
  // What was open at the last look and is seen only now had counted before.
  const bool is_late = found == last_.end() && ref.end->opened < looked_before_;
  const bool other_seen = other.end != nullptr;
  // Then the other end has told of it until now, which is not counted a second time.
  const bool was_told_of = is_late && other_seen && last_.contains(key_of(other));
  for (Figures* const figures : {&flow.total, &flow.since, &flow.grown}) {
    Figures& to = *figures;
    const bool begins_now = was_told_of || (is_late && figures == &flow.since);
    const Last& last = figures == &flow.total ? kNothing
                       : begins_now           ? now_.at(key_of(ref))
                                              : before;
    const Counters& from = last.counters;
    // Each party tells what it has sent; where it cannot be seen, the other one what came.
    add_passed(left ? to.forward : to.back, now.sent, from.sent);
    if (!other_seen) add_passed(left ? to.back : to.forward, now.received, from.received);
    Waits& waits = left ? to.left : to.right;
    add_waits(waits, now.sent, from.sent);
    add_waits(waits, now.received, from.received);
    to.dropped += more(now.received.dropped, from.received.dropped) +
                  more(now.sent.dropped, from.sent.dropped);
    if (left) add_times(to.times, now_.at(key_of(ref)).times, last.times);
  }
}

namespace {

// Which of two ends of a connection tells what carries it: one that has left memory knows that
// before the other, and one that left by itself knows why.
const End& teller(const End* left, const End* right) {
  const auto rank = [](const End* end) {
    if (end == nullptr) return 0;
    if (end->carrier != observe::Carrier::kernel) return 1;
    constexpr std::uint8_t kPeerSilent = 4;
    const bool by_itself =
        end->reason != 0 && end->reason != kPeerSilent && end->reason != observe::kLeftByPeer;
    return by_itself ? 3 : 2;
  };
  return rank(right) > rank(left) ? *right : *left;
}

std::uint8_t known_reason(std::uint8_t reason) {
  return reason == observe::kLeftByPeer ? reason : std::min(reason, kUnknownReason);
}

}  // namespace

void Flows::add(const Ref& left, const Ref& right, const Ref& left_known, const Ref& right_known) {
  const End& tells = teller(left.end, right.end);
  Flow fresh{.kind = (left.end != nullptr ? left : right).end->kind,
             .carrier = tells.carrier,
             .reason = known_reason(tells.reason),
             .name = {},
             .left = {},
             .right = {},
             .connections = 0,
             .total = {},
             .since = {},
             .grown = {}};
  const auto party = [](const Ref& known, const Ref& other, bool seen) {
    Party of;
    of.seen = seen;
    if (known.process != nullptr) {
      of.pid = known.process->pid;
      of.command = printable(known.process->command);
    } else if (Status status; other.end->peer != 0 && read_status(other.end->peer, status) &&
                              status.user == other.process->user) {
      of.pid = other.end->peer;
      of.command = printable(status.command);
    }
    return of;
  };
  fresh.left = party(left_known, right_known, left.end != nullptr);
  fresh.right = party(right_known, left_known, right.end != nullptr);
  // A server knows best what it is called.
  for (const Ref* ref : {&right_known, &left_known})
    if (fresh.name.empty() && ref->end != nullptr) {
      fresh.name = printable(ref->end->name);
      if (fresh.name.empty())
        fresh.name = to_text(is_right(*ref->end) ? ref->end->local : ref->end->remote);
    }
  const auto [place, is_new] = places_.try_emplace(
      Place{fresh.kind, fresh.carrier, fresh.reason, fresh.left.pid, fresh.right.pid, fresh.name},
      flows_.size());
  if (is_new) {
    if (const auto known = grown_.find(place->first); known != grown_.end())
      fresh.grown = known->second;
    flows_.push_back(std::move(fresh));
  }
  Flow& flow = flows_[place->second];
  flow.left.seen = flow.left.seen || left.end != nullptr;
  flow.right.seen = flow.right.seen || right.end != nullptr;
  ++flow.connections;
  if (left.end != nullptr) add_half(flow, left, true, right);
  if (right.end != nullptr) add_half(flow, right, false, left);
}

// All have the same memory. Usually there is one of each; after forks, and of broadcasts, there may
// be more.
void Flows::pair(std::vector<Ref>& lefts, std::vector<Ref>& rights) {
  const Ref none;
  const std::size_t count = std::max(lefts.size(), rights.size());
  for (std::size_t i = 0; i < count; ++i) {
    const bool has_left = i < lefts.size();
    const bool has_right = i < rights.size();
    const Ref& left_known = has_left ? lefts[i] : lefts.empty() ? none : lefts[0];
    const Ref& right_known = has_right ? rights[i] : rights.empty() ? none : rights[0];
    add(has_left ? lefts[i] : none, has_right ? rights[i] : none, left_known, right_known);
  }
}

void Flows::look(const std::vector<Process>& processes) {
  const std::int64_t now = observe::monotonic_ns();
  looked_before_ = std::exchange(looked_at_, now);
  elapsed_ns_ = looked_before_ == 0 ? 0 : now - looked_before_;
  read_all_times(processes);
  if (options_.timed) time_answers(processes);
  flows_.clear();
  places_.clear();
  std::map<Session, std::vector<Ref>> by_memory;
  std::map<AddressPair, Ref> servers;  // TCP that stays with the kernel
  std::vector<Ref> alone;
  for (const Process& process : processes)
    for (const End& end : process.ends) {
      if (end.session) {
        by_memory[end.session].push_back({&process, &end});
      } else if (end.kind == Kind::tcp && end.role == Role::server) {
        servers[pair_of(process, end.remote, end.local)] = {&process, &end};
      } else {
        alone.push_back({&process, &end});
      }
    }
  for (auto& [session, refs] : by_memory) {
    std::sort(refs.begin(), refs.end(),
              [](const Ref& one, const Ref& other) { return one.end->opened < other.end->opened; });
    std::vector<Ref> lefts;
    std::vector<Ref> rights;
    for (const Ref& ref : refs)
      (is_left(*ref.end) || (!is_right(*ref.end) && lefts.empty()) ? lefts : rights).push_back(ref);
    pair(lefts, rights);
  }
  for (const Ref& ref : alone) {
    std::vector<Ref> lefts{ref};
    std::vector<Ref> rights;
    if (is_right(*ref.end)) std::swap(lefts, rights);
    const auto server = servers.find(pair_of(*ref.process, ref.end->local, ref.end->remote));
    if (ref.end->kind == Kind::tcp && server != servers.end()) {
      rights.push_back(server->second);
      servers.erase(server);
    }
    pair(lefts, rights);
  }
  for (const auto& [addresses, server] : servers) {
    std::vector<Ref> lefts;
    std::vector<Ref> rights{server};
    pair(lefts, rights);
  }
  last_ = std::move(now_);
  grown_.clear();
  for (const auto& [place, index] : places_) grown_.emplace(place, flows_[index].grown);
}

}  // namespace farcall::watch
