// SPDX-License-Identifier: Apache-2.0
//
// Calls that come from the cluster, for servers of this machine: the exporter's half.
#pragma once

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "bridge/budget.hpp"
#include "bridge/inside.hpp"
#include "bridge/local_server.hpp"
#include "bridge/nats.hpp"
#include "bridge/peers.hpp"
#include "bridge/reader.hpp"
#include "bridge/statistics.hpp"
#include "bridge/ticker.hpp"
#include "bridge/window.hpp"

namespace farcall::bridge {

class ExportedName;

// One call that has come.
struct Session {
  Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  ExportedName* owner = nullptr;
  std::uint64_t id = 0;
  std::string reply_to;  // the importer's subject of this call; empty: nobody waits
  std::string own;       // subject
  Header header;
  std::string strand;  // of whom: what has the same is served one after the other; empty: none
  Msg first;
  Clock::time_point began;
  Clock::time_point deadline = Clock::time_point::max();
  std::atomic<bool> cancelled{false};
  std::atomic<bool> timed_out{false};  // then that, too
  std::atomic<bool> ended{false};      // likewise, where it is this bridge that gives it up

  bool at_head = true;  // of its strand; protected by the owner's lock, as is the next
  bool begun = false;   // somebody serves it, or will

  std::mutex lock;                 // protects what follows
  Budget::Share place;             // of what its name may have waiting
  Budget::Share memory;            // of that of all names
  PiecesShare pieces;              // what travels so
  Worker* worker = nullptr;        // that is in the local call
  std::vector<std::byte> request;  // of several pieces
  bool assembling = false;
  Window window;
  std::vector<std::byte> answer;  // of several pieces, on its way
  std::uint64_t sent = 0;
  std::uint64_t credit = 0;
  bool answering = false;
  Clock::time_point last_activity;  // the importer's last good word, while pieces travel
  Clock::time_point travels_since;  // they do
  Clock::time_point next_alive;     // sign of life
  Clock::duration alive_every;

  // What it ends with where the local call has been interrupted, or is not begun any more.
  [[nodiscard]] int why_cancelled() const noexcept {
    if (timed_out) return ETIMEDOUT;
    return ended ? ECONNRESET : EINTR;
  }
  [[nodiscard]] std::span<const std::byte> data() const noexcept {
    return request.empty() ? first.data() : std::span<const std::byte>(request);
  }
};

// The sessions of all exported names, by number.
class Sessions {
 public:
  Sessions(Connection& connection, const Config& config);

  // A new one, with a number and a subject. Never fails but by std::bad_alloc.
  std::shared_ptr<Session> add(ExportedName& owner, Msg message, const Header& header,
                               bool answers);
  void remove(const Session& session);
  [[nodiscard]] bool may_answer(std::string_view subject) const noexcept {
    return peers_.may_answer(subject);
  }
  // What calls hold: what came, until the session goes, and what travels in pieces.
  [[nodiscard]] Budget& memory() noexcept { return memory_; }
  // So many bytes are to travel in pieces. False: others hold too much. With the session locked, or
  // nobody else's yet.
  [[nodiscard]] bool hold_pieces(Session& session, std::uint64_t bytes) noexcept;

  // The answer. One of several pieces goes on by itself.
  void answer(const std::shared_ptr<Session>& session, const LocalAnswer& answer);
  void grant(Session& session, std::uint64_t pieces);

  // A message to `inbox(word)`, where the word begins with 's'. Returns a session whose request has
  // become whole.
  std::shared_ptr<Session> received(std::string_view word, const Msg& message);
  void tick(Clock::time_point now);
  // Their local calls end, and those who wait for them hear ECONNRESET.
  void cancel_all();
  // Nobody has to do with any of them any more.
  void clear() {
    const std::lock_guard guard(lock_);
    all_.clear();
  }
  [[nodiscard]] bool empty() {
    const std::lock_guard guard(lock_);
    return all_.empty();
  }
  [[nodiscard]] Connection& connection() noexcept { return connection_; }

 private:
  enum class Piece { wanted, last, wrong };
  Piece take_piece(Session& session, const Msg& message, const Header& header);
  [[nodiscard]] int why_to_drop(const Session& session, Clock::time_point now) const;
  void cancel(Session& session);
  bool hold_answer(Session& session, std::span<const std::byte> data);
  void send_pieces(Session& session);
  void drop(const std::shared_ptr<Session>& session, int error);

  Connection& connection_;
  const Clock::duration bound_;
  const PeerSubjects peers_;
  Budget memory_;
  PiecesBudget in_pieces_;  // of it
  std::mutex lock_;         // protects what follows; never taken before a session's
  Numbers numbers_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Session>> all_;
};

// An exported name: its subscription, its server, and the threads that serve what takes longer than
// the reader has time for.
class ExportedName {
 public:
  ExportedName(const Name& name, Sessions& sessions, Ticker& ticker, unsigned workers);
  ~ExportedName();
  ExportedName(const ExportedName&) = delete;
  ExportedName& operator=(const ExportedName&) = delete;

  // Subscribes where there is a local server, and leaves the calls to others where there is none.
  // Called now and then. Throws BridgeError.
  void look_for_server();
  // Whether somebody serves it here. May take a second, where the server says nothing.
  bool has_server();
  // What came while it was only tried whether it may listen, and is to be served.
  void take_early(Msg message);
  // What has come of its calls, some of it: served at once where that is quick. By the leader of
  // `reader`; as its Handle. `taken` counts.
  bool take(Reader& reader, Worker& worker, std::uint64_t& taken);
  // A session whose request has come whole.
  void serve_soon(const std::shared_ptr<Session>& session);
  // Those that wait to be served and that nobody waits for any more are not served.
  void withdraw_cancelled();
  // One whose request will never be whole.
  void pass_over(const std::shared_ptr<Session>& session);
  void stop_listening();
  // Its threads end.
  void join();
  // Whether nothing comes any more; what still has come is served. After stop_listening(), again
  // and again.
  bool forget_drained();
  [[nodiscard]] bool serves() const noexcept { return serves_; }
  [[nodiscard]] Budget& in_pieces() noexcept { return in_pieces_; }

  const Name name;
  Statistics statistics;

 private:
  void run();
  std::shared_ptr<Session> admit(Msg message);
  static bool begin_assembling(Session& session);
  std::shared_ptr<Session> refuse(const std::shared_ptr<Session>& session, int error);
  void serve(Worker& worker, std::shared_ptr<Session> session);
  [[nodiscard]] bool wants_other(const Worker& worker, const Header& header) const noexcept;
  void perform(Worker& worker, const std::shared_ptr<Session>& session);
  LocalAnswer ask_server(Worker& worker, const Session& session);
  std::shared_ptr<Session> next_of_strand(const Session& session);
  void make_ready(const std::shared_ptr<Session>& session);
  void make_next_ready(const Session& session);
  bool enter_strand(const std::shared_ptr<Session>& session);
  void add_thread();
  Msg next(std::int64_t wait_ms, bool* more = nullptr);

  Sessions& sessions_;
  // Half of the memory of all: a server that hangs leaves some for the callers of others.
  Budget waiting_;
  NamePiecesBudget in_pieces_;
  Ticker& ticker_;
  const unsigned most_workers_;
  const std::unique_ptr<LocalServer> local_;
  std::atomic<bool> serves_{false};
  std::atomic<bool> stop_{false};
  std::atomic<std::int64_t> usual_ns_{0};  // of a local call, lately
  std::atomic<unsigned> taking_{0};       // what has been taken from libnats, and is no session yet
  std::atomic<bool> with_leader_{false};  // a leader serves, or one who was it

  std::uint64_t subscribed_on_ = 0;  // link of the connection
  Clock::time_point ask_again_;      // for a server, not before
  std::mutex subscription_lock_;     // protects the next
  std::shared_ptr<natsSubscription> subscription_;

  std::mutex lock_;  // protects what follows
  std::condition_variable changed_;
  unsigned idle_ = 0;  // threads that wait for something to do
  std::deque<std::shared_ptr<Session>> ready_;
  std::unordered_map<std::string, std::deque<std::shared_ptr<Session>>> strands_;
  std::list<std::thread> threads_;
};

}  // namespace farcall::bridge
