// SPDX-License-Identifier: Apache-2.0
//
// A session: what one client thread and a server share. One page of memory, one packet socket.
//
//   offset   0  SessionControl: magic                      written once, by the client
//           64  Terms: refusal, seven words                written by the server, rarely
//          128  client's Side                              written by the client
//          256  server's Side                              written by the server
//          384  taken: number of the last request taken    written by the server
//          512  Slot: turn | extra | 48 bytes of data      written by whoever's turn it is
//          576  ...   the rest of the page: data
//
//   turn   bits 63..32         31..24   23..16   15..0
//          number of the call  kind     flags    bytes in the slot
//
// Request and reply go through the same lines: whoever reads the other's message takes the line
// over and writes the answer into it, so that a small call costs one line transfer each way, not
// two. `extra` is the word, the origin (24 bits) and the priority (8) of a request, the status of a
// reply.
//
//   client                              server
//     port:     memory, one end  ------->   checks both, makes the session's socket
//     that end: <------------------------   the client's end of it; or none, and `refusal` says why
//
//     request  ------------------>   takes it            one_way: answered as soon as taken
//              <------------------ reply
//   and, where descriptors are in the reply, which the server must know to have been taken:
//     done     ------------------>            its bytes: 0, or the errno of what went wrong, after
//              <------------------ reply      which the client waits for another reply
//
// The server makes the session's socket itself, and keeps its end to itself: nobody else can hold
// its locks, set its options, or say by it who they are.
//
// Data longer than the slot goes through memory of its own (transfer.hpp, kTransfer), made when
// first needed by whichever side needs it and announced with kTransferComes. Descriptors travel
// over the socket before the turn is given. The socket also carries doorbells (packets of one
// byte), what the kernel says of the client's real and saved ids (kPurposeReal, kPurposeSaved), and
// tells each side of the other's death.
#pragma once

#include <cstring>
#include <deque>

#include "call/request_buffer.hpp"
#include "call/transfer.hpp"
#include "farcall/call.hpp"
#include "process/background.hpp"
#include "process/ledger.hpp"
#include "process/process.hpp"
#include "process/reactor.hpp"

namespace farcall::call {

enum class Kind : std::uint8_t {
  none = 0,
  request = 1,
  one_way = 2,
  reply = 3,
  done = 5,
};
inline constexpr std::uint8_t kDescriptors = 1;    // packets of descriptors belong to it
inline constexpr std::uint8_t kTransfer = 2;       // the data is in the transfer memory
inline constexpr std::uint8_t kTransferComes = 4;  // a packet with that comes before
inline constexpr std::uint8_t kRefused = 16;       // a reply: the server could not take the request
inline constexpr std::uint8_t kAfterOthers = 32;   // a request: look for what has come before it
inline constexpr std::uint8_t kFlags = kDescriptors | kTransfer | kTransferComes | kRefused;

// What packets on a port's and a session's sockets bring.
inline constexpr std::uint8_t kPurposeSession = 1;  // to a port: a session's memory, and a socket
inline constexpr std::uint8_t kPurposeData = 2;     // in a session: descriptors, or memory
inline constexpr std::uint8_t kPurposeReal = 3;     // in a session: sent with the real ids
inline constexpr std::uint8_t kPurposeSaved = 4;    // likewise, the saved ids

struct Turn {
  std::uint32_t number = 0;
  Kind kind = Kind::none;
  std::uint8_t flags = 0;
  std::uint16_t size = 0;

  [[nodiscard]] constexpr std::uint64_t pack() const noexcept {
    return std::uint64_t{number} << 32 | std::uint64_t{static_cast<std::uint8_t>(kind)} << 24 |
           std::uint64_t{flags} << 16 | size;
  }
  static constexpr Turn unpack(std::uint64_t word) noexcept {
    return {.number = static_cast<std::uint32_t>(word >> 32),
            .kind = static_cast<Kind>(word >> 24 & 0xff),
            .flags = static_cast<std::uint8_t>(word >> 16),
            .size = static_cast<std::uint16_t>(word)};
  }
};

struct Slot {
  std::atomic<std::uint64_t> turn;
  std::int64_t extra;
  std::byte data[kInlineBytes];
};
inline constexpr std::size_t kFirstLineBytes = kLine - 16;

struct TermsLine {
  std::atomic<std::uint32_t> refusal;  // the errno with which the server takes no session
  std::array<std::atomic<std::uint64_t>, kTerms> words;
};

struct SessionControl {
  static constexpr std::uint64_t kMagic = 0x346c6c6163636166;  // "faccall4"

  alignas(kFalseSharing) std::uint64_t magic;
  alignas(kLine) TermsLine terms;
  Side client;
  Side server;
  alignas(kFalseSharing) std::atomic<std::uint32_t> taken;
  alignas(kFalseSharing) Slot slot;
};
static_assert(offsetof(SessionControl, terms) == 64 && sizeof(TermsLine) == kLine);
static_assert(offsetof(SessionControl, client) == 128 && offsetof(SessionControl, server) == 256 &&
              offsetof(SessionControl, taken) == 384 && offsetof(SessionControl, slot) == 512);
inline constexpr std::size_t kSessionBytes = 4096;
static_assert(sizeof(SessionControl) == kSessionBytes);

// Takes over the memory that a client has sent. Throws SystemError: EPERM, EPROTO.
Mapping adopt_session(UniqueFd fd);

// What both halves have in common: the memory, the socket and what came through it.
class SessionBase {
 public:
  SessionBase(Mapping memory, UniqueFd socket, WaitMode mode);
  SessionBase(const SessionBase&) = delete;
  SessionBase& operator=(const SessionBase&) = delete;

  [[nodiscard]] SessionControl& control() const noexcept {
    return *reinterpret_cast<SessionControl*>(memory_.data());
  }
  [[nodiscard]] Slot& slot() const noexcept { return control().slot; }
  [[nodiscard]] int socket() const noexcept { return socket_.get(); }
  // acquire: pairs with the release in give_turn().
  [[nodiscard]] Turn turn() const noexcept {
    return Turn::unpack(slot().turn.load(std::memory_order_acquire));
  }
  // The same, for who looks again and again: after a long message both lines of the slot are
  // fetched at once, instead of the second after the first.
  [[nodiscard]] std::uint64_t look() const noexcept {
    const std::uint64_t now = slot().turn.load(std::memory_order_acquire);
    if (long_) __builtin_prefetch(slot().data + kFirstLineBytes);
    return now;
  }
  // Takes all packets that have come: doorbells are dropped, descriptors are kept.
  void drain() noexcept;
  [[nodiscard]] Waiter& waiter() noexcept { return waiter_; }
  // Whether the other end of the socket has closed. A system call.
  [[nodiscard]] bool hung_up() const noexcept;

 protected:
  ~SessionBase() = default;

  // What one message is made of.
  struct Load {
    std::int64_t extra;
    std::span<const std::byte> data;
    std::span<const int> descriptors;
  };

  // The line with the turn is written last, lest the other side, who looks at it, takes it away
  // half-written.
  void fill_slot(std::int64_t extra, std::span<const std::byte> data) noexcept {
    if (data.size() > kFirstLineBytes) {
      std::memcpy(slot().data + kFirstLineBytes, data.data() + kFirstLineBytes,
                  data.size() - kFirstLineBytes);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      slot().extra = extra;
      std::memcpy(slot().data, data.data(), kFirstLineBytes);
    } else {
      slot().extra = extra;
      if (!data.empty()) std::memcpy(slot().data, data.data(), data.size());
    }
  }
  void give_turn(Turn turn, Side& mine, Side& peer) noexcept {
    // release: the message is visible before the turn passes.
    slot().turn.store(turn.pack(), std::memory_order_release);
    waiter_.wake(mine, peer);
  }
  // Fills the slot and sends what goes before the turn; `turn` gets its flags. Throws SystemError.
  void prepare(const Load& load, Turn& turn);
  // Takes over the transfer memory that the packet brings which announced it. Throws SystemError
  // where it cannot be had; broken.
  Outcome accept_transfer(bool trusted, std::size_t most);
  // ok, broken, or too_big: this process has no room for them.
  Outcome next_descriptors(std::vector<UniqueFd>& into);
  // Who the other side is, for the accounts of what it sends.
  [[nodiscard]] virtual uid_t owner() const noexcept { return 0; }
  // Any other packet. False: it makes no sense.
  virtual bool other_packet(const Packet&) noexcept { return false; }
  // Whether more descriptors may be kept here than there are now.
  virtual bool may_keep(std::size_t) noexcept { return true; }

  Mapping memory_;
  PrivateFd socket_;
  Waiter waiter_;
  TransferMemory transfer_;

 private:
  struct Arrived {
    std::vector<UniqueFd> descriptors;
    bool overflow = false;
    bool complete = false;
  };
  void keep(Packet& arrival);

  bool announce_ = false;  // memory has been sent, and no turn has told of it
  std::deque<Arrived> arrived_;
  bool garbage_ = false;

 protected:
  bool long_ = false;  // the last message that came had more than one line
};

class ClientSession;

// A session that a port has been asked for. Whose wait for it is interrupted keeps it for the next
// time: who opened another instead, again and again, would keep others from being heard.
class SessionRequest {
 public:
  // Throws SystemError: EPIPE or ECONNRESET where the port has been closed, EINTR where signals
  // since then are to interrupt.
  SessionRequest(int port, std::uint64_t retirements, std::optional<SignalCount> since);

  // Waits until the server has let it in; null where `outcome` is peer_gone, timed_out,
  // would_block, interrupted (only where a `since` is given; it is the count of signals when the
  // call began). Throws SystemError: the server's refusal.
  std::unique_ptr<ClientSession> await(WaitMode mode, bool cancellable, Deadline deadline,
                                       std::optional<SignalCount> since, Outcome& outcome);
  [[nodiscard]] bool valid(std::uint64_t retirements) const noexcept {
    return epoch_ == credentials_epoch() && made_after_ == retirements;
  }

 private:
  std::uint64_t epoch_ = credentials_epoch();
  std::uint64_t made_after_;  // so many retirements of its client
  Mapping memory_;
  PrivateFd answers_;
};

class ClientSession final : public SessionBase {
 public:
  ClientSession(Mapping memory, UniqueFd socket, WaitMode mode)
      : SessionBase(std::move(memory), std::move(socket), mode) {}

  Outcome call(const CallArguments& arguments, CallResults* results, Deadline deadline,
               SignalCount since);
  // A call in two parts, of which the first makes no system call but to wake the server, and is no
  // point of cancellation. True: it has been answered; else finish() is to follow.
  [[nodiscard]] bool can_at_once(const CallArguments& arguments) const noexcept {
    return !outstanding_ && is_short(arguments);
  }
  bool call_at_once(const CallArguments& arguments, CallResults& results) noexcept;
  Outcome finish(const CallArguments& arguments, CallResults& results, Deadline deadline,
                 SignalCount since);
  [[nodiscard]] bool dispatched() const noexcept {
    return control().taken.load(std::memory_order_relaxed) == number_;
  }
  // Whether the thread may be cancelled while it waits for a reply; else that is switched off.
  void set_cancellable(bool on) noexcept {
    cancellable_ = on;
    waiter_.set_cancellable(on);
  }
  // To the server, before the first request.
  void say_other_ids() const;
  [[nodiscard]] Terms terms() const noexcept;
  [[nodiscard]] LiveTerms live_terms() const noexcept { return LiveTerms(control().terms.words); }
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }

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
  void send_request(const CallArguments& arguments, Kind kind);
  bool replied(Turn& turn) const noexcept {
    turn = Turn::unpack(look());
    return turn.number == number_ && turn.kind == Kind::reply;
  }
  Outcome wait_for_reply(Turn& turn, Deadline deadline, SignalCount since);
  Outcome wait_until_taken(Deadline deadline, SignalCount since);
  inline bool take_short_reply(Turn turn, CallResults& results) noexcept;
  Outcome take_reply(Turn turn, CallResults& results);
  Outcome take_long_reply(Turn turn, CallResults& results);
  Outcome fail(Outcome outcome) const noexcept;

  std::uint64_t epoch_ = credentials_epoch();
  std::uint32_t number_ = 0;
  bool cancellable_ = false;
  bool outstanding_ = false;  // a one-way request has been sent and perhaps not taken yet
};

// Where a request goes that is more than a few bytes.
struct Destination {
  std::byte* inline_data;  // kInlineBytes
  std::unique_ptr<RequestBuffer>& large;
  const PortLimits& limits;
  std::vector<UniqueFd>& descriptors;
  ClientDeathObserver* observer;
};

class ServerSession final : public SessionBase {
 public:
  ServerSession(Mapping memory, UniqueFd socket, CallerIdentity sender, std::uint64_t number,
                std::shared_ptr<Endpoint> way_in, WaitMode mode, Charge held)
      : SessionBase(std::move(memory), std::move(socket), mode),
        caller(sender.effective),
        id(number),
        endpoint(std::move(way_in)),
        identity_(std::move(sender)),
        charge_(std::move(held)) {}
  // Packets that nobody has taken may hold anything.
  ~ServerSession() { close_later(caller.uid, socket_.release(), std::move(charge_)); }

  [[nodiscard]] bool ready() const noexcept { return is_request(turn()); }
  // For its owner.
  [[nodiscard]] bool arrived() const noexcept { return is_request(Turn::unpack(look())); }
  [[nodiscard]] bool is_request(Turn now) const noexcept {
    return now.number != number_.load(std::memory_order_relaxed) &&
           (now.kind == Kind::request || now.kind == Kind::one_way);
  }
  [[nodiscard]] bool ready_after_others() const noexcept {
    return (turn().flags & kAfterOthers) != 0;
  }
  [[nodiscard]] bool ready_one_way() const noexcept {
    return ready() && turn().kind == Kind::one_way;
  }
  // As far as the endpoint's owner believes it.
  [[nodiscard]] std::uint8_t priority() const noexcept {
    const auto claimed = static_cast<std::uint8_t>(slot().extra & 0xff);
    if (claimed == 0) return 0;
    const auto owner = endpoint->owner();
    return owner ? owner->bounded(claimed, caller, origin()) : claimed;
  }
  [[nodiscard]] std::uint32_t origin() const noexcept {
    return static_cast<std::uint32_t>(slot().extra) >> 8;
  }
  // Takes the request that is ready, if it is no more than the slot holds; `into` has
  // kInlineBytes. False: it is, or makes no sense, and take() is to follow.
  bool take_short(std::byte* into, Request& request) noexcept {
    const Turn turn = this->turn();
    if (turn.size > kInlineBytes || (turn.flags & ~kAfterOthers) != 0) return false;
    begin(turn, request);
    request.data = {into, turn.size};
    if (turn.size != 0) std::memcpy(into, slot().data, turn.size);
    if (!request.wants_reply) answer(turn.number);
    return true;
  }
  // Takes any. would_block: there is none to serve after all, but the session goes on. Else, where
  // not ok, the session is to be closed.
  Outcome take(const Destination& to, Request& request);
  // A reply of no more than kInlineBytes.
  void reply_shortly(std::span<const std::byte> data, std::int64_t status) noexcept {
    fill_slot(status, data);
    answer(number_.load(std::memory_order_relaxed), static_cast<std::uint16_t>(data.size()));
    transfer_.exchanged();
  }
  // Any other. ok, peer_gone, broken. Throws SystemError where the client could not take it and
  // waits on.
  Outcome reply(std::span<const std::byte> data, std::span<const int> descriptors,
                std::int64_t status, std::chrono::nanoseconds patience);
  // Tells the client that its request cannot be taken.
  void refuse(int error) noexcept;
  void set_terms(const Terms& terms) noexcept;
  // For its owner.
  const CallerIdentity& identity() noexcept {
    drain();  // what the client said of itself came before its first request
    return identity_;
  }

  [[nodiscard]] bool claim() noexcept { return !owned_.exchange(true, std::memory_order_seq_cst); }
  void release() noexcept { owned_.store(false, std::memory_order_seq_cst); }
  // relaxed: for who wonders whether the vigil over its port is to be told of this session.
  [[nodiscard]] bool unattended() const noexcept {
    return !owned_.load(std::memory_order_relaxed) && !in_vigil.load(std::memory_order_relaxed);
  }

  // Between these two the client's death is told to `observer`. end_serving() returns when it is
  // not being told, and never will be.
  void begin_serving(ClientDeathObserver* observer) noexcept {
    if (observer == nullptr) return;
    observer_.store(observer, std::memory_order_release);
    asymmetric_fence_light();
    if (gone.load(std::memory_order_relaxed)) [[unlikely]]
      tell_gone();
  }
  void end_serving() noexcept {
    if (observer_.load(std::memory_order_acquire) == nullptr) return;
    observer_.store(nullptr, std::memory_order_relaxed);
    asymmetric_fence_light();
    while (telling_.load(std::memory_order_acquire)) relax();
  }
  // The socket has said that the client has gone.
  void tell_gone() noexcept;

  const Credentials caller;
  const std::uint64_t id;
  const std::shared_ptr<Endpoint> endpoint;
  std::atomic<bool> gone{false};
  std::atomic<bool> in_vigil{false};
  unsigned parks = 0;  // how often it was left to its doorbell; its owner's

 private:
  // What is the same for requests of all sizes.
  void begin(Turn turn, Request& request) noexcept {
    long_ = turn.size > kFirstLineBytes;
    number_.store(turn.number, std::memory_order_relaxed);
    const auto extra = static_cast<std::uint64_t>(slot().extra);
    request.wants_reply = turn.kind == Kind::request;
    request.word = static_cast<std::int32_t>(extra >> 32);
    request.origin = static_cast<std::uint32_t>(extra) >> 8;
    request.priority = static_cast<std::uint8_t>(extra);
    // relaxed: tells a client whose call failed, or that waits to send more; it orders nothing.
    control().taken.store(turn.number, std::memory_order_relaxed);
  }
  void answer(std::uint32_t number, std::uint16_t size = 0, std::uint8_t flags = 0) noexcept {
    give_turn({.number = number, .kind = Kind::reply, .flags = flags, .size = size},
              control().server, control().client);
  }
  Outcome take_data(const Turn& turn, const Destination& to, Request& request, int& refusal);
  int take_long(std::size_t size, const Destination& to, Request& request);
  bool other_packet(const Packet& arrival) noexcept override;
  bool may_keep(std::size_t count) noexcept override;
  [[nodiscard]] uid_t owner() const noexcept override { return caller.uid; }
  [[nodiscard]] bool trusts_client() const noexcept;

  // Of the last request taken. Only the owner writes it; others look, and then claim.
  std::atomic<std::uint32_t> number_{0};
  std::atomic<bool> owned_{false};
  // Who serves writes the first and looks at `gone` and the second, who tells does the reverse;
  // with asymmetric fences between.
  std::atomic<ClientDeathObserver*> observer_{nullptr};
  std::atomic<bool> telling_{false};
  CallerIdentity identity_;
  Charge charge_;             // the session's own descriptors
  std::vector<Charge> kept_;  // those of descriptors that wait for their request
};
using SessionPointer = std::shared_ptr<ServerSession>;

}  // namespace farcall::call
