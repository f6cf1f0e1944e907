// SPDX-License-Identifier: Apache-2.0
//
// The server's half of a session: what the threads of a port take requests out of.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "call/endpoint.hpp"
#include "call/fair_queue.hpp"
#include "call/request_buffer.hpp"
#include "call/session.hpp"
#include "process/background.hpp"
#include "process/ledger.hpp"

namespace farcall::call {

// Where a request goes that is more than a few bytes.
struct Destination {
  std::byte* inline_data;  // kInlineBytes
  std::unique_ptr<RequestBuffer>& large;
  const PortLimits& limits;
  ReceivedFds& descriptors;
  ClientDeathObserver* observer;
  const std::function<bool()>& others_first;  // asked when the thread has copied for a turn
};

// A long request of which a part has been copied. Whoever takes it goes on where the last one has
// stopped, with what that one has read.
struct Copying {
  explicit Copying(AccountPointer whose) noexcept : account(std::move(whose)) {
    account->copies.fetch_add(1, std::memory_order_relaxed);
  }
  ~Copying() { account->copies.fetch_sub(1, std::memory_order_relaxed); }
  Copying(const Copying&) = delete;
  Copying& operator=(const Copying&) = delete;

  const AccountPointer account;
  Request request;
  std::span<std::byte> data;
  std::unique_ptr<RequestBuffer> into;
  ReceivedFds descriptors;
  std::size_t done = 0;
};

class ServerSession final : public SessionBase {
 public:
  ServerSession(PrivateMapping memory, SessionSockets sockets, CallerIdentity sender,
                std::uint64_t number, std::shared_ptr<EndpointState> way_in, WaitMode mode,
                Charge held, AccountPointer its_account)
      : SessionBase(std::move(memory), std::move(sockets), mode),
        caller(sender.effective),
        id(number),
        endpoint(std::move(way_in)),
        account(std::move(its_account)),
        identity_(std::move(sender)),
        own_user_(process::is_own(caller.uid)),
        most_inline_(std::min(kInlineBytes, endpoint->limits().request_bytes)),
        charge_(std::move(held)) {
    if (!own_user_) waiter_.measure_wakes();
  }
  ~ServerSession();
  // As long as it lives; who makes it calls.
  void hold(Charge&& for_identity) noexcept { for_identity_ = std::move(for_identity); }

  [[nodiscard]] bool ready() const noexcept { return copying() || is_request(turn()); }
  // Whether its request has been copied in part. relaxed: claim() and release() order it.
  [[nodiscard]] bool copying() const noexcept {
    return copying_now_.load(std::memory_order_relaxed);
  }
  // Whether that goes on before others of its user are served, who has more such requests. Each
  // takes memory: so of one user's there are no more at a time than threads, and one.
  [[nodiscard]] bool is_one_of_several_copies() const noexcept {
    return copying() && account->copies.load(std::memory_order_relaxed) > 1;
  }
  // For its owner.
  [[nodiscard]] bool arrived() const noexcept { return is_request(Turn::unpack(look())); }
  [[nodiscard]] bool is_request(Turn now) const noexcept {
    if (now.number == number_.load(std::memory_order_relaxed)) return is_late_refusal(now);
    return now.kind == Kind::request || now.kind == Kind::one_way;
  }
  [[nodiscard]] bool ready_after_others() const noexcept {
    return (turn().flags & kAfterOthers) != 0 && !copying();
  }
  // For its owner.
  [[nodiscard]] bool ready_one_way() const noexcept {
    if (copying_) return !copying_->request.wants_reply;
    return ready() && turn().kind == Kind::one_way;
  }
  // As far as the endpoint's owner believes it.
  [[nodiscard]] std::uint8_t priority() const noexcept {
    const auto claimed = static_cast<std::uint8_t>(extra() & 0xff);
    if (claimed == 0) return 0;
    const auto owner = endpoint->owner.lock();
    return owner ? owner->bounded(claimed, caller, origin()) : claimed;
  }
  [[nodiscard]] std::uint32_t origin() const noexcept {
    return static_cast<std::uint32_t>(extra()) >> 8;
  }
  // Takes the request that is ready, if it is no more than the slot and the limits hold; `into` has
  // kInlineBytes. False: it is, or makes no sense, and take() is to follow.
  bool take_short(std::byte* into, Request& request) noexcept {
    const Turn turn = this->turn();
    const bool unusual = copying_now_.load(std::memory_order_relaxed) || refuse_next_ != 0;
    if (turn.size > most_inline_ || ((turn.flags & ~kAfterOthers) | int{unusual}) != 0 ||
        turn.kind == Kind::done)
      return false;
    if (turn.kind != Kind::request && !claim_one_way(turn)) return false;
    begin(turn, request);
    tell_taken();
    request.data = {into, turn.size};
    copy_bytes(into, slot().data, turn.size);
    if (request.wants_reply && !stays()) [[unlikely]]
      return false;
    observe::note_received(received_, into, turn.size);
    if (!request.wants_reply) answer(turn.number);
    return true;
  }
  // Takes any. would_block: there is none to serve after all, or others who wait for a thread go
  // first, but the session goes on. Else, where not ok, the session is to be closed.
  Outcome take(const Destination& to, Request& request);
  // A reply of no more than kInlineBytes.
  [[gnu::always_inline]] void reply_shortly(std::span<const std::byte> data,
                                            std::int64_t status) noexcept {
    fill_slot(status, data);
    answer(number_.load(std::memory_order_relaxed), static_cast<std::uint16_t>(data.size()));
    observe::note_sent(sent_, data.data(), data.size());
    exchanged();
  }
  // Any other. Throws SystemError: ETIMEDOUT where the client takes nothing out of its socket.
  // True: the client is to say whether it has taken the descriptors.
  bool reply(std::span<const std::byte> data, std::span<const int> descriptors,
             std::int64_t status);
  // ok, timed_out, peer_gone, broken. Throws SystemError where the client could not take them, and
  // waits for another reply.
  Outcome await_taken(Deadline deadline);
  // What replies have brought is on the client's account until it has been taken: looks whether it
  // has. Any thread; does nothing while a reply is being sent.
  void forget_taken() noexcept;
  // Nobody waits for that any more. A client that says later that it could not is refused then.
  void leave_untold() noexcept { untold_ = number_.load(std::memory_order_relaxed); }
  // Tells the client that its request cannot be taken, or, where the program has been given all
  // that came with it, that it has been refused.
  void refuse(int error, bool handed_over = false) noexcept;
  // The same, of the one that is there, when it is taken. For its owner.
  void refuse_next(int error) noexcept { refuse_next_ = error; }
  void set_terms(const Terms& terms) noexcept;
  // For its owner, when there has been a request.
  const CallerIdentity& identity() noexcept {
    // What the client said of itself came before its first request.
    if (!std::exchange(introduced_, true)) drain();
    return identity_;
  }

  // acquire and release: the session is its owner's alone. And who finds it claimed tells the
  // owner, whose release() comes behind that: the request that was found is seen by whoever looks
  // then.
  [[nodiscard]] bool claim() noexcept { return !owned_.exchange(true, std::memory_order_acq_rel); }
  void release() noexcept { owned_.exchange(false, std::memory_order_acq_rel); }
  // relaxed: for who claims it if it looks so.
  [[nodiscard]] bool claimed() const noexcept { return owned_.load(std::memory_order_relaxed); }
  // relaxed: for who wonders whether the thread that waits for all sessions is to be told of this
  // one.
  [[nodiscard]] bool unattended() const noexcept {
    return !claimed() && !in_multi_wait.load(std::memory_order_relaxed);
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
  // Of a request that is refused for want of room, what stays in the socket is dropped, and then
  // the client is told. By who has claimed it, a thread that may wait for the client.
  void drop_and_refuse() noexcept;
  // The client is told that this is the end.
  void hang_up() noexcept;

  const Credentials caller;
  const std::uint64_t id;
  const std::shared_ptr<EndpointState> endpoint;
  const AccountPointer account;
  std::atomic<bool> gone{false};
  std::atomic<bool> in_multi_wait{false};
  unsigned parks = 0;                   // how often it was left to its doorbell; its owner's
  std::shared_ptr<ServerSession> next;  // in a list of claimed ones; its owner's
  // How often it has rung since a request of that number was taken, and rested since. relaxed, by
  // whatever thread: one more or less makes no difference.
  struct VainBells {
    std::atomic<std::uint32_t> number{0};
    std::atomic<unsigned> count{0};
    std::atomic<unsigned> rests{0};
  } vain;
  [[nodiscard]] std::uint32_t last_taken() const noexcept {
    return number_.load(std::memory_order_relaxed);
  }
  bool resting = false;  // protected by the port's lock

 private:
  // What is the same for requests of all sizes.
  void begin(Turn turn, Request& request) noexcept {
    long_ = turn.size > kFirstLineBytes;
    number_.store(turn.number, std::memory_order_relaxed);
    const auto extra = static_cast<std::uint64_t>(this->extra());
    request.wants_reply = turn.kind == Kind::request;
    request.word = static_cast<std::int32_t>(extra >> 32);
    request.origin = static_cast<std::uint32_t>(extra) >> 8;
    request.priority = static_cast<std::uint8_t>(extra);
  }
  // That the last request begun is served, or refused. What has been copied in part is neither: if
  // its port closes, nobody has seen it. relaxed: tells a client whose call failed; it orders
  // nothing.
  void tell_taken() noexcept { control().taken.store(last_taken(), std::memory_order_relaxed); }
  // After that: whether the request is there still. A client that takes it back says so before it
  // looks whether it has been taken, and passes asymmetric_fence_to_others() between.
  [[nodiscard]] bool stays() noexcept {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    const Turn now = Turn::unpack(slot().turn.load(std::memory_order_relaxed));
    return now.kind == Kind::request || detain(now);
  }
  [[nodiscard]] bool detain(Turn now) noexcept;
  // A client may take back what nobody has taken yet; of its exchange and this one only one
  // succeeds. False: it has, or there is none.
  [[nodiscard]] bool claim_one_way(Turn turn) noexcept {
    if (turn.kind != Kind::one_way) return false;
    std::uint64_t expected = turn.pack();
    turn.kind = Kind::taking;
    // relaxed: what comes with the request has been acquired with it.
    return slot().turn.compare_exchange_strong(expected, turn.pack(), std::memory_order_relaxed);
  }
  void answer(std::uint32_t number, std::uint16_t size = 0, std::uint8_t flags = 0) noexcept {
    give_turn({.number = number, .kind = Kind::reply, .flags = flags, .size = size},
              control().server, control().client);
  }
  [[nodiscard]] bool is_late_refusal(Turn now) const noexcept {
    return now.kind == Kind::done && now.size != 0 && now.number == untold_;
  }
  [[nodiscard]] Charge charged(Resource resource, std::size_t amount, std::size_t most) noexcept;
  // Whether it is so now. Where nobody tells of changes, a system call.
  [[nodiscard]] bool is_own_user() noexcept { return own_user_ && is_still_own_user(); }
  bool is_still_own_user() noexcept;
  [[nodiscard]] Charge bytes_charged(std::size_t bytes, std::size_t most) noexcept {
    return is_own_user() ? Charge::exempt() : charged(Resource::bytes, bytes, most);
  }
  class Sending;
  // For who has untaken_lock_.
  void clear_taken() noexcept;
  [[nodiscard]] bool has_untaken() noexcept;
  void charge_for_sending(std::size_t count);
  void keep_until_taken(Charge&& charge) noexcept;
  Outcome take_data(const Turn& turn, const Destination& to, Request& request, int& refusal);
  int begin_long(std::size_t size, const Destination& to);
  Outcome go_on_copying(const Destination& to, Request& request);
  Outcome end_copying(bool read, const Destination& to, Request& request);
  Outcome answer_refused(int error, const Destination& to);
  void exchanged() noexcept {
    if (transfer_.capacity() > TransferMemory::kMostKept) [[unlikely]]
      drop_transfer();
  }
  // `read`: nobody has anything more to read there.
  void drop_transfer(bool read = false) noexcept;
  // Memory is replaced by who has read what was in the last one, or is about to write.
  void let_go_of_transfer() noexcept override { drop_transfer(true); }
  bool other_packet(const Packet& packet) noexcept override;
  bool may_take(std::size_t claimed, process::InHand& in_hand) noexcept override;
  [[nodiscard]] bool is_strangers() noexcept override { return !is_own_user(); }
  [[nodiscard]] bool tells_sender() const noexcept override { return true; }
  bool may_keep(std::size_t count) noexcept override;
  bool may_hold(std::size_t bytes, Charge& charge) noexcept override {
    charge = bytes_charged(bytes, endpoint->limits().bytes_per_user);
    return static_cast<bool>(charge);
  }
  void count_unsolicited(std::size_t control_messages, std::size_t descriptors) noexcept override {
    endpoint->count_unsolicited(control_messages, descriptors);
  }
  [[nodiscard]] uid_t owner() const noexcept override { return caller.uid; }
  [[nodiscard]] bool trusts_other() const noexcept override;
  [[nodiscard]] bool is_client() const noexcept override { return false; }

  // Of the last request taken. Only the owner writes it; others look, and then claim.
  std::atomic<std::uint32_t> number_{0};
  std::uint32_t untold_ = 0;  // number of a reply; its owner's
  int refuse_next_ = 0;       // the errno, or 0; its owner's
  int stuck_refusal_ = 0;     // the errno that is to be told when nothing is stuck; its owner's
  std::atomic<bool> owned_{false};
  // Who serves writes the first and looks at `gone` and the second, who tells does the reverse;
  // with asymmetric fences between.
  std::atomic<ClientDeathObserver*> observer_{nullptr};
  std::atomic<bool> telling_{false};
  CallerIdentity identity_;
  bool introduced_ = false;
  // Of the process's own user, or root, when the session began; and so known in that epoch of
  // credentials.
  const bool own_user_;
  std::atomic<std::uint64_t> own_in_{UINT64_MAX};
  const std::size_t most_inline_;  // bytes of a request that the slot holds
  Charge charge_;                  // the session's own descriptors
  Charge for_identity_;
  std::vector<Charge> kept_;  // those of descriptors that wait for their request
  std::mutex untaken_lock_;
  std::vector<Charge> untaken_;         // until the client has taken all; protected by that lock
  std::uint32_t doorbells_before_ = 0;  // those sent before them; protected by that lock
  bool sending_reply_ = false;          // its owner's, who changes it with that lock
  bool may_have_untaken_ = false;       // its owner's
  std::unique_ptr<Copying> copying_;    // its owner's
  std::atomic<bool> copying_now_{false};
};
using SessionPointer = std::shared_ptr<ServerSession>;

}  // namespace farcall::call
