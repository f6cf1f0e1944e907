// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "message/shared.hpp"
#include "process/background.hpp"
#include "socket/answers.hpp"

namespace farcall::message {

// What brings the pulses of one process. Several threads may be told of it at once; the lock keeps
// order.
class Link::Pulses final : public Source {
 public:
  Pulses(std::weak_ptr<Link> link, std::weak_ptr<SharedChannel> channel, const Credentials& sender,
         Mapping page, UniqueFd socket, process::Charge held)
      : link_(std::move(link)),
        channel_(std::move(channel)),
        sender_(sender),
        page_(std::move(page)),
        socket_(std::move(socket)),
        charge_(std::move(held)) {}
  ~Pulses() override { close(); }

  // The client has the socket, and is told to use it from now on.
  void start(Port& port, std::shared_ptr<Pulses> self) {
    {
      const std::lock_guard guard(lock_);
      in_page_ = std::min(page().count.exchange(PulsePage::kTaken), PulsePage::kMost);
      number_ = port.listen(socket_.get(), std::move(self));
    }
    (void)take(kMostPulses);
  }
  void stop(Port& port) noexcept {
    const std::lock_guard guard(lock_);
    if (!socket_) return;
    port.forget(socket_.get(), number_);
    close();
  }
  void on_readable() noexcept override { (void)take(kMostPulses); }
  // Takes what has come, as much as may wait here. Returns whether there is no more to come.
  bool take(std::size_t most) noexcept {
    constexpr int kMostAtOnce = PulsePage::kMost;
    const auto link = link_.lock();
    const auto channel = link ? link->channel_.lock() : nullptr;
    if (!channel) return true;
    const std::lock_guard guard(lock_);
    if (!socket_) return true;
    for (int i = 0; i < kMostAtOnce; ++i) {
      if (!reserve(*link, *channel, most)) return false;
      PulsePacket packet{};
      const Packet::Kind kind = next(packet, *link);
      const bool proper = kind == Packet::Kind::content && packet.magic == PulsePacket::kMagic;
      if (proper && packet.code >= 0) {
        const auto claimed = static_cast<std::uint8_t>(std::min(packet.priority, kHighest));
        channel->queue({.code = packet.code,
                        .value = packet.value,
                        .priority = link->bounded_priority(claimed, sender_,
                                                           static_cast<pid_t>(packet.thread)),
                        .link = link});
        continue;
      }
      give_back(*link);
      if (kind == Packet::Kind::nothing) return false;
      if (proper && packet.code == PulsePacket::kUnblock) {
        channel->unblock(*link, static_cast<std::uint32_t>(packet.value));
        continue;
      }
      // The end, or nonsense.
      channel->port().forget(socket_.get(), number_);
      close();
      return true;
    }
    return false;
  }
  void resume(Port& port) noexcept {
    {
      const std::lock_guard guard(lock_);
      if (!paused_ || !socket_) return;
      paused_ = false;
      port.set_enabled(socket_.get(), number_, true);
      if (!page_) return;
    }
    (void)take(kMostPulses);
  }
  [[nodiscard]] bool over() noexcept {
    const std::lock_guard guard(lock_);
    return !socket_;
  }

 private:
  static constexpr std::uint32_t kHighest = kHighestPriority;

  [[nodiscard]] PulsePage& page() const noexcept {
    return *reinterpret_cast<PulsePage*>(page_.data());
  }
  // The next packet: of the page first.
  Packet::Kind next(PulsePacket& packet, const Link& link) noexcept {
    if (page_ && taken_ < in_page_) {
      packet = page().pulses[taken_++];
      return Packet::Kind::content;
    }
    page_.reset();
    try {
      Packet came = take_content(socket_.get(), std::as_writable_bytes(std::span(&packet, 1)));
      if (came.kind == Packet::Kind::content && (!came.sender || !came.descriptors.empty()))
        came.kind = Packet::Kind::garbage;
      if (came.sender) sender_ = *came.sender;
      if (came.unsolicited != 0 || !came.descriptors.empty())
        link.endpoint->count_unsolicited(came.unsolicited, came.descriptors.size());
      process::close_later(sender_.uid, std::move(came.descriptors));
      return came.kind;
    } catch (const std::exception&) {
      return Packet::Kind::closed;
    }
  }
  void close() noexcept {
    page_.reset();
    // Packets that nobody has taken may hold anything.
    process::close_later(sender_.uid, socket_.release());
    charge_ = {};
  }
  bool reserve(Link& link, SharedChannel& channel, std::size_t most) noexcept {
    const std::lock_guard guard(link.lock_);
    if (link.queued_ < most) {
      ++link.queued_;
      return true;
    }
    paused_ = true;
    channel.port().set_enabled(socket_.get(), number_, false);
    return false;
  }
  static void give_back(Link& link) noexcept {
    const std::lock_guard guard(link.lock_);
    --link.queued_;
  }

  const std::weak_ptr<Link> link_;
  const std::weak_ptr<SharedChannel> channel_;
  std::mutex lock_;     // protects what follows; taken before the link's
  Credentials sender_;  // of the last packet
  Mapping page_;
  std::uint32_t in_page_ = 0;
  std::uint32_t taken_ = 0;
  process::PrivateFd socket_;
  process::Charge charge_;
  std::uint64_t number_ = 0;
  bool paused_ = false;
};

bool Link::received(std::uint8_t purpose, std::vector<UniqueFd>& descriptors,
                    const Credentials& sender) noexcept {
  if (purpose != kPurposePulses || descriptors.size() != 2) return false;
  const auto channel = channel_.lock();
  if (!channel || !made_by_sender(descriptors[1].get(), sender)) return true;
  try {
    process::Charge held(process::Resource::descriptors, sender.uid, 1);
    bool room = false;
    {
      const std::lock_guard guard(lock_);
      room = !ended_ && sockets_.size() < kMostPulseSockets;
    }
    if (!held || !room) return true;
    SharedMemory memory = SharedMemory::adopt(std::move(descriptors[0]));
    if (memory.size() != round_up_to_pages(sizeof(PulsePage))) {
      descriptors[0] = std::move(memory).release();
      return true;
    }
    auto [ours, theirs] = server_socket_pair();
    auto pulses = std::make_shared<Pulses>(weak_from_this(), channel_, sender, memory.map(),
                                           std::move(ours), std::move(held));
    {
      const std::lock_guard guard(lock_);
      if (ended_) return true;
      sockets_.push_back(pulses);
    }
    try {
      send_descriptors(descriptors[1].get(), std::array{theirs.get()}, 0,
                       std::chrono::nanoseconds::zero());
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it has sent these, and gone
    }
    pulses->start(channel->port(), pulses);  // throws where it has ended meanwhile
    forget_ended();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): closing it tells the client
  }
  return true;
}

// Those of processes that have ended.
void Link::forget_ended() {
  std::vector<std::shared_ptr<Pulses>> all;
  {
    const std::lock_guard guard(lock_);
    all = sockets_;
  }
  for (const auto& one : all) {
    if (!one->over()) continue;
    const std::lock_guard guard(lock_);
    std::erase(sockets_, one);
  }
}

void Link::taken() noexcept {
  std::vector<std::shared_ptr<Pulses>> all;
  {
    const std::lock_guard guard(lock_);
    --queued_;
    if (queued_ != kMostPulses / 2 || ended_) return;
    all = sockets_;
  }
  if (const auto channel = channel_.lock())
    for (const auto& one : all) one->resume(channel->port());
}

void Link::branch_closed(std::uint64_t) noexcept {
  const auto channel = channel_.lock();
  if (!channel) return;
  // What was sent before comes before the end.
  std::vector<std::shared_ptr<Pulses>> all;
  {
    const std::lock_guard guard(lock_);
    all = sockets_;
  }
  constexpr int kMostRounds = 16;
  for (const auto& one : all)
    for (int i = 0; i < kMostRounds && !one->take(4 * kMostPulses); ++i) {
    }
  channel->disconnected(shared_from_this());
}

void Link::end() noexcept {
  std::vector<std::shared_ptr<Pulses>> all;
  {
    const std::lock_guard guard(lock_);
    ended_ = true;
    all.swap(sockets_);
  }
  if (const auto channel = channel_.lock())
    for (const auto& one : all) one->stop(channel->port());
}

bool Link::is_thread(pid_t thread, pid_t process) noexcept {
  const std::uint64_t pair =
      std::uint64_t{static_cast<std::uint32_t>(process)} << 32 | static_cast<std::uint32_t>(thread);
  if (known_thread_.load(std::memory_order_relaxed) == pair) return true;
  if (!is_thread_of(thread, process)) return false;
  known_thread_.store(pair, std::memory_order_relaxed);
  return true;
}

std::uint8_t Link::bounded_priority(std::uint8_t claimed, const Credentials& sender,
                                    pid_t thread) noexcept {
  if (claimed <= kNormalPriority || sender.uid == 0) [[likely]]
    return std::min(claimed, kHighestPriority);
  // Threads get other priorities, and their numbers other threads.
  constexpr std::int64_t kGoodFor = 100'000'000;
  const std::uint64_t claim =
      std::uint64_t{static_cast<std::uint32_t>(sender.pid) & kThreadMask} << (kThreadBits + 16) |
      std::uint64_t{static_cast<std::uint32_t>(thread) & kThreadMask} << 16 |
      std::uint64_t{claimed} << 8;
  const std::int64_t now = monotonic_ns();
  // relaxed: claim and answer are one word, and the time is that of another answer at most.
  const bool fresh = now < known_until_.load(std::memory_order_relaxed);
  const std::uint64_t known = known_claim_.load(std::memory_order_relaxed);
  if (fresh && (known & ~std::uint64_t{0xff}) == claim) return static_cast<std::uint8_t>(known);
  const std::uint8_t answer = message::bounded_priority(claimed, sender, thread);
  known_claim_.store(claim | answer, std::memory_order_relaxed);
  known_until_.store(now + kGoodFor, std::memory_order_relaxed);
  return answer;
}

}  // namespace farcall::message
