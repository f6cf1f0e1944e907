// SPDX-License-Identifier: Apache-2.0
#include "call/server_session.hpp"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "call/port.hpp"
#include "farcall/error.hpp"
#include "process/identity.hpp"
#include "process/reactor.hpp"
#include "socket/strangers.hpp"

namespace farcall::call {

namespace {

constexpr unsigned kUnknownId = ~0U;

// What a doorbell that nobody has taken yet counts as; 0 where that cannot be found out.
int doorbell_bytes() noexcept {
  static std::atomic<int> known{0};
  int bytes = known.load(std::memory_order_relaxed);
  int ends[2];
  if (bytes != 0 || ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return bytes;
  const UniqueFd near(ends[0]);
  const UniqueFd far(ends[1]);
  const char ring = 0;
  if (::syscall(SYS_sendto, near.get(), &ring, 1, MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0) == 1 &&
      ::ioctl(near.get(), SIOCOUTQ, &bytes) == 0)
    known.store(bytes, std::memory_order_relaxed);
  return bytes;
}

// What a session has sent and its client has not taken counts as in flight, of which the kernel
// lets the server's user have no more than a process may have descriptors. So it stays on the
// client's account until it has been taken, or the client's end has gone.
class Untaken final : public process::Watch, public std::enable_shared_from_this<Untaken> {
 public:
  // `doorbells`: so many have been sent since. A client that has slept may leave them there.
  static bool any(int socket, std::uint32_t doorbells) noexcept {
    int bytes = 0;
    if (::ioctl(socket, SIOCOUTQ, &bytes) != 0 || bytes <= 0) return false;
    return doorbells == 0 || bytes > std::int64_t{doorbells} * doorbell_bytes();
  }
  Untaken(uid_t user, PrivateFd socket, std::uint32_t doorbells, Charge held,
          std::vector<Charge> sent) noexcept
      : user_(user),
        socket_(std::move(socket)),
        doorbells_(doorbells),
        charge_(std::move(held)),
        sent_(std::move(sent)) {}
  ~Untaken() override { close_later(user_, std::move(socket_), std::move(charge_)); }

  // Each time that something has been taken.
  void start() { registration_.start(socket_.get(), EPOLLOUT | EPOLLET, shared_from_this()); }
  void on_readable(std::uint32_t) noexcept override {
    const auto keep = shared_from_this();
    if (!any(socket_.get(), doorbells_)) registration_.stop();
  }

 private:
  const uid_t user_;
  PrivateFd socket_;
  const std::uint32_t doorbells_;
  Charge charge_;
  const std::vector<Charge> sent_;
  process::Registration registration_;
};

// Where nobody is to read it any more its pages go, whoever keeps it.
struct Dropped {
  TransferMemory memory;
  bool unwanted;

  Dropped(TransferMemory&& dropped, bool no_reader) noexcept
      : memory(std::move(dropped)), unwanted(no_reader) {}
  Dropped(Dropped&&) noexcept = default;
  Dropped& operator=(Dropped&&) = delete;
  ~Dropped() {
    if (unwanted) memory.discard();
  }
};

}  // namespace

// Packets that nobody has taken may hold anything.
ServerSession::~ServerSession() {
  const std::uint32_t doorbells = waiter_.doorbells() - doorbells_before_;
  const bool untaken = !own_user_ && has_sent_descriptors_ && sockets_.theirs.is_here() &&
                       Untaken::any(sockets_.theirs.get(), doorbells);
  if (untaken && transfer_.made_here()) keep_until_taken(std::move(transfer_.charge));
  drop_transfer();
  if (copying_) copying_->into->free();
  if (untaken) try {
      const auto watch =
          std::make_shared<Untaken>(caller.uid, std::move(sockets_.theirs), doorbells,
                                    std::exchange(charge_, {}), std::exchange(untaken_, {}));
      watch->start();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): closed at once, then
    }
  close_later(caller.uid, std::move(sockets_.theirs));
  close_later(caller.uid, std::move(sockets_.mine), std::move(charge_));
}

bool ServerSession::trusts_other() const noexcept { return process::is_only(caller.uid); }

bool ServerSession::is_still_own_user() noexcept {
  const std::uint64_t now = process::credentials_epoch();
  if (process::are_changed_credentials_told() && own_in_.load(std::memory_order_relaxed) == now)
    return true;
  if (!process::is_own(caller.uid)) return false;
  own_in_.store(now, std::memory_order_relaxed);
  return true;
}

bool ServerSession::other_packet(const Packet& packet) noexcept {
  if (!packet.sender || packet.sender->pid != caller.pid) return false;
  // From another namespace of processes: who has sent it cannot be told from others there.
  if (caller.pid == 0) {
    identity_.real_uid = identity_.saved_uid = kUnknownId;
    identity_.real_gid = identity_.saved_gid = kUnknownId;
    return packet.purpose == kPurposeReal || packet.purpose == kPurposeSaved;
  }
  if (packet.purpose == kPurposeReal) {
    identity_.real_uid = packet.sender->uid;
    identity_.real_gid = packet.sender->gid;
  } else if (packet.purpose == kPurposeSaved) {
    identity_.saved_uid = packet.sender->uid;
    identity_.saved_gid = packet.sender->gid;
  } else {
    return false;
  }
  return true;
}

// What is there for replies that have been taken by now is given back where there is no room.
Charge ServerSession::charged(Resource resource, std::size_t amount, std::size_t most) noexcept {
  Charge made(resource, caller.uid, amount, most);
  if (made || amount == 0) return made;
  endpoint->port->forget_taken(caller.uid);
  return {resource, caller.uid, amount, most};
}

// Nobody finds meanwhile that all has been taken, and gives back what is about to be sent.
class ServerSession::Sending {
 public:
  // Does nothing where `begins` is false.
  Sending(ServerSession& session, bool begins) : session_(session), begun_(begins) {
    if (!begun_) return;
    const std::lock_guard guard(session_.untaken_lock_);
    session_.clear_taken();
    session_.sending_reply_ = true;
  }
  ~Sending() {
    if (!begun_) return;
    const std::lock_guard guard(session_.untaken_lock_);
    session_.sending_reply_ = false;
    session_.may_have_untaken_ = !session_.untaken_.empty();
  }
  Sending(const Sending&) = delete;
  Sending& operator=(const Sending&) = delete;

 private:
  ServerSession& session_;
  const bool begun_;
};

void ServerSession::forget_taken() noexcept {
  if (own_user_) return;
  const std::lock_guard guard(untaken_lock_);
  if (!sending_reply_) clear_taken();
}

void ServerSession::clear_taken() noexcept {
  if (untaken_.empty()) return;
  // Before the look at the socket: what is sent meanwhile is not counted.
  const std::uint32_t doorbells = waiter_.doorbells() - doorbells_before_;
  if (!Untaken::any(sockets_.theirs.get(), doorbells)) untaken_.clear();
}

// Throws SystemError: ETIMEDOUT, where the client has not taken what was sent before; EAGAIN, where
// others of its user have not.
void ServerSession::charge_for_sending(std::size_t count) {
  if (!sending_reply_ || count == 0) return;
  const bool untaken = has_untaken();
  Charge charge = charged(Resource::in_flight, count, endpoint->limits().descriptors_per_user);
  if (!charge && untaken) throw SystemError(ETIMEDOUT, "the client takes no descriptors");
  if (!charge) throw SystemError(EAGAIN, "too many descriptors on their way to one user");
  const std::lock_guard guard(untaken_lock_);
  untaken_.push_back(std::move(charge));
  doorbells_before_ = waiter_.doorbells();
}

bool ServerSession::has_untaken() noexcept {
  const std::lock_guard guard(untaken_lock_);
  return !untaken_.empty();
}

void ServerSession::keep_until_taken(Charge&& charge) noexcept {
  try {
    const std::lock_guard guard(untaken_lock_);
    untaken_.push_back(std::move(charge));
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it is given back at once
  }
}

// Threads that are at it are through in a moment, however busy the machine is. What others have
// sent may be long in closing.
bool ServerSession::may_take(std::size_t claimed, process::InHand& in_hand) noexcept {
  using Room = process::InHand::Room;
  const std::size_t most = claimed + kUnaskedDescriptors;
  constexpr int kTurns = 20'000;
  process::CatchingUp catching_up(caller.uid);
  for (int busy = 0; busy < kTurns;) {
    const Room room = in_hand.take(caller.uid, most);
    if (room == Room::given) return true;
    if (room == Room::busy) {
      ++busy;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    } else if (!catching_up.wait()) {
      return false;
    }
  }
  return false;
}

// Descriptors that nobody has asked for yet count as their sender's, and nobody has more sent than
// can be thrown away.
bool ServerSession::may_keep(std::size_t count) noexcept {
  if (count == 0) return true;
  if (process::goes_on_flooding(caller.uid)) return false;
  try {
    kept_.emplace_back(Resource::descriptors, caller.uid, count,
                       endpoint->limits().descriptors_per_user);
    return static_cast<bool>(kept_.back());
  } catch (const std::bad_alloc&) {
    return false;
  }
}

Outcome ServerSession::take(const Destination& to, Request& request) {
  if (copying_) return go_on_copying(to, request);
  const Turn found = this->turn();
  Turn turn = found;
  turn.flags &= static_cast<std::uint8_t>(~kAfterOthers);
  if (turn.size > kInlineBytes || (turn.flags & ~kFlags) != 0) return Outcome::broken;
  if (turn.kind == Kind::done) {
    untold_ = 0;
    refuse(EMFILE);
    return Outcome::would_block;
  }
  if (turn.kind != Kind::request && !claim_one_way(found)) return Outcome::would_block;
  begin(turn, request);
  int refusal = std::exchange(refuse_next_, 0);
  const Outcome outcome = take_data(turn, to, request, refusal);
  if (outcome == Outcome::ok && copying_ && nothing_left()) {
    copying_->request = request;
    return go_on_copying(to, request);
  }
  kept_.clear();
  if (outcome != Outcome::ok) return outcome;
  if (!nothing_left()) return Outcome::broken;  // all that comes before a request is for it
  if (refusal != 0) return answer_refused(refusal, to);
  tell_taken();
  if (request.wants_reply && !stays()) return Outcome::would_block;
  observe::note_received(received_, request.data.data(), request.data.size());
  if (!request.wants_reply) {
    answer(turn.number);
    exchanged();
  }
  return Outcome::ok;
}

// A client that finds this waits on. relaxed: of its exchange and this one only one succeeds.
bool ServerSession::detain(Turn now) noexcept {
  if (now.kind != Kind::leaving) return false;
  std::uint64_t word = now.pack();
  now.kind = Kind::request;
  return slot().turn.compare_exchange_strong(word, now.pack(), std::memory_order_relaxed) ||
         word == now.pack();
}

Outcome ServerSession::answer_refused(int error, const Destination& to) {
  close_later(caller.uid, std::move(to.descriptors));
  stuck_refusal_ = error;
  if (!stuck()) refuse(error);
  return Outcome::would_block;
}

void ServerSession::drop_and_refuse() noexcept {
  for (; stuck(); --stuck_) drop_next_set(socket());
  refuse(stuck_refusal_);
}

Outcome ServerSession::take_data(const Turn& turn, const Destination& to, Request& request,
                                 int& refusal) {
  std::uint64_t size = turn.size;
  if ((turn.flags & kTransfer) != 0) size = load_once<std::uint64_t>(slot().data);
  if ((turn.flags & kTransferComes) != 0) {
    const int error = accept_transfer(to.limits.request_bytes);
    if (error == EPROTO) return Outcome::broken;
    if (refusal == 0) refusal = error;
    transfer_.charge = bytes_charged(transfer_.capacity(), to.limits.bytes_per_user);
    if (!transfer_.charge && refusal == 0) refusal = E2BIG;
  }
  if ((turn.flags & kDescriptors) != 0 && stuck() && nothing_left()) {
    ++stuck_;  // they are behind the memory
  } else if ((turn.flags & kDescriptors) != 0) {
    const Outcome outcome = next_descriptors(to.descriptors);
    if (outcome == Outcome::too_big)
      refusal = EMFILE;
    else if (outcome != Outcome::ok)
      return outcome;
  }
  if (refusal != 0) return Outcome::ok;
  if ((turn.flags & kTransfer) == 0) {
    if (size > to.limits.request_bytes) {
      refusal = E2BIG;
      return Outcome::ok;
    }
    request.data = {to.inline_data, size};
    copy_memory(to.inline_data, slot().data, size);
    return Outcome::ok;
  }
  if (size > transfer_.capacity()) return Outcome::broken;
  refusal = begin_long(size, to);
  return Outcome::ok;
}

// Returns the errno that the request is to be refused with, before anything has been copied; or 0.
int ServerSession::begin_long(std::size_t size, const Destination& to) {
  if (size > to.limits.request_bytes) return E2BIG;
  if (const auto owner = endpoint->owner.lock())
    if (const int error = owner->admit(size, to.descriptors.size()); error != 0) return error;
  constexpr std::size_t kLong = std::size_t{4} << 20;  // a millisecond's work
  if (size >= kLong && to.observer != nullptr) to.observer->busy(*endpoint);
  auto begun = std::make_unique<Copying>(account);
  begun->into = to.large ? std::move(to.large) : std::make_unique<RequestBuffer>();
  std::byte* into =
      begun->into->reserve(size, bytes_charged(size, to.limits.bytes_per_user), caller.uid);
  if (into == nullptr) return E2BIG;
  begun->data = {into, size};
  copying_ = std::move(begun);
  return 0;
}

// Piece by piece, as long as nobody else waits who goes first.
Outcome ServerSession::go_on_copying(const Destination& to, Request& request) {
  constexpr std::size_t kPiece = std::size_t{128} << 10;
  Copying& copy = *copying_;
  if (to.descriptors.empty()) to.descriptors = std::move(copy.descriptors);
  request = copy.request;
  copying_now_.store(true, std::memory_order_relaxed);
  std::uint64_t since = ticks();
  bool read = true;
  while (read && copy.done < copy.data.size()) {
    if (request.wants_reply && gone.load(std::memory_order_relaxed)) return Outcome::peer_gone;
    const auto piece =
        copy.data.subspan(copy.done).first(std::min(kPiece, copy.data.size() - copy.done));
    read = transfer_.read(piece, copy.done);
    copy.done += piece.size();
    if (ticks() - since < kTicksPerTurn || copy.done == copy.data.size()) continue;
    if (to.others_first()) {
      copy.descriptors = std::move(to.descriptors);
      return Outcome::would_block;
    }
    since = ticks();
  }
  return end_copying(read, to, request);
}

Outcome ServerSession::end_copying(bool read, const Destination& to, Request& request) {
  const std::unique_ptr<Copying> copied = std::move(copying_);
  copying_now_.store(false, std::memory_order_relaxed);
  kept_.clear();
  request.data = copied->data;
  if (to.large) to.large->free();
  to.large = std::move(copied->into);
  if (!read) return answer_refused(EFAULT, to);
  tell_taken();
  if (request.wants_reply && !stays()) return Outcome::would_block;
  observe::note_received(received_, request.data.data(), request.data.size());
  if (!request.wants_reply) {
    answer(number_.load(std::memory_order_relaxed));
    exchanged();
  }
  return Outcome::ok;
}

// Whose memory is large, and perhaps nobody else's any more, takes long to be rid of.
void ServerSession::drop_transfer(bool read) noexcept {
  const std::size_t size = transfer_.capacity();
  if (size == 0) return;
  const Charge until_then = std::exchange(transfer_.charge, {});
  // Where this side has ended it, the client may still be reading the last reply. One of another
  // user could keep the pages for ever: it is told, and its call fails.
  const bool unwanted = own_user_ ? gone && !endpoint->closed : gone || read;
  if (gone && unwanted) control().discarded.store(1, std::memory_order_seq_cst);
  free_later(caller.uid, size, Dropped(std::exchange(transfer_, {}), unwanted));
}

void ServerSession::refuse(int error, bool handed_over) noexcept {
  drop_transfer(true);  // as the client does
  tell_taken();
  slot().extra = error;
  const auto flags = static_cast<std::uint8_t>(announced() ? kRefused | kTransferComes : kRefused);
  announce_ = false;
  answer(number_.load(std::memory_order_relaxed), handed_over ? kHandedOver : 0, flags);
}

bool ServerSession::reply(std::span<const std::byte> data, std::span<const int> descriptors,
                          std::int64_t status) {
  Turn turn{.number = number_.load(std::memory_order_relaxed), .kind = Kind::reply};
  const bool sends_memory = data.size() > std::max(kInlineBytes, transfer_.capacity());
  const std::size_t count = descriptors.size() + std::size_t{sends_memory};
  {
    const Sending sending(*this, !own_user_ && (count != 0 || announced() || may_have_untaken_));
    charge_for_sending(count);
    // Who calls takes one reply out of the socket before it can ask for another.
    prepare(
        {.extra = status, .data = data, .descriptors = descriptors, .deadline = Deadline::now()},
        turn);
    // What goes now the client is only about to take.
    if (sending_reply_ && transfer_.made_here() && transfer_.capacity() > TransferMemory::kMostKept)
      keep_until_taken(std::move(transfer_.charge));
  }
  give_turn(turn, control().server, control().client);
  observe::note_sent(sent_, data.data(), data.size());
  exchanged();
  return (turn.flags & kDescriptors) != 0;
}

Outcome ServerSession::await_taken(Deadline deadline) {
  const std::uint32_t number = number_.load(std::memory_order_relaxed);
  Turn answer;
  Outcome outcome = Outcome::interrupted;
  while (outcome == Outcome::interrupted) {
    outcome = waiter_.wait(control().server, control().client, deadline, [&] {
      answer = this->turn();
      return answer.kind == Kind::done || answer.number != number;
    });
  }
  if (outcome == Outcome::ok) forget_taken();
  // A client that already asks for something else has taken them.
  if (outcome != Outcome::ok || answer.number != number || answer.size == 0) return outcome;
  if (answer.size == EMFILE) throw SystemError(EMFILE, "the client has no room for descriptors");
  return Outcome::broken;
}

void ServerSession::set_terms(const Terms& terms) noexcept {
  for (std::size_t i = 0; i < terms.size(); ++i)
    control().terms.words[i].store(terms[i], std::memory_order_relaxed);
}

void ServerSession::hang_up() noexcept {
  Waiter::finish(control().server, control().client);
  ::shutdown(sockets_.theirs.get(), SHUT_RDWR);
  ::shutdown(sockets_.mine.get(), SHUT_RDWR);
}

void ServerSession::tell_gone() noexcept {
  gone.store(true, std::memory_order_relaxed);
  while (telling_.exchange(true, std::memory_order_acquire)) relax();
  asymmetric_fence_heavy();
  if (ClientDeathObserver* now = observer_.load(std::memory_order_acquire)) {
    now->client_gone(*endpoint);
    observer_.store(nullptr, std::memory_order_release);
  }
  telling_.store(false, std::memory_order_release);
}

}  // namespace farcall::call
