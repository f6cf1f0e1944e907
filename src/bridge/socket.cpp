// SPDX-License-Identifier: Apache-2.0
//
// The connection's socket: libnats reads and writes it when it is told to, by threads of ours. So a
// message that comes is handled by the thread that has read it, and what many threads publish at a
// time is sent at once.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <utility>

#include "bridge/nats.hpp"

namespace farcall::bridge {
namespace {

constexpr std::size_t kMostQueued = std::size_t{1} << 20;  // bytes; then publishers wait
constexpr std::size_t kMessage = 512;                      // that one costs beside its data
constexpr unsigned kRounds = 4;  // of others' messages that one thread sends; then the reader does

// Who reads is interrupted where it has to end before.
constexpr std::chrono::seconds kReadFor{10};

constexpr std::chrono::milliseconds kPatience{100};

thread_local bool gathers = false;  // what this thread publishes may wait for more

// To libnats. `message`: all the rest, or null.
natsStatus hand_over(natsConnection* to, natsMsg* message, const char* subject, const char* reply,
                     std::span<const std::byte> data) {
  const void* const bytes = data.data();
  const int size = static_cast<int>(data.size());
  if (message != nullptr) return ::natsConnection_PublishMsg(to, message);
  if (reply == nullptr) return ::natsConnection_Publish(to, subject, bytes, size);
  return ::natsConnection_PublishRequest(to, subject, reply, bytes, size);
}

}  // namespace

Link::Attached* Connection::attach(int socket) noexcept {
  const std::lock_guard guard(socket_lock_);
  attached_.reset(new (std::nothrow) Link::Attached{*this, ++sockets_});
  silent_since_ = Clock::time_point::max();
  last_activity_ = Clock::now();
  fd_ = socket;
  interrupt();
  return attached_.get();
}

// Where it has not been done yet, and there is no other socket.
void Connection::detach(std::uint64_t socket) noexcept {
  const std::lock_guard guard(socket_lock_);
  if (sockets_ != socket) return;
  ++sockets_;
  fd_ = -1;
  unsent_ = false;
  interrupt();
}

// Ends a connection whose server is dead. Libnats reads the end, or cannot write.
void Connection::look_alive() noexcept {
  if (Clock::now() - std::max(last_activity_.load(), listening_since_.load()) <= kPings * ping_)
    return;
  const std::lock_guard guard(socket_lock_);
  if (fd_ < 0) return;
  silent_since_ = last_activity_.load();
  ::shutdown(fd_, SHUT_RDWR);
}

void Connection::interrupt() noexcept { wake_.tell(); }

void Connection::read(std::chrono::milliseconds longest) noexcept {
  std::array<pollfd, 2> all{pollfd{.fd = wake_.fd(), .events = POLLIN, .revents = 0},
                            pollfd{.fd = fd_, .events = POLLIN, .revents = 0}};
  ::poll(all.data(), all.size(), static_cast<int>(std::min(longest, ping_).count()));
  const auto now = Clock::now();
  if (now - looked_.exchange(now) > 2 * ping_) listening_since_ = now;
  if (all[0].revents != 0) wake_.clear();
  if ((all[1].revents & POLLNVAL) != 0) fd_.compare_exchange_strong(all[1].fd, -1);
  if (all[1].revents != 0) {
    note_activity(now);
    const auto link = this->link();
    const std::lock_guard guard(event_lock_);
    ::natsConnection_ProcessReadEvent(link->connection.get());
  } else {
    look_alive();
  }
  send();
}

// By the thread of libnats that hands out what comes to the inbox. Where nobody else reads, it
// does, until there is something to hand out: so that it need not be woken for it.
void Connection::message(natsSubscription* subscription, Msg message) {
  try {
    events_.inbox(std::move(message));
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): as if it had not come
  }
  if (reads_ != Reads::itself) return;
  {
    const std::lock_guard guard(link_lock_);
    if (link_->inbox.get() != subscription) return;
    if (!reading_.exchange(true)) interrupt();
  }
  const std::lock_guard guard(read_lock_);
  int pending = 0;
  while (!closing_ && ::natsSubscription_GetPending(subscription, &pending, nullptr) == NATS_OK &&
         pending == 0)
    read(kReadFor);
}

// The same, until the first message has come, or the link is lost.
void Connection::read_first() noexcept {
  const std::lock_guard guard(read_lock_);
  const auto link = this->link();
  while (!closing_ && !reading_ && !::natsConnection_IsClosed(link->connection.get()))
    read(kReadFor);
}

void Connection::gather(bool more) noexcept { gathers = more; }

void Connection::send() noexcept {
  std::unique_lock lock(send_lock_);
  if (sending_ || (queue_.empty() && !unsent_)) return;
  sending_ = true;
  lock.unlock();
  flush(sockets_, Clock::time_point::max());
  lock.lock();
  send_queue(lock, Clock::time_point::max());
}

// What libnats has; what is left at the deadline the reader sends. By the one who sends: to
// libnats, sending nothing is an error of the connection.
int Connection::flush(std::uint64_t socket, Clock::time_point deadline) noexcept {
  constexpr int kLookMs = 100;
  while (unsent_ && sockets_ == socket && !closing_ && Clock::now() < deadline) {
    {
      const auto link = this->link();
      const std::lock_guard guard(event_lock_);
      ::natsConnection_ProcessWriteEvent(link->connection.get());
    }
    if (!unsent_) break;
    pollfd it{.fd = fd_, .events = POLLOUT, .revents = 0};
    if (::poll(&it, 1, kLookMs) > 0) note_activity(Clock::now());
    look_alive();
  }
  return sockets_ == socket && !closing_ ? 0 : ECONNRESET;
}

// By the one who sends, who is it no longer afterwards. Those whose messages these are do not hear
// whether they were sent, as of any message that is lost later.
void Connection::send_queue(std::unique_lock<std::mutex>& lock,
                            Clock::time_point deadline) noexcept {
  std::vector<OwnMsg> batch;
  for (unsigned round = 0; round < kRounds && !queue_.empty() && Clock::now() < deadline; ++round) {
    batch.swap(queue_);
    queued_ = 0;
    room_.notify_all();
    lock.unlock();
    const std::uint64_t socket = sockets_;
    const auto link = this->link();
    for (const OwnMsg& message : batch)
      (void)::natsConnection_PublishMsg(link->connection.get(), message.get());
    batch.clear();
    flush(socket, deadline);
    lock.lock();
  }
  sending_ = false;
  room_.notify_all();
  if (!queue_.empty() || unsent_) interrupt();
}

int Connection::publish(const std::string& subject, const std::string* reply, const Header* header,
                        std::span<const std::byte> data, Clock::time_point deadline) {
  const char* const to = reply != nullptr ? reply->c_str() : nullptr;
  const char* const bytes = reinterpret_cast<const char*>(data.data());
  const int size = static_cast<int>(data.size());
  // Who does not wait for a cluster that is away sends what there is to send all the same.
  const Clock::time_point until = deadline == kAtOnce ? Clock::time_point::max() : deadline;
  OwnMsg message;
  const auto make = [&] {
    natsMsg* made = nullptr;
    if (::natsMsg_Create(&made, subject.c_str(), to, bytes, size) != NATS_OK) return false;
    message.reset(made);
    return header == nullptr ||
           ::natsMsgHeader_Set(made, kHeaderName, encode(*header).c_str()) == NATS_OK;
  };
  if (header != nullptr && !make()) return ENOMEM;
  for (;;) {
    if (!up_ && !(deadline != kAtOnce && wait_up(deadline))) return ENETDOWN;
    std::unique_lock lock(send_lock_);
    const auto room = [this] { return queued_ < kMostQueued || !sending_ || hurried_; };
    if (deadline == kAtOnce) {
      room_.wait_for(lock, kPatience, room);  // it may be the one who reads
    } else if (!room_.wait_until(lock, deadline, room)) {
      return ENETDOWN;
    }
    if (sending_ || gathers || !queue_.empty()) {
      if (queued_ >= most_pending_) return ENOBUFS;
      if (!message && !make()) return ENOMEM;
      queue_.push_back(std::move(message));
      queued_ += kMessage + data.size();
      if (sending_ || (gathers && queued_ < kMostQueued)) return 0;
      sending_ = true;
      send_queue(lock, until);
      return 0;
    }
    sending_ = true;
    lock.unlock();
    const std::uint64_t socket = sockets_;
    const auto link = this->link();
    const natsStatus status =
        hand_over(link->connection.get(), message.get(), subject.c_str(), to, data);
    const int sent = status == NATS_OK ? flush(socket, until) : 0;
    lock.lock();
    send_queue(lock, until);
    lock.unlock();
    if (status == NATS_OK) return sent;
    if (status == NATS_MAX_PAYLOAD) return EMSGSIZE;
    if (status == NATS_NO_MEMORY) return ENOMEM;
    // One that is closed takes nothing at all, so that it may be tried again. What fails in the
    // middle of a connection may have been sent.
    if (status != NATS_CONNECTION_CLOSED) return closing_ ? ENETDOWN : ECONNRESET;
    down(link.get());
  }
}

}  // namespace farcall::bridge
