// SPDX-License-Identifier: Apache-2.0
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

#include "message/shared.hpp"
#include "process/background.hpp"
#include "socket/answers.hpp"

namespace farcall::message {
namespace {

std::uint64_t random_word() noexcept {
  std::uint64_t word = 0;
  if (::getrandom(&word, sizeof word, GRND_NONBLOCK) != sizeof word)
    word = static_cast<std::uint64_t>(monotonic_ns());
  return word;
}

}  // namespace

UniqueFd SharedChannel::connect() { return connect(::geteuid()); }

UniqueFd SharedChannel::connect(uid_t user) {
  process::Charge held(process::Resource::descriptors, user, 1,
                       notices_->limits().descriptors_per_user);
  if (!held) throw SystemError(EDQUOT, "too many connections");
  const auto link =
      std::make_shared<Link>(weak_from_this(), next_link_.fetch_add(1), user, std::move(held));
  link->endpoint = port_.open_endpoint(link, {});
  link->endpoint->set_label(observe::Label(observe::Kind::channel, full_name_));
  {
    const std::lock_guard guard(lock_);
    // Those that are there when it closes are told.
    if (!usable()) throw SystemError(EBADF, "the channel has been closed");
    links_.emplace(link->number, link);
  }
  try {
    char name[80];
    std::snprintf(name, sizeof name, "%.*s%016llx/%u", static_cast<int>(kConnectionPrefix.size()),
                  kConnectionPrefix.data(), static_cast<unsigned long long>(random_word()), flags_);
    return link->endpoint->branch(name, nullptr, {}, user);
  } catch (...) {
    const std::lock_guard guard(lock_);
    links_.erase(link->number);
    throw;
  }
}

void SharedChannel::disconnected(const std::shared_ptr<Link>& link) noexcept {
  {
    const std::lock_guard guard(lock_);
    if (links_.erase(link->number) == 0) return;
  }
  link->end();
  link->endpoint->close();
  if ((flags_ & FARCALL_DISCONNECT) != 0)
    queue({.code = FARCALL_PULSE_DISCONNECT,
           .value = link->number,
           // The server learns of it however busy it is; but who comes and goes without end gets
           // ahead of nobody, however urgent the server's own threads are.
           .priority = kNormalPriority,
           .link = nullptr,
           .user = link->user,
           // Who comes and goes without end fills no memory with pulses that nobody receives.
           .ended = std::move(link->charge)});
}

// What brings the pulses of one process. Several threads may be told of it at once; the lock keeps
// order.
class Link::Pulses final : public Source, public std::enable_shared_from_this<Pulses> {
 public:
  Pulses(std::weak_ptr<Link> link, std::weak_ptr<SharedChannel> channel, const Credentials& sender,
         process::PrivateFd socket, process::Charge held)
      : link_(std::move(link)),
        channel_(std::move(channel)),
        sender_(sender),
        socket_(std::move(socket)),
        charge_(std::move(held)) {}
  ~Pulses() override { close(); }

  // Of pulses in the socket; who asks to unblock makes the channel look for the message, and counts
  // as many.
  static constexpr int kMostAtOnce = 64;
  static constexpr int kCostOfUnblock = 16;

  // Before start(): what the client has sent so far.
  void read_first(process::PrivateMapping page) noexcept {
    const std::lock_guard guard(lock_);
    if (socket_) page_ = std::move(page);
  }
  // The client has the socket, and is told to use it from now on.
  void start(Port& port, std::shared_ptr<Pulses> self) {
    {
      const std::lock_guard guard(lock_);
      if (!socket_) return;  // the connection has ended meanwhile
      started_ = true;
      in_page_ = std::min(page().count.exchange(PulsePage::kTaken), PulsePage::kMost);
      number_ = port.listen(socket_.get(), std::move(self), sender_.uid, kNormalPriority);
    }
    take(kMostAtOnce);
  }
  void stop(Port& port) noexcept {
    const std::lock_guard guard(lock_);
    if (!socket_) return;
    port.forget(socket_.get(), number_);
    close();
  }
  std::size_t on_readable() noexcept override { return take(kMostAtOnce); }
  // Takes what has come, as much as may wait in the channel: the page, and of the socket what costs
  // no more than `most` pulses. That is looked at again in its turn. Returns how much of it was for
  // nothing.
  std::size_t take(int most) noexcept {
    const auto link = link_.lock();
    const auto channel = link ? link->channel_.lock() : nullptr;
    if (!channel) return 0;
    std::size_t vain = 0;
    {
      const std::lock_guard guard(lock_);
      if (!started_) return 0;  // what is in the page comes first, and start() sees to it
      while (socket_ && !paused_ && (most > 0 || has_at_hand()))
        if (!take_one(link, *channel, most, vain)) return vain;
      if (socket_) return vain;
    }
    link->finish();
    return vain;
  }
  // Takes what has been sent so far, if it was by that process: also what is more than may wait.
  // False: it was more than that, too.
  bool take_ahead(pid_t process) noexcept {
    const auto link = link_.lock();
    const auto channel = link ? link->channel_.lock() : nullptr;
    if (!channel) return true;
    {
      const std::lock_guard guard(lock_);
      if (!started_ || !socket_ || sender_.pid != process) return true;
      int most = 0;
      std::size_t vain = 0;
      for (std::size_t left = sent_so_far(); left > 0 && socket_; --left)
        if (!take_one(link, *channel, most, vain, true)) break;
      if (socket_) return !held_;
    }
    link->finish();
    return true;
  }
  // What is in the queue of its user has become less. What is at hand is taken, and the rest as
  // always.
  void resume(Port& port) noexcept {
    {
      const std::lock_guard guard(lock_);
      paused_ = false;
      if (!socket_) return;
      port.set_enabled(number_, true);
    }
    take(0);
  }
  // Nobody can send any more; what has been sent is still to be taken.
  void shut() noexcept {
    const std::lock_guard guard(lock_);
    if (socket_) ::shutdown(socket_.get(), SHUT_RD);
  }
  [[nodiscard]] bool over() noexcept {
    const std::lock_guard guard(lock_);
    return !socket_;
  }

 private:
  // Beside what is in the socket.
  [[nodiscard]] bool has_at_hand() const noexcept { return held_ || (page_ && taken_ < in_page_); }
  [[nodiscard]] std::size_t sent_so_far() const noexcept {
    int bytes = 0;
    if (::ioctl(socket_.get(), FIONREAD, &bytes) != 0) bytes = 0;
    const std::size_t in_socket =
        (static_cast<std::size_t>(bytes) + sizeof(PulsePacket) - 1) / sizeof(PulsePacket);
    return std::size_t{held_.has_value()} + (page_ ? in_page_ - taken_ : 0) + in_socket;
  }
  // Returns false where nothing has come, or it has to wait until there is room. `ahead`: of a
  // message.
  bool take_one(const std::shared_ptr<Link>& link, SharedChannel& channel, int& most,
                std::size_t& vain, bool ahead = false) noexcept {
    const bool at_hand = has_at_hand();
    PulsePacket packet{};
    const Packet::Kind kind = next(packet, *link);
    if (kind == Packet::Kind::nothing) return false;
    const bool proper = kind == Packet::Kind::content && packet.magic == PulsePacket::kMagic;
    if (!at_hand) most -= proper && packet.code < 0 ? kCostOfUnblock : 1;
    if (proper && packet.code >= 0) {
      Pulse pulse = link->pulse_of(packet, sender_);
      // Where it is paused already, it is among those that are resumed.
      const auto waiting = paused_ ? std::weak_ptr<Pulses>() : weak_from_this();
      if (!channel.has_room(sender_.uid, pulse.priority, waiting, ahead)) {
        paused_ = true;
        held_ = packet;
        channel.port().set_enabled(number_, false);
        return false;
      }
      channel.queue(std::move(pulse));
    } else if (proper && packet.code == PulsePacket::kUnblock) {
      if (!channel.unblock(*link, UnblockRequest::unpack(packet.value), sender_)) ++vain;
    } else {  // the end, or nonsense
      channel.port().forget(socket_.get(), number_);
      close();
    }
    return true;
  }
  [[nodiscard]] PulsePage& page() const noexcept {
    return *reinterpret_cast<PulsePage*>(page_.data());
  }
  // The next packet: of the page before the socket.
  Packet::Kind next(PulsePacket& packet, const Link& link) noexcept {
    if (held_) {
      packet = *std::exchange(held_, {});
      return Packet::Kind::content;
    }
    if (page_ && taken_ < in_page_) {
      packet = page().pulses[taken_++];
      return Packet::Kind::content;
    }
    page_.reset();
    // Nothing is to come with pulses. What a stranger sends all the same stays in the socket, and
    // goes with it: this process has no room for it each time.
    if (!process::is_own(sender_.uid) && more_comes_next(socket_.get())) {
      link.endpoint->count_unsolicited(1, 0);
      return Packet::Kind::garbage;
    }
    try {
      Packet came = take_content(socket_.get(), std::as_writable_bytes(std::span(&packet, 1)));
      // Whoever has been given the other end can write there, a program of more rights too, whose
      // word this is not.
      const bool his = came.sender && came.sender->pid == sender_.pid;
      if (came.kind == Packet::Kind::content && (!his || !came.descriptors.empty()))
        came.kind = Packet::Kind::garbage;
      if (came.unsolicited != 0 || !came.descriptors.empty())
        link.endpoint->count_unsolicited(came.unsolicited, came.descriptors.size());
      return came.kind;
    } catch (const std::exception&) {
      return Packet::Kind::closed;
    }
  }
  void close() noexcept {
    page_.reset();
    held_.reset();
    // Packets that nobody has taken may hold anything. Who sends more is told at once.
    process::hang_up_later(sender_.uid, std::move(socket_));
    charge_ = {};
  }
  const std::weak_ptr<Link> link_;
  const std::weak_ptr<SharedChannel> channel_;
  // Who has asked for the socket, as with sessions. Packets that do not say who sends them come
  // with the real ids of whoever writes, not with those that a process acts with.
  const Credentials sender_;
  std::mutex lock_;                  // protects what follows; taken before the channel's
  std::optional<PulsePacket> held_;  // taken while there was no room for it
  bool started_ = false;
  process::PrivateMapping page_;
  std::uint32_t in_page_ = 0;
  std::uint32_t taken_ = 0;
  process::PrivateFd socket_;
  process::Charge charge_;
  std::uint64_t number_ = 0;
  bool paused_ = false;
};

Pulse Link::pulse_of(const PulsePacket& packet, const Credentials& sender) noexcept {
  constexpr std::uint32_t kHighest = kHighestPriority;
  const auto claimed = static_cast<std::uint8_t>(std::min(packet.priority, kHighest));
  const auto thread = static_cast<pid_t>(packet.thread);
  return {.code = packet.code,
          .value = packet.value,
          .priority = bounded_priority(claimed, sender, thread),
          .link = shared_from_this(),
          .user = sender.uid,
          .sender = sender,
          .thread = is_thread(thread, sender.pid) ? thread : 0};
}

bool Link::received(std::uint8_t purpose, ReceivedFds& descriptors,
                    const Credentials& sender) noexcept {
  if (purpose != kPurposePulses || descriptors.size() != 2) return false;
  const auto channel = channel_.lock();
  if (!channel) return true;
  process::PrivateMapping page;
  try {
    SharedMemory memory = SharedMemory::adopt(std::move(descriptors[0]));
    if (memory.size() != round_up_to_pages(sizeof(PulsePage))) {
      descriptors[0] = std::move(memory).release();
      return true;
    }
    page = process::PrivateMapping(memory.fd(), memory.size());
    // Who cannot be answered is not let in.
    if (made_by_sender(descriptors[1].get(), sender))
      let_in(*channel, page, descriptors[1].get(), sender);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): closing the other tells it
  }
  if (page) take_once(*channel, *reinterpret_cast<PulsePage*>(page.data()), sender);
  return true;
}

// Takes the page over where it does.
void Link::let_in(SharedChannel& channel, process::PrivateMapping& page, int answers,
                  const Credentials& sender) {
  process::Charge held(process::Resource::descriptors, sender.uid, 1,
                       endpoint->limits().descriptors_per_user);
  {
    const std::lock_guard guard(lock_);
    if (!held || ended_ || sockets_.size() >= kMostPulseSockets) return;
  }
  auto [ours, theirs] = server_socket_pair();
  auto pulses = std::make_shared<Pulses>(weak_from_this(), channel_, sender, std::move(ours),
                                         std::move(held));
  {
    const std::lock_guard guard(lock_);
    if (ended_) return;
    sockets_.push_back(pulses);
  }
  pulses->read_first(std::move(page));
  try {
    send_descriptors(answers, std::array{theirs.get()}, 0, Deadline::now());
  } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it has sent these, and gone
  }
  // Who has become somebody else asks for another; what it has sent before comes before.
  (void)take_sent_before(sender);
  pulses->start(channel.port(), pulses);  // throws where it has ended meanwhile
  forget_ended();
}

// Of a process that is not let in: what it has sent before it could know. Of a stranger's no more
// than may wait.
void Link::take_once(SharedChannel& channel, PulsePage& page, const Credentials& sender) noexcept {
  {
    const std::lock_guard guard(lock_);
    if (ended_) return;
  }
  const bool own = process::is_own(sender.uid);
  const std::uint32_t sent = std::min(page.count.exchange(PulsePage::kTaken), PulsePage::kMost);
  for (std::uint32_t i = 0; i < sent; ++i) {
    const PulsePacket packet = page.pulses[i];
    if (packet.magic != PulsePacket::kMagic) return;
    if (packet.code == PulsePacket::kUnblock) {
      (void)channel.unblock(*this, UnblockRequest::unpack(packet.value), sender);
      continue;
    }
    if (packet.code < 0) return;
    Pulse pulse = pulse_of(packet, sender);
    if (!own && !channel.has_room(sender.uid, pulse.priority, {})) return;
    channel.queue(std::move(pulse));
  }
}

// The most urgent of those that wait, and of equals in turn; each takes what there is room for.
void SharedChannel::pulse_taken(uid_t user) noexcept {
  std::size_t rounds = 0;
  {
    const std::lock_guard guard(pulses_lock_);
    const auto found = pulses_of_.find(user);
    if (found == pulses_of_.end()) return;
    OfUser& his = found->second;
    if (his.queued > 0) --his.queued;
    rounds = his.paused.size();
    if (his.unused()) pulses_of_.erase(found);
  }
  for (; rounds > 0; --rounds) {
    const std::shared_ptr<Link::Pulses> next = next_paused(user);
    if (!next) return;
    next->resume(port_);
  }
}

// Null: none waits, or there is no room for what the most urgent holds, and so for none.
std::shared_ptr<Link::Pulses> SharedChannel::next_paused(uid_t user) noexcept {
  const std::lock_guard guard(pulses_lock_);
  const auto found = pulses_of_.find(user);
  if (found == pulses_of_.end()) return nullptr;
  OfUser& his = found->second;
  std::shared_ptr<Link::Pulses> next;
  while (!next && !his.paused.empty()) {
    const auto first = his.paused.begin();
    if (his.queued >= kMostPulsesAhead || his.has_more_than(kMostPulses / 2, first->first))
      return nullptr;
    next = first->second.lock();
    his.paused.erase(first);
  }
  if (his.unused()) pulses_of_.erase(found);
  return next;
}

std::vector<std::shared_ptr<Link::Pulses>> Link::sockets() {
  const std::lock_guard guard(lock_);
  return sockets_;
}

// Those of processes that have ended.
void Link::forget_ended() {
  for (const auto& one : sockets()) {
    if (!one->over()) continue;
    const std::lock_guard guard(lock_);
    std::erase(sockets_, one);
  }
}

bool Link::take_sent_before(const Credentials& sender) noexcept {
  bool all = true;
  for (const auto& one : sockets()) all &= one->take_ahead(sender.pid);
  return all;
}

void Link::branch_closed(std::uint64_t) noexcept {
  {
    const std::lock_guard guard(lock_);
    closing_ = true;
  }
  // What was sent before comes before the end.
  for (const auto& one : sockets()) {
    one->shut();
    one->take(Pulses::kMostAtOnce);
  }
  finish();
}

void Link::finish() noexcept {
  {
    const std::lock_guard guard(lock_);
    if (!closing_) return;
  }
  for (const auto& one : sockets())
    if (!one->over()) return;
  if (const auto channel = channel_.lock()) channel->disconnected(shared_from_this());
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
