// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "broadcast/welcome.hpp"
#include "farcall/broadcast.hpp"
#include "farcall/error.hpp"
#include "farcall/ring/memory.hpp"
#include "farcall/socket.hpp"
#include "memory/standard_streams.hpp"
#include "process/process.hpp"
#include "socket/doorbells.hpp"
#include "socket/listener.hpp"

namespace farcall {
namespace broadcast {

struct SubscriberState {
  SubscriberState(BroadcastMemory ring, Mapping shared, BroadcastPlace start, bool writer_waits,
                  WaitMode mode)
      : memory(std::move(ring)),
        page(std::move(shared)),
        reader(memory.view(), start),
        told(start.position),
        waited_for(writer_waits),
        wait(mode) {}

  [[nodiscard]] RingControl& control() const noexcept {
    return *reinterpret_cast<RingControl*>(page.data());
  }
  [[nodiscard]] bool dropped() const noexcept {
    // acquire: pairs with the release in Reader::end().
    return control().writer.state.load(std::memory_order_acquire) == kDropped;
  }
  // Tells the writer how far this has read.
  void tell() noexcept {
    told = reader.next().position;
    // release: the copies are done before the writer may write over what they were made of.
    control().head.value.store(told, std::memory_order_release);
    waiter.wake(control().reader, control().writer);
  }
  void adopt(process::PrivateFd socket, std::string_view name = {}) noexcept {
    lifeline = DoorbellSocket(std::move(socket));
    waiter = Waiter(lifeline.get(), wait, kDoorbells);
    waiter.expect_company();
    observe::Description end{.kind = observe::Kind::broadcast, .role = observe::Role::reader};
    end.session = observe::inode_of(memory.fd());
    end.name = name.data();
    end.name_bytes = name.size();
    entry = observe::Entry(end);
    waiter.observe(entry.received());
  }
  // What has been read must be told of before sleeping: the writer may wait for it.
  void tell_all() noexcept {
    if (waited_for && told != reader.next().position) tell();
  }
  // In batches: each look of the writer at this line costs both sides a transfer.
  void tell_much() noexcept {
    if (waited_for && reader.next().position - told >= memory.view().capacity / 8) tell();
  }
  Outcome read(std::span<std::byte> into, std::size_t& size, std::uint64_t& missed,
               Deadline deadline, SignalCount since);
  Outcome after_end() noexcept;
  bool goes_on(std::uint64_t raised, Deadline deadline) noexcept;
  // Whether there is something to do at once.
  [[nodiscard]] bool ready() const noexcept { return lost != Outcome::ok || reader.ready(); }

  BroadcastMemory memory;
  Mapping page;
  BroadcastReader reader;
  std::uint64_t told;
  const bool waited_for;
  const WaitMode wait;
  int in_vain = 0;             // how often there was said to be something, and nothing moved
  int overtaken = 0;           // how often the writer was quicker
  Outcome lost = Outcome::ok;  // dropped or broken, once a message has been missed that may not be
  DoorbellSocket lifeline;
  Waiter waiter;
  observe::Entry entry;
};

// The publisher has gone; in which way.
Outcome SubscriberState::after_end() noexcept {
  const std::uint32_t state = control().writer.state.load(std::memory_order_acquire);
  if (state == kDropped) return Outcome::dropped;
  return state == WaitState::kFinished ? Outcome::finished : Outcome::peer_gone;
}

// There was said to be something, of which nothing was left. False: that cannot be. A writer that
// has raised the floor meanwhile was quicker; where it is so time and again this gives way to it.
bool SubscriberState::goes_on(std::uint64_t raised, Deadline deadline) noexcept {
  // Of a publisher that says so often that there is news, and there is none, nothing is true.
  constexpr int kMost = 1000;
  if (raised == reader.raised()) return ++in_vain < kMost;
  in_vain = 0;
  if (overtaken < kMost) {
    ++overtaken;
  } else if (!deadline.is_now()) {
    const timespec a_moment{.tv_sec = 0, .tv_nsec = 200'000};
    // Not nanosleep(2), which the C library makes a point of cancellation.
    ::syscall(SYS_nanosleep, &a_moment, nullptr);
  }
  return true;
}

Outcome SubscriberState::read(std::span<std::byte> into, std::size_t& size, std::uint64_t& missed,
                              Deadline deadline, SignalCount since) {
  missed = 0;
  if (lost != Outcome::ok) return lost;
  std::uint64_t counted = 0;
  for (bool again = false;; again = true) {
    const std::uint64_t raised = reader.raised();
    const Outcome outcome = reader.take(into, size, missed);
    // Who is waited for misses nothing, unless it is waited for no longer.
    if (waited_for && missed != 0) [[unlikely]] {
      missed = 0;
      return lost = dropped() ? Outcome::dropped : Outcome::broken;
    }
    if (missed != counted && entry.get() != nullptr) [[unlikely]]
      observe::detail::add(entry.received()->dropped, missed - std::exchange(counted, missed));
    if (outcome == Outcome::ok) {
      observe::note_received(entry.received(), into.data(), size);
      tell_much();
    }
    if (outcome != Outcome::would_block) {
      in_vain = overtaken = 0;
      return outcome;
    }
    // It has been told of news, of which nothing was left.
    if (again) [[unlikely]] {
      if (!goes_on(raised, deadline)) return lost = Outcome::broken;
      if (!deadline.is_never() && monotonic_ns() >= deadline.at())
        return deadline.is_now() ? Outcome::would_block : Outcome::timed_out;
      if (SignalCount::now() != since) return Outcome::interrupted;
    }
    tell_all();
    const Outcome waited = waiter.wait(
        control().reader, control().writer, deadline, [&] { return reader.ready(); }, since);
    if (waited == Outcome::peer_gone) return after_end();
    if (waited != Outcome::ok) {
      in_vain = overtaken = 0;
      return waited;
    }
  }
}

namespace {

// For who names no deadline. A publisher that is alive and well takes no longer.
constexpr auto kPatience = std::chrono::seconds(5);

// What comes along stays in `descriptors` until it has turned out to be memory: the last close of
// anything else may last.
Welcome receive_welcome(int socket, Deadline deadline, std::optional<SignalCount> since,
                        ReceivedFds& descriptors) {
  std::optional<FdMessage> message = receive_fd_message(socket, deadline, since);
  if (!message) throw SystemError(ECONNRESET, "subscribe: the publisher has gone");
  descriptors = ReceivedFds(std::move(message->descriptors), peer_credentials(socket).uid);
  Welcome words;
  if (message->bytes.size() != sizeof words)
    throw SystemError(EPROTO, "subscribe: this is no publisher");
  std::memcpy(&words, message->bytes.data(), sizeof words);
  if (words.magic != Welcome::kMagic) throw SystemError(EPROTO, "subscribe: this is no publisher");
  if (words.error == EUSERS)
    throw SystemError(EUSERS, "subscribe: the publisher has as many readers as it permits");
  if (words.error != 0) throw SystemError(ECONNREFUSED, "subscribe: the publisher is closing");
  if (descriptors.size() != 2 || words.oldest.position % kLine != 0 ||
      words.newest.position % kLine != 0)
    throw SystemError(EPROTO, "subscribe: this is no publisher");
  return words;
}

// Where it begins. A writer that has to drop who begins with the oldest has left it the newest.
BroadcastPlace begin(const Mapping& page, const Welcome& words, Subscriber::Start start) noexcept {
  if (start == Subscriber::Start::newest) return words.newest;
  std::atomic<std::uint64_t>& head = reinterpret_cast<RingControl*>(page.data())->head.value;
  std::uint64_t not_begun = words.oldest.position | kNotBegun;
  // relaxed: nothing has been read yet.
  const bool may =
      head.compare_exchange_strong(not_begun, words.oldest.position, std::memory_order_relaxed);
  return may || words.waited_for == 0 ? words.oldest : words.newest;
}

std::unique_ptr<SubscriberState> make_state(int socket, const Subscriber::Options& options,
                                            Deadline deadline,
                                            std::optional<SignalCount> since = std::nullopt) {
  ReceivedFds descriptors;
  const Welcome words = receive_welcome(socket, deadline, since, descriptors);
  descriptors[0] = beyond_standard_streams(std::move(descriptors[0]));
  BroadcastMemory memory = BroadcastMemory::attach(std::move(descriptors[0]), options.most);
  const SharedMemory shared = SharedMemory::adopt(std::move(descriptors[1]));
  if (shared.size() != page_size()) throw SystemError(EPROTO, "subscribe: not a page");
  Mapping page = shared.map();
  const BroadcastPlace start = begin(page, words, options.start);
  return std::make_unique<SubscriberState>(std::move(memory), std::move(page), start,
                                           words.waited_for != 0, options.wait);
}

// A publisher that closes, dies, or has no descriptor left is none; another may come.
bool is_of_one_that_goes(int error) noexcept {
  return error == ECONNRESET || error == EPIPE || error == ECONNREFUSED;
}

}  // namespace
}  // namespace broadcast

Subscriber Subscriber::adopt(UniqueFd&& invitation, const Options& options) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (::getpeername(invitation.get(), reinterpret_cast<sockaddr*>(&peer), &size) != 0) {
    if (errno == EBADF) throw_errno("subscribe");
    size = 0;
  }
  if (size == 0 || peer.ss_family != AF_UNIX)
    throw SystemError(EPROTO, "subscribe: this is no invitation");
  auto state =
      broadcast::make_state(invitation.get(), options, Deadline::after(broadcast::kPatience));
  state->adopt(process::PrivateFd(std::move(invitation)));
  state->tell();
  return Subscriber(std::move(state));
}

Subscriber Subscriber::open(std::string_view name, const Options& options, Deadline deadline,
                            std::optional<SignalCount> since) {
  for (bool hung_up = false;;) {
    process::PrivateFd socket = connect_privately(name, deadline, since);
    try {
      auto state = broadcast::make_state(socket.get(), options, deadline, since);
      state->adopt(std::move(socket), name);
      state->tell();
      return Subscriber(std::move(state));
    } catch (const SystemError& error) {
      const bool is_late = error.code().value() == ETIMEDOUT && hung_up;
      if (!is_late && !broadcast::is_of_one_that_goes(error.code().value())) throw;
      hung_up = true;
    }
    if (monotonic_ns() >= deadline.at())
      throw SystemError(ECONNREFUSED, "nobody publishes \"" + std::string(name) + "\"");
    if (since && SignalCount::now() != *since) throw SystemError(EINTR, "subscribe");
    // Another may be about to publish it; there is no event to wait for.
    const timespec pause{.tv_sec = 0, .tv_nsec = 2'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

Subscriber::Subscriber(std::unique_ptr<broadcast::SubscriberState> state) noexcept
    : state_(std::move(state)) {}
Subscriber::Subscriber(Subscriber&&) noexcept = default;
Subscriber& Subscriber::operator=(Subscriber&&) noexcept = default;
Subscriber::~Subscriber() = default;

Outcome Subscriber::read(std::span<std::byte> into, std::size_t& size, std::uint64_t& missed,
                         Deadline deadline, SignalCount since) {
  return state_->read(into, size, missed, deadline, since);
}
Outcome Subscriber::prepare_poll() {
  state_->tell_all();
  return state_->waiter.prepare_poll(state_->control().reader, state_->control().writer,
                                     [&] { return state_->ready(); });
}
void Subscriber::finish_poll() noexcept { state_->waiter.finish_poll(state_->control().reader); }
int Subscriber::poll_descriptor() const noexcept { return state_->waiter.poll_descriptor(); }

}  // namespace farcall
