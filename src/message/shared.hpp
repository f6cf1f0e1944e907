// SPDX-License-Identifier: Apache-2.0
//
// Messages over shared memory: a channel is a port, a connection an endpoint of it, so that
// messages come with the connection that they came through. A pulse is a packet in a socket of its
// connection, which the threads that receive listen to beside the sessions of the clients.
//
//   send     Client::call ── session ──> Port ── receive: a copy of the message, and a PendingReply
//   pulse    socket ───────────────────> Link ── queue of the channel, by priority
//
// What a message says beside its data:
//   word      bytes of room for the reply
//   origin    bits 0..21 the sender's thread, 22..23 the number of its message, modulo 4
// and a reply, in its status:
//   bits 0..31 the status, or the errno of kFailed; kPieces: see pieces.hpp
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>

#include "farcall/call.hpp"
#include "farcall/error.hpp"
#include "message/engine.hpp"
#include "message/names.hpp"
#include "message/pending_reply.hpp"
#include "message/pieces.hpp"
#include "message/priority.hpp"
#include "message/pulse_sender.hpp"
#include "message/reading_lock.hpp"
#include "process/ledger.hpp"
#include "process/process_mutex.hpp"
#include "process/reactor.hpp"

namespace farcall::message {

class SharedChannel;
struct Pulse;
struct Receiver;

inline constexpr std::int64_t kFailed = std::int64_t{1} << 32;
inline constexpr std::int64_t kPieces = std::int64_t{1} << 33;
inline constexpr unsigned kThreadBits = 22;  // the kernel's highest thread id is 2^22
inline constexpr std::uint32_t kThreadMask = (std::uint32_t{1} << kThreadBits) - 1;

// How many of one user wait in a channel that are as urgent as the next or more, so that others
// need not wait behind them; more lie in sockets.
inline constexpr std::size_t kMostPulses = 64;
// How many of one user in all, where messages are to come behind those that lie in sockets.
inline constexpr std::size_t kMostPulsesAhead = 4096;
inline constexpr std::size_t kMostPulseSockets = 64;

// The name of a connection's socket, by which it is known for one, and its channel's flags.
inline constexpr std::string_view kConnectionPrefix = "farcall/message-connection/";

// A connection, seen from its channel.
class Link final : public EndpointOwner, public std::enable_shared_from_this<Link> {
 public:
  Link(std::weak_ptr<SharedChannel> channel, std::int64_t its_number, uid_t its_user,
       process::Charge held)
      : number(its_number), user(its_user), charge(std::move(held)), channel_(std::move(channel)) {}
  std::uint8_t bounded(std::uint8_t claimed, const Credentials& caller,
                       std::uint32_t origin) noexcept override {
    return bounded_priority(claimed, caller, static_cast<pid_t>(origin & kThreadMask));
  }
  bool take_sent_before(const Credentials& sender) noexcept override;
  void branch_closed(std::uint64_t cookie) noexcept override;
  bool received(std::uint8_t purpose, ReceivedFds& descriptors,
                const Credentials& sender) noexcept override;
  class Pulses;
  // One of the sockets for its pulses has ended: if it is the last, and nobody has the connection
  // any more, so has the connection.
  void finish() noexcept;
  // Stops listening.
  void end() noexcept;
  // Whether that is a thread of its client, as far as can be told from here; remembers the answer.
  bool is_thread(pid_t thread, pid_t process) noexcept;
  // As the function of that name, and remembers the last answer for a moment.
  std::uint8_t bounded_priority(std::uint8_t claimed, const Credentials& sender,
                                pid_t thread) noexcept;

  const std::int64_t number;
  const uid_t user;
  process::Charge charge;
  std::shared_ptr<Endpoint> endpoint;  // set before anybody else knows of it

 private:
  void let_in(SharedChannel& channel, process::PrivateMapping& page, int answers,
              const Credentials& sender);
  void take_once(SharedChannel& channel, PulsePage& page, const Credentials& sender) noexcept;
  // As it is to be believed of that sender.
  Pulse pulse_of(const PulsePacket& packet, const Credentials& sender) noexcept;
  void forget_ended();
  std::vector<std::shared_ptr<Pulses>> sockets();

  const std::weak_ptr<SharedChannel> channel_;
  std::mutex lock_;  // protects what follows
  std::vector<std::shared_ptr<Pulses>> sockets_;
  bool closing_ = false;  // nobody has it any more
  bool ended_ = false;
  std::atomic<std::uint64_t> known_thread_{0};
  std::atomic<std::uint64_t> known_claim_{0};  // process, thread (22 bits each), claimed, answer
  std::atomic<std::int64_t> known_until_{0};
};

struct Pulse {
  int code;
  std::int64_t value;
  int priority;
  std::shared_ptr<Link> link;   // null: this process's own
  std::optional<uid_t> user{};  // among whose pulses it counts; none: this process's own
  Credentials sender{.pid = 0, .uid = kNoUser, .gid = kNoUser};  // none: the channel's own
  pid_t thread = 0;
  process::Charge ended{};  // of a connection that has ended: held until this is received
};

// A client of a channel in shared memory.
class SharedPendingReply final : public PendingReply {
 public:
  explicit SharedPendingReply(SharedChannel& of) : channel(of) {}
  void reply(int status, int error, Buffers data, bool coming_back) override;
  std::size_t read(std::size_t offset, Buffers to) override;
  std::size_t write(std::size_t offset, Buffers from) override;
  [[nodiscard]] bool is_of(const Channel& that) const noexcept override;
  void done() noexcept override;
  // The thread that has received it has its own priority again.
  void give_back() noexcept {
    if (lent) [[unlikely]]
      std::exchange(lent, nullptr)->give_back();
  }

  SharedChannel& channel;
  Incoming incoming;
  std::size_t room = 0;
  const Receiver* received_by = nullptr;
  std::shared_ptr<Lent> lent;
  // Which message it is, for unblocking: the connection's number, the origin, and the request's
  // number. Written (release) while it has no id: who reads (acquire) what belongs to the next
  // message sees the id gone, too.
  std::atomic<std::int64_t> connection{0};
  std::atomic<std::uint32_t> origin{0};
  std::atomic<std::uint32_t> number{0};
  std::atomic<std::int64_t> unblocking{0};  // the id of which the channel has been told that
  // Likewise, whose it is.
  std::atomic<pid_t> process{0};
  std::atomic<uid_t> user{0};
  std::atomic<std::uint8_t> priority{0};

 private:
  std::vector<Written> written_;  // in the order of the writes
};

// What one thread needs to receive from a channel, or to answer there.
struct Receiver {
  Receiver(Port& port, pid_t thread_id, WaitMode mode) : thread(port, mode), id(thread_id) {}
  // Held while the thread is at work here; else others may let its session go. seq_cst, as the
  // mutex is, also in the count of those that receive: one of two threads sees the other.
  bool hold() noexcept { return !alone_.load(std::memory_order_acquire) && held_.try_lock(); }
  // For its own thread, which is not alone.
  void wait_and_hold() noexcept { held_.lock(); }
  void let_go() noexcept { held_.unlock(); }
  // For its own thread, as long as no other has to do with the channel's messages. Who looks
  // whether it is alone has passed the heavy fence after `crowded` was set, and from then on
  // everybody holds what they use. Its own thread has a light one between saying so and its next
  // look at what others say.
  void be_alone(bool yes) noexcept {
    alone_.store(yes, std::memory_order_release);
    asymmetric_fence_light();
  }
  // Written by one thread at a time.
  struct Counts {
    void add(const Counts& other) noexcept {
      add(messages, other.messages.load(std::memory_order_relaxed));
      add(replies, other.replies.load(std::memory_order_relaxed));
      add(pulses, other.pulses.load(std::memory_order_relaxed));
    }
    static void add(std::atomic<std::uint64_t>& to, std::uint64_t more) noexcept {
      to.store(to.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
    }

    std::atomic<std::uint64_t> messages{0};
    std::atomic<std::uint64_t> pulses{0};
    std::atomic<std::uint64_t> replies{0};
  };
  static void count(std::atomic<std::uint64_t>& own) noexcept { Counts::add(own, 1); }

  ServerThread thread;
  const pid_t id;
  SharedPendingReply* spare = nullptr;  // its own thread's
  // Whose message it received last. As long as it holds the connection, nobody else has that
  // endpoint.
  const Endpoint* last_endpoint = nullptr;
  std::shared_ptr<Link> last_link;
  std::atomic<bool> waiting{false};  // RECEIVE-blocked
  Counts counts;

 private:
  process::ProcessMutex held_;
  std::atomic<bool> alone_{false};
};

class SharedChannel final : public Channel, public std::enable_shared_from_this<SharedChannel> {
 public:
  SharedChannel(unsigned flags, mode_t mode);
  ~SharedChannel() override;
  [[nodiscard]] uid_t owner() const noexcept { return permissions_.owner; }
  // Others may find it by name from now on. Throws SystemError.
  void attach(const std::string& full_name);

  std::int64_t receive(Buffers into, Deadline deadline, farcall_info* info,
                       SignalCount since) override;
  int descriptor() override;
  UniqueFd connect() override;
  void post(int priority, int code, std::int64_t value) override;
  void close() noexcept override;

  const std::uint64_t serial;  // no other channel of this process ever had it
  [[nodiscard]] unsigned flags() const noexcept { return flags_; }
  Port& port() noexcept { return port_; }
  UniqueFd connect(uid_t user);
  void queue(Pulse pulse) noexcept;
  // Whether one more pulse of that user and priority may wait; else `waiting`, if any, is resumed
  // when one may. `ahead`: it has to be there before a message is.
  bool has_room(uid_t user, int priority, std::weak_ptr<Link::Pulses> waiting,
                bool ahead = false) noexcept;
  // False: it has no message of that client; `sender`: of the packet that asks.
  bool unblock(const Link& link, UnblockRequest request, const Credentials& sender) noexcept;
  void disconnected(const std::shared_ptr<Link>& link) noexcept;
  // The calling thread's, which uses the id of `answering`, if any. Made when first asked for.
  Receiver& receiver(SharedPendingReply* answering = nullptr);
  void forget(Receiver& receiver) noexcept;
  // Returns false where the client has gone.
  bool answer(SharedPendingReply& pending, std::span<const std::byte> data, std::int64_t status,
              bool coming_back);
  void give_back(SharedPendingReply& pending) noexcept;
  // One line for each thread that waits here, and the counters.
  [[nodiscard]] std::string status() const;

 private:
  class Listener;
  class AtWork;

  SharedPendingReply& pending_for(Receiver& receiver);
  bool take_pulse(uid_t user, farcall_info* info);
  // One of that user's, the most urgent or the least; none where it has none.
  std::optional<Pulse> take_pulse_of(uid_t user, bool last) noexcept;
  void pulse_taken(uid_t user) noexcept;
  std::shared_ptr<Link::Pulses> next_paused(uid_t user) noexcept;
  std::int64_t take_message(Receiver& self, SharedPendingReply& pending, Buffers into,
                            farcall_info* info);
  void release_sessions_of_others(const Receiver* self) noexcept;
  // From now on no thread works alone, nor keeps a session when it has answered.
  void give_up_sessions() noexcept;
  [[nodiscard]] bool others_wait() const noexcept;

  const unsigned flags_;
  const Permissions permissions_;  // of who has made it
  Port port_;
  std::string full_name_;
  std::vector<std::shared_ptr<Listener>> listeners_;
  std::atomic<std::int64_t> next_link_{1};
  std::shared_ptr<Endpoint> notices_;
  std::atomic<int> receiving_{0};
  std::atomic<std::size_t> receiver_count_{0};
  std::atomic<bool> waited_for_{false};       // by who is told only of sessions that are given back
  std::atomic<bool> crowded_{false};          // has, or had, several receivers, or is polled
  std::atomic<bool> alone_receiving_{false};  // somebody who is not counted in receiving_

  mutable std::mutex lock_;  // protects what follows
  std::unordered_map<std::int64_t, std::shared_ptr<Link>> links_;
  std::vector<std::unique_ptr<Receiver>> receivers_;
  Receiver::Counts of_ended_;  // of receivers that have been forgotten
  std::deque<std::unique_ptr<SharedPendingReply>> all_pending_;
  std::vector<SharedPendingReply*> free_pending_;

  mutable std::mutex pulses_lock_;  // protects what follows
  struct OfUser {
    std::multimap<int, Pulse> pulses;  // by falling priority
    std::size_t queued = 0;            // of those that count
    // Until there is room; by the falling priority of what they hold, and of equals in turn.
    std::multimap<int, std::weak_ptr<Link::Pulses>> paused;
    // Whether more than so many that count are at least as urgent; the map's key.
    [[nodiscard]] bool has_more_than(std::size_t many, int key) const noexcept;
    [[nodiscard]] bool unused() const noexcept {
      return pulses.empty() && queued == 0 && paused.empty();
    }
  };
  std::unordered_map<uid_t, OfUser> pulses_of_;
};

class SharedConnection final : public Connection {
 public:
  // The name is for who looks at its traffic.
  SharedConnection(UniqueFd branch, unsigned flags, std::string_view full_name = {});
  ~SharedConnection() override;
  int send(Sending& sending, Deadline deadline) override;
  int pulse(int priority, int code, std::int64_t value) override;
  void watch_death(const std::shared_ptr<Channel>& channel, std::int64_t value) override;
  int descriptor() override { return branch_.get(); }
  void close() noexcept override;

 private:
  class Death;
  class UnblockPolicy;

  void leave_parents() noexcept;
  void check_open() const;  // for who holds the lock
  // 0 or an errno.
  int send_packet(const PulsePacket& packet);
  // For who reads, with what is used already; none: a sender is to be made before.
  std::optional<int> send_as_before(const PulsePacket& packet);
  bool make_sender(const PulsePacket& first);
  void replace_sender(PulseSender* old, PulseSender* fresh) noexcept;
  void forget_replaced() noexcept;
  int finish(Sending& sending, CallResults& results, std::span<std::byte> scratch);

  UniqueFd branch_;
  const call::Maker maker_;
  bool given_up_ = false;  // by close(); the last who has the connection looks
  const unsigned flags_;
  Client client_;
  // A handler that sends a pulse may have interrupted a thread that reads. So who reads may also
  // replace the sender, with signals held back; the one before is destroyed by who writes.
  ReadingLock lock_;                // protects what follows
  process::ProcessMutex changing_;  // and senders, among those who read
  std::atomic<PulseSender*> pulses_{nullptr};
  std::atomic<PulseSender*> replaced_{nullptr};  // and all before
  std::shared_ptr<Death> death_;
  std::uint64_t own_generation_ = process::generation();  // of that one

  // How many pulses were sent, and of those how many a message has followed that was answered: all
  // messages between have the server look for pulses first.
  std::atomic<std::uint32_t> pulsed_{0};
  std::atomic<std::uint32_t> followed_{0};
};

// FARCALL_WAIT: how threads wait, as for doors.
WaitMode wait_mode();
// Sends the state of the channel to whoever asks at `socket`, as a file in memory.
void tell_status(int socket, const SharedChannel& channel) noexcept;
// Asks the channel of that full name. Throws SystemError.
std::string ask_status(const std::string& full_name);

}  // namespace farcall::message
