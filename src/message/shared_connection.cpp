// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "memory/to_number.hpp"
#include "message/shared.hpp"
#include "process/background.hpp"
#include "socket/wait_for.hpp"

namespace farcall::message {
namespace {

// The number of the thread's message, modulo 4.
thread_local std::uint32_t message_number = 0;

[[noreturn]] void fail(Outcome outcome) {
  switch (outcome) {
    case Outcome::interrupted: throw SystemError(EINTR, "send");
    case Outcome::timed_out:
    case Outcome::would_block: throw SystemError(ETIMEDOUT, "send");
    case Outcome::too_big: throw SystemError(ENOMEM, "send");
    case Outcome::broken: throw SystemError(EPROTO, "send");
    default: throw SystemError(ESRCH, "the server has gone");
  }
}

// The flags that a connection's name ends with; none where it is no such socket.
std::optional<unsigned> flags_of(int fd) noexcept {
  const auto address = AbstractAddress::of(fd);
  if (!address) return std::nullopt;
  const std::string_view name = address->name();
  if (!name.starts_with(kConnectionPrefix)) return std::nullopt;
  const std::size_t slash = name.rfind('/');
  return to_number<unsigned>(name.substr(slash + 1));
}

// Closes a way to a channel. What others than this process's own user and root have left there may
// be long in closing.
void let_go(UniqueFd fd, const call::Maker& maker) noexcept {
  if (!maker.trusted) process::close_later(maker.user, std::move(fd));
}

// Closes what `fd` refers to at once. Threads that were about to use the number, or have used it
// last, keep the object that owns it: from now on it is a socket whose other end has gone. False:
// it goes with its owner.
bool give_up(const UniqueFd& fd, const call::Maker& maker) noexcept {
  try {
    const UniqueFd dead = packet_socket_pair().first;
    UniqueFd last;
    if (!maker.trusted) last = fd.duplicate();
    const bool done = ::dup3(dead.get(), fd.get(), O_CLOEXEC) >= 0;
    let_go(std::move(last), maker);
    return done;
  } catch (const SystemError&) {
    return false;
  }
}

}  // namespace

// Tells a channel of this process when the server has gone.
class SharedConnection::Death final : public process::Watch,
                                      public std::enable_shared_from_this<Death> {
 public:
  Death(std::weak_ptr<Channel> channel, std::int64_t value, UniqueFd socket,
        const call::Maker& maker, int priority)
      : channel_(std::move(channel)),
        value_(value),
        socket_(std::move(socket)),
        maker_(maker),
        priority_(priority) {}
  // On whatever thread: the reactor may be the last who has it.
  ~Death() override { let_go(socket_.release(), maker_); }
  void start() {
    registration_.start(socket_.get(), EPOLLRDHUP | EPOLLET, shared_from_this());
    try {
      if (server_.descriptor)
        of_process_.start(server_.descriptor.get(), EPOLLIN | EPOLLET, shared_from_this());
    } catch (...) {
      stop();
      throw;
    }
    if (server_.ended) tell();
  }
  void stop() noexcept {
    registration_.stop();
    of_process_.stop();
  }
  // Of a process that has ended it is told that it can be read; of a socket not.
  void on_readable(std::uint32_t events) noexcept override {
    if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) tell();
  }

 private:
  void tell() noexcept {
    if (told_.exchange(true)) return;
    const auto channel = channel_.lock();
    if (channel && channel->usable()) channel->post(priority_, FARCALL_PULSE_DEATH, value_);
  }

  const std::weak_ptr<Channel> channel_;
  const std::int64_t value_;
  process::PrivateFd socket_;
  const call::WatchedProcess server_{socket_.get()};
  const call::Maker maker_;
  const int priority_;
  process::Registration registration_;
  process::Registration of_process_;
  std::atomic<bool> told_{false};
};

// Of a channel whose clients stay until they are answered: asks the server to do that, and again,
// for a server that is about to receive the message has not been told the first time. A server of
// another user's keeps nobody for longer than a moment: it may have made the channel so that the
// deadlines and signals of its clients mean nothing.
class SharedConnection::UnblockPolicy final : public RetryPolicy {
 public:
  UnblockPolicy(SharedConnection& connection, std::uint32_t origin, bool keep_waiting)
      : connection_(connection), origin_(origin), keep_waiting_(keep_waiting) {}
  void number(std::uint32_t of_request) noexcept override { number_ = of_request; }
  bool stay(Outcome outcome, Deadline& deadline) override {
    if (keep_waiting_ && outcome == Outcome::interrupted) return true;
    if ((connection_.flags_ & FARCALL_UNBLOCK) == 0) return false;
    if (!first_) {
      first_ = outcome;
      if (!process::is_own(connection_.maker_.user)) grace_ = Deadline::after(kGrace);
    } else if (!grace_.is_never() && monotonic_ns() >= grace_.at()) {
      return false;
    }
    const int error = connection_.send_packet(
        {.magic = PulsePacket::kMagic,
         .code = PulsePacket::kUnblock,
         .value = UnblockRequest{.origin = origin_, .number = number_}.pack(),
         .priority = own_priority(),
         .thread = static_cast<std::uint32_t>(own_thread())});
    if (error == EBADF) return false;  // nobody can be asked any more
    deadline = std::min(grace_, Deadline::after(pause_));
    pause_ = std::min<std::chrono::nanoseconds>(2 * pause_, std::chrono::seconds(1));
    return true;
  }

  // What has made the client want to leave, where it has waited on in vain.
  [[nodiscard]] Outcome why(Outcome outcome) const noexcept {
    return outcome == Outcome::timed_out ? first_.value_or(outcome) : outcome;
  }

 private:
  static constexpr auto kGrace = std::chrono::seconds(1);

  SharedConnection& connection_;
  const std::uint32_t origin_;
  std::uint32_t number_ = 0;
  std::optional<Outcome> first_;
  Deadline grace_ = Deadline::never();
  const bool keep_waiting_;
  std::chrono::nanoseconds pause_ = std::chrono::milliseconds(20);
};

SharedConnection::SharedConnection(UniqueFd branch, unsigned flags, std::string_view full_name)
    : branch_(std::move(branch)),
      maker_(call::maker_of(branch_.get())),
      flags_(flags),
      client_(-1, wait_mode()) {
  client_.set_label(observe::Label(observe::Kind::channel, full_name));
}

SharedConnection::~SharedConnection() {
  leave_parents();
  replace_sender(pulses_, nullptr);
  forget_replaced();
  if (!given_up_) let_go(std::move(branch_), maker_);
}

// A thread of the parent may have been changing it when it forked.
void SharedConnection::leave_parents() noexcept {
  if (own_generation_ == process::generation()) return;
  process::leak_in_child(death_);
  own_generation_ = process::generation();
}

// What close() has given up is not begun anew by a thread that has found the connection before.
void SharedConnection::check_open() const {
  if (!usable()) throw SystemError(EBADF, "the connection has been closed");
}

void SharedConnection::close() noexcept {
  const Writing guard(lock_);
  leave_parents();
  if (death_) death_->stop();
  death_ = nullptr;
  replace_sender(pulses_, nullptr);
  forget_replaced();
  given_up_ = give_up(branch_, maker_);
  client_.close();
}

int SharedConnection::send(Sending& sending, Deadline deadline) {
  // Who sends to a server that always answers at once may never come to sleep.
  ::pthread_testcancel();
  process::notice_changed_credentials();
  const std::size_t room = size_of(sending.room);
  const Gathered message(sending.message);
  message_number = (message_number + 1) & 3;
  const std::uint32_t origin =
      (static_cast<std::uint32_t>(own_thread()) & kThreadMask) | message_number << kThreadBits;
  UnblockPolicy unblock_policy(*this, origin, sending.keep_waiting);
  // relaxed: who sends a pulse and then a message sees its own count.
  const std::uint32_t pulsed = pulsed_.load(std::memory_order_relaxed);
  const bool follows = pulsed != followed_.load(std::memory_order_relaxed);
  const CallArguments arguments{.data = message.bytes(),
                                .descriptors = sending.descriptors,
                                .word = static_cast<std::int32_t>(room),
                                .priority = own_priority(),
                                .port = branch_.get(),
                                .cancellable = Cancellable::if_permitted,
                                .origin = origin,
                                .retry_policy = &unblock_policy,
                                .until_taken = sending.one_way,
                                .after_others = follows};
  if (sending.one_way) {
    if (const Outcome outcome = client_.send(arguments, deadline, sending.since);
        outcome != Outcome::ok)
      fail(outcome);
    if (follows) followed_.store(pulsed, std::memory_order_relaxed);
    return 0;
  }
  CallResults results;
  results.apart = kPieces;
  results.most = room + kPiecesBytes;
  std::vector<std::byte> scratch;
  if (sending.room.size() == 1) {
    results.buffer = bytes_of(sending.room.front());
  } else if (room != 0) {
    scratch.resize(room);
    results.buffer = scratch;
  }
  Outcome outcome = client_.call(arguments, results, deadline, sending.since);
  // Nobody has received it, or the policy had it stay: it is sent once more.
  while (outcome == Outcome::interrupted && sending.keep_waiting)
    outcome = client_.call(arguments, results, deadline, SignalCount::now());
  if (outcome != Outcome::ok) fail(unblock_policy.why(outcome));
  if (follows) followed_.store(pulsed, std::memory_order_relaxed);
  return finish(sending, results, scratch);
}

int SharedConnection::finish(Sending& sending, CallResults& results, std::span<std::byte> scratch) {
  const std::int64_t flags = results.status & ~std::int64_t{0xffffffff};
  const auto status = static_cast<std::int32_t>(results.status);
  if (status < 0) throw SystemError(EPROTO, "a status below 0");
  if (flags == 0) [[likely]] {
    if (results.large) throw SystemError(EPROTO, "a reply that is too long");
    if (!scratch.empty()) scatter(results.data, sending.room);
    sending.replied = results.data.size();
    return status;
  }
  if (flags == kFailed) {
    if (status < 1 || status > EHWPOISON) throw SystemError(EPROTO, "not an errno");
    throw SystemError(status, "the server's answer");
  }
  if (flags != kPieces) throw SystemError(EPROTO, "not a reply");
  if (!results.large) throw SystemError(EPROTO, "pieces of a reply");
  sending.replied = unfold(results.data, sending.room);
  return status;
}

// A thread of a parent's may have been using it when it forked.
void SharedConnection::replace_sender(PulseSender* old, PulseSender* fresh) noexcept {
  // release: pairs with the acquire of who uses it.
  pulses_.store(fresh, std::memory_order_release);
  if (old == nullptr || !old->is_here()) return;
  old->retire();
  old->next = replaced_.load(std::memory_order_relaxed);
  replaced_.store(old, std::memory_order_relaxed);
}

// For who writes.
void SharedConnection::forget_replaced() noexcept {
  PulseSender* each = replaced_.exchange(nullptr, std::memory_order_relaxed);
  while (each != nullptr && each->is_here()) delete std::exchange(each, each->next);
}

std::optional<int> SharedConnection::send_as_before(const PulsePacket& packet) {
  const PulseSender* const found = pulses_.load(std::memory_order_acquire);
  if (found == nullptr || !found->is_own()) return {};
  if (const std::optional<int> error = found->send_at_once(packet)) [[likely]]
    return *error;
  const HeldSignals held;
  const std::lock_guard guard(changing_);
  PulseSender* const sender = pulses_.load(std::memory_order_relaxed);
  if (sender == nullptr || !sender->is_own()) return {};
  if (const std::optional<int> error = sender->send(branch_.get(), packet)) return *error;
  // The server has gone, or it has too many such sockets.
  replace_sender(sender, nullptr);
  return events_now(branch_.get(), POLLRDHUP) != 0 ? ESRCH : EAGAIN;
}

// With its first pulse. False: another thread has made one meanwhile.
bool SharedConnection::make_sender(const PulsePacket& first) {
  const HeldSignals held;
  const std::lock_guard guard(changing_);
  PulseSender* const old = pulses_.load(std::memory_order_relaxed);
  if (old != nullptr && old->is_own()) return false;
  replace_sender(old, nullptr);
  replace_sender(nullptr, new PulseSender(branch_.get(), maker_, first));
  // A new session is asked for on the same way, and so afterwards.
  client_.retire();
  return true;
}

int SharedConnection::send_packet(const PulsePacket& packet) {
  process::notice_changed_credentials();
  try {
    for (;;) {
      {
        const Reading guard(lock_);
        if (!usable()) return EBADF;
        if (const std::optional<int> error = send_as_before(packet)) [[likely]]
          return *error;
      }
      if (replaced_.load(std::memory_order_relaxed) != nullptr) {
        const HeldSignals held;
        // Nobody waits: who reads may be this thread, which a handler has interrupted.
        if (lock_.try_lock()) {
          forget_replaced();
          lock_.unlock();
        }
      }
      const Reading guard(lock_);
      if (!usable()) return EBADF;
      if (make_sender(packet)) return 0;
    }
  } catch (const SystemError& error) {
    return error.code().value();
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

int SharedConnection::pulse(int priority, int code, std::int64_t value) {
  const int own = own_priority();
  // Nobody gets ahead of those who are more urgent by saying so.
  if (priority > own) return EINVAL;
  if (priority == 0) priority = own;
  const int error = send_packet({.magic = PulsePacket::kMagic,
                                 .code = code,
                                 .value = value,
                                 .priority = static_cast<std::uint32_t>(priority),
                                 .thread = static_cast<std::uint32_t>(own_thread())});
  if (error == 0) pulsed_.fetch_add(1, std::memory_order_relaxed);
  return error;
}

void SharedConnection::watch_death(const std::shared_ptr<Channel>& channel, std::int64_t value) {
  const Writing guard(lock_);
  check_open();
  leave_parents();
  if (death_) throw SystemError(EBUSY, "its death is watched already");
  // A server that is busy with ordinary messages would not learn of it with less.
  const int priority = std::max(own_priority(), kNormalPriority);
  auto death = std::make_shared<Death>(channel, value, branch_.duplicate(), maker_, priority);
  death->start();
  death_ = std::move(death);
}

namespace {

class SharedEngine final : public Engine {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "shared"; }

  std::shared_ptr<Channel> create(std::string_view name, unsigned flags, mode_t mode) override {
    auto channel = std::make_shared<SharedChannel>(flags, mode);
    if (!name.empty()) channel->attach(own_name(name, std::to_string(channel->owner())));
    return channel;
  }

  std::shared_ptr<Connection> open(std::string_view name, Deadline deadline,
                                   SignalCount since) override {
    // A server that has stopped does not answer; nobody must wait for it for ever.
    if (deadline.is_never()) deadline = Deadline::after(kPatience);
    int error = ENOENT;
    for (const std::string& full : full_names(name)) {
      try {
        return open_full(full, deadline, since);
      } catch (const NameSquatted& squatted) {
        // As if nobody served there: whoever likes can keep a name of others.
        error = squatted.code().value();
      } catch (const SystemError& failure) {
        if (failure.code().value() != ENOENT) throw;
      }
    }
    throw SystemError(error, "no channel has that name");
  }

  std::shared_ptr<Connection> adopt(UniqueFd& descriptor) override {
    const auto flags = flags_of(descriptor.get());
    if (!flags) return nullptr;
    return std::make_shared<SharedConnection>(std::move(descriptor), *flags);
  }

 private:
  std::shared_ptr<Connection> open_full(const std::string& full, Deadline deadline,
                                        SignalCount since) {
    Credentials server{};
    UniqueFd fd = ask(kOpenPrefix, full, deadline, &server, since);
    if (const auto flags = flags_of(fd.get()))
      return std::make_shared<SharedConnection>(std::move(fd), *flags, full);
    process::close_later(server.uid, std::move(fd));
    throw SystemError(EPROTO, "what the server sent is no connection");
  }

  static constexpr auto kPatience = std::chrono::seconds(10);
};

}  // namespace

Engine& shared_engine() {
  static constinit SharedEngine engine;
  return engine;
}

}  // namespace farcall::message
