// SPDX-License-Identifier: Apache-2.0
//
// The client's half of a session.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "call/open_sessions.hpp"
#include "call/session.hpp"
#include "farcall/error.hpp"
#include "process/background.hpp"

namespace farcall::call {

class ClientSession;

// Who has made a port, and serves there. What others than this process's own user and root send is
// not closed by threads of the program's.
struct Maker {
  uid_t user;
  bool trusted;
  pid_t process = 0;
};
// Of a socket that leads to a port. Throws SystemError.
Maker maker_of(int port);

// Throws SystemError.
UniqueFd duplicate_descriptor(int fd);
// Closes a descriptor of a port, in which its server may have left what is long in closing.
template <class Fd>
void close_port(Fd port) noexcept {
  if (!port) return;
  try {
    if (const Maker maker = maker_of(port.get()); !maker.trusted)
      process::close_later(maker.user, std::move(port));
  } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it is no socket
  }
}
// A descriptor of a port; closes so.
template <class Fd>
class PortFd {
 public:
  PortFd() noexcept = default;
  explicit PortFd(Fd fd) noexcept : fd_(std::move(fd)) {}
  PortFd(PortFd&&) noexcept = default;
  PortFd& operator=(PortFd&& other) noexcept {
    close_port(std::exchange(fd_, std::move(other.fd_)));
    return *this;
  }
  ~PortFd() { close_port(std::move(fd_)); }

  [[nodiscard]] int get() const noexcept { return fd_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }

 private:
  Fd fd_;
};
// One that no child of this process has. Throws SystemError.
PortFd<process::PrivateFd> private_port(int port);

// The server's own word, whatever the errno: it is there.
class RefusedRequest final : public SystemError {
 public:
  RefusedRequest(int error, const char* what, bool handed)
      : SystemError(error, what), handed_over(handed) {}
  const bool handed_over;  // whoever serves there has had what came with the request
};

// What failed before any of it was sent: the session is as it was.
class NothingSent final : public SystemError {
 public:
  using SystemError::SystemError;
};

// A session that a port has been asked for. Whose wait for it is interrupted keeps it for the next
// time: who opened another instead, again and again, would keep others from being let in.
class SessionRequest {
 public:
  // `expected`: the SO_COOKIE that the port has, or 0.
  // Throws SystemError: EPIPE or ECONNRESET where the port has been closed, EBADF where it is
  // another than expected, ETIMEDOUT where it is full until the deadline, EINTR where signals since
  // then are to interrupt, EAGAIN where too much of that server's waits to be closed.
  SessionRequest(int port, std::uint64_t expected, std::uint64_t retirements, Deadline deadline,
                 std::optional<SignalCount> since);
  ~SessionRequest() {
    if (!maker_.trusted) hang_up_later(maker_.user, std::move(answers_));
  }
  SessionRequest(SessionRequest&&) noexcept = default;
  SessionRequest& operator=(SessionRequest&&) noexcept = default;

  // Waits until the server has let it in, at that `port`, or has died; null where `outcome` is
  // peer_gone, timed_out, would_block, interrupted (only where a `since` is given; it is the count
  // of signals when the call began). Throws SystemError: the server's refusal.
  std::unique_ptr<ClientSession> await(int port, WaitMode mode, bool cancellable, Deadline deadline,
                                       std::optional<SignalCount> since, Outcome& outcome);
  [[nodiscard]] std::uint64_t inode() const noexcept { return inode_; }
  // Where the server answers, and later the session is read.
  [[nodiscard]] int socket() const noexcept { return answers_.get(); }
  [[nodiscard]] bool valid(std::uint64_t retirements) const noexcept {
    return epoch_ == credentials_epoch() && made_after_ == retirements;
  }

 private:
  std::uint64_t epoch_ = credentials_epoch();
  std::uint64_t made_after_;  // so many retirements of its client
  std::uint64_t expected_;    // of the port
  Maker maker_;
  std::uint64_t inode_ = 0;  // of the memory
  PrivateMapping memory_;
  PrivateFd answers_;
};

class ClientSession final : public SessionBase {
 public:
  ClientSession(PrivateMapping memory, SessionSockets sockets, Maker maker, WaitMode mode)
      : SessionBase(std::move(memory), std::move(sockets), mode), maker_(maker) {}
  ~ClientSession();

  Outcome call(const CallArguments& arguments, CallResults* results, Deadline deadline,
               SignalCount since);
  // A call in two parts, of which the first makes no system call but to wake the server, and is no
  // point of cancellation. True: it has been answered; else finish() is to follow.
  [[nodiscard]] bool can_at_once(const CallArguments& arguments) const noexcept {
    return !outstanding_ && is_short(arguments);
  }
  inline bool call_at_once(const CallArguments& arguments, CallResults& results) noexcept;
  Outcome finish(const CallArguments& arguments, CallResults& results, Deadline deadline,
                 SignalCount since);
  // The same for who goes on with the call when a signal or the deadline has ended the wait.
  Outcome await_reply(CallResults& results, Deadline deadline, SignalCount since);
  // The first part for who does not wait: not where a request is outstanding. finish() follows.
  // Throws SystemError: ETIMEDOUT where the socket is full.
  void begin(const CallArguments& arguments, Deadline room) {
    ++number_;
    copy_until_ = Deadline::never();  // whoever waits for the reply has time when it is there
    send_request(arguments, Kind::request, room);
  }
  [[nodiscard]] bool outstanding() const noexcept { return outstanding_; }
  // Around a wait on the socket for the reply: see Waiter.
  Outcome prepare_poll() noexcept {
    Turn turn{};
    return waiter_.prepare_poll(control().client, control().server, [&] { return replied(turn); });
  }
  void finish_poll() noexcept { waiter_.finish_poll(control().client); }
  [[nodiscard]] bool dispatched() noexcept;
  // In the middle of a call whose answer nobody waits for any more: the server takes it no longer,
  // if it has not yet, and dispatched() says which. Not of an earlier one-way request.
  void give_up() noexcept {
    if (!outstanding_ && Turn::unpack(look()).number == number_) (void)take_back();
  }
  // Whether the thread may be cancelled while it waits for a reply; else that is switched off.
  void set_cancellable(bool on) noexcept {
    cancellable_ = on;
    waiter_.set_cancellable(on);
  }
  // Has what the server has sent closed: at once, where it is trusted, so that there is room again.
  void drop(ReceivedFds& descriptors) const noexcept;
  // To the server, before the first request.
  void say_other_ids() const;
  // Before the first call. Throws std::bad_alloc.
  void join(std::shared_ptr<OpenSessions> all) {
    all->add(*this);
    among_ = std::move(all);
  }
  // By any thread: ends the wait for a reply to what the server has not taken, which it never will.
  void give_up_request() noexcept {
    if (withdraw()) ::shutdown(socket(), SHUT_RD);
  }
  [[nodiscard]] Terms terms() const noexcept;
  [[nodiscard]] LiveTerms live_terms() const noexcept { return LiveTerms(control().terms.words); }
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  [[nodiscard]] const Maker& maker() const noexcept { return maker_; }

  static constexpr std::uint64_t kSpent = UINT64_MAX;
  std::uint64_t made_after = 0;  // so many retirements of its client; or good for no further call

 private:
  static bool is_short(const CallArguments& arguments) noexcept {
    return arguments.descriptors.empty() && arguments.data.size() <= kInlineBytes;
  }
  static std::int64_t extra_of(const CallArguments& arguments) noexcept {
    return static_cast<std::int64_t>(arguments.word) << 32 |
           static_cast<std::int64_t>(arguments.origin & 0xffffff) << 8 | arguments.priority;
  }
  static std::uint8_t flags_of(const CallArguments& arguments) noexcept {
    return arguments.after_others ? kAfterOthers : 0;
  }
  inline Turn fill_short_request(const CallArguments& arguments, Kind kind) noexcept;
  void send_request(const CallArguments& arguments, Kind kind, Deadline deadline);
  bool replied(Turn& turn) const noexcept {
    turn = Turn::unpack(look());
    return turn.number == number_ && turn.kind == Kind::reply;
  }
  bool stays(const CallArguments& arguments, Outcome outcome, Deadline& deadline);
  bool withdraw() noexcept;
  bool take_back() noexcept;
  Outcome wait_for_reply(Turn& turn, Deadline deadline, SignalCount since);
  Outcome wait_until_taken(Deadline deadline, SignalCount since);
  inline bool take_short_reply(Turn turn, CallResults& results) noexcept;
  Outcome take_reply(Turn turn, CallResults& results);
  Outcome take_refusal(Turn turn);
  Outcome take_long_reply(Turn turn, CallResults& results);
  Outcome make_room(std::uint64_t size, bool apart, CallResults& results) const;
  bool copy_reply(std::span<std::byte> into) noexcept;
  void begin_dropping() noexcept;
  Outcome await_dropped(Turn turn, Deadline deadline, SignalCount since);
  void close_mine() noexcept;
  Outcome lose_reply(Turn turn, CallResults& results) noexcept;
  Outcome fail(Outcome outcome) const noexcept;
  [[nodiscard]] uid_t owner() const noexcept override { return maker_.user; }
  [[nodiscard]] bool is_client() const noexcept override { return true; }
  [[nodiscard]] bool is_strangers() noexcept override { return !maker_.trusted; }
  bool look_whether_dropped() noexcept override;
  // A server has no more of the table than clients have of its own.
  bool may_take(std::size_t claimed, process::InHand&) noexcept override {
    return arrived_descriptors() + claimed <= process::descriptor_table() / 2;
  }
  // Not from who sends what is long in closing.
  bool may_keep(std::size_t count) noexcept override {
    return count == 0 || maker_.trusted || !behind(maker_.user);
  }
  [[nodiscard]] bool trusts_other() const noexcept override { return maker_.trusted; }

  const Maker maker_;
  std::shared_ptr<OpenSessions> among_;
  class Dropping;
  std::shared_ptr<Dropping> dropping_;  // of what is stuck
  std::uint64_t epoch_ = credentials_epoch();
  std::uint32_t number_ = 0;
  bool cancellable_ = false;
  std::uint32_t kept_ = 0;  // the last request that could not be taken back
  Deadline copy_until_ = Deadline::never();
  bool cut_short_ = false;    // time was up before the reply was copied: the session is closed
  bool outstanding_ = false;  // a one-way request has been sent and perhaps not taken yet
  std::mutex withdrawing_;
  std::uint32_t withdrawn_ = 0;  // the last request that was; protected by that lock
};

inline Turn ClientSession::fill_short_request(const CallArguments& arguments, Kind kind) noexcept {
  fill_slot(extra_of(arguments), arguments.data);
  return {.number = number_,
          .kind = kind,
          .flags = flags_of(arguments),
          .size = static_cast<std::uint16_t>(arguments.data.size())};
}

[[gnu::always_inline]] inline bool ClientSession::take_short_reply(Turn turn,
                                                                   CallResults& results) noexcept {
  // From here on only `turn`, a private copy, is believed, and only within its bounds.
  if (turn.flags != 0 || turn.size > std::min(results.buffer.size(), kInlineBytes)) return false;
  long_ = turn.size > kFirstLineBytes;
  results.status = extra();
  if ((results.status & results.apart) != 0) [[unlikely]]
    return false;
  results.data = results.buffer.first(turn.size);
  copy_bytes(results.data.data(), slot().data, turn.size);
  observe::note_reply(received_, results.data.data(), turn.size);
  return true;
}

[[gnu::always_inline]] inline bool ClientSession::call_at_once(const CallArguments& arguments,
                                                               CallResults& results) noexcept {
  ++number_;
  const Turn mine = fill_short_request(arguments, Kind::request);
  give_turn(mine, control().client, control().server);
  observe::note_call(sent_, arguments.data.data(), arguments.data.size());
  std::uint64_t word = 0;
  const auto answered = [&, given = mine.pack()] { return (word = look()) != given; };
  if (!waiter_.look(control().server, answered)) return false;
  const Turn turn = Turn::unpack(word);
  return turn.number == number_ && turn.kind == Kind::reply && take_short_reply(turn, results);
}

}  // namespace farcall::call
