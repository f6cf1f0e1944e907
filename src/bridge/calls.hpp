// SPDX-License-Identifier: Apache-2.0
//
// Calls of this machine's programs on their way through the cluster: the importer's half.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bridge/budget.hpp"
#include "bridge/nats.hpp"
#include "bridge/peers.hpp"
#include "bridge/statistics.hpp"
#include "bridge/window.hpp"

namespace farcall::bridge {

// An imported name, as its calls see it.
struct Imported {
  Imported(const Name& imported, std::string full_subject, std::uint64_t memory)
      : name(imported), subject(std::move(full_subject)), in_pieces(memory) {}

  const Name name;
  const std::string subject;  // in the domain
  NamePiecesBudget in_pieces;
  Statistics statistics;
};

struct Answer {
  int error = 0;  // an errno; then there is no more
  int status = 0;
  Msg message;                    // of one piece
  std::vector<std::byte> pieces;  // else
  [[nodiscard]] std::span<const std::byte> data() const noexcept {
    return message ? message.data() : std::span<const std::byte>(pieces);
  }
};

// One call. It is published when it is started, and then once more at most where nothing can have
// been done about it, or its name is idempotent.
class OutgoingCall {
 public:
  OutgoingCall(Imported& to, const Header& about, std::uint64_t size)
      : to_(to), header_(about), size_(size) {}
  OutgoingCall(const OutgoingCall&) = delete;
  OutgoingCall& operator=(const OutgoingCall&) = delete;
  virtual ~OutgoingCall() = default;

 protected:
  // A part of the request, valid until the next one is asked for. Not asked for any more once the
  // call has finished or been given up. Nothing: the client has gone.
  virtual std::span<const std::byte> request(std::uint64_t offset, std::size_t size) = 0;
  // The first piece has been published, or could not be. Called with the call locked.
  virtual void published() noexcept {}
  // Called once, by whatever thread, unless the call is given up before. May take the answer.
  virtual void finished(Answer& answer) noexcept = 0;
  // Called instead of that where it has been given up.
  virtual void given_up() noexcept {}

 private:
  friend class Calls;

  Imported& to_;
  Header header_;
  const std::uint64_t size_;
  std::mutex lock_;  // protects what follows
  bool over_ = false;
  bool cancelled_ = false;  // by the client; an answer is still waited for
  std::uint64_t id_ = 0;
  unsigned attempts_ = 0;
  bool maybe_served_ = false;  // by an earlier attempt
  std::string session_;        // subject of the exporter's session; empty: not known yet
  std::uint64_t sent_ = 0;
  std::uint64_t credit_ = 0;
  Window window_;            // for pieces of the answer
  std::uint64_t total_ = 0;  // of the answer
  PiecesShare memory_;       // for it
  Clock::time_point travels_since_;
  Answer answer_;
  Clock::time_point began_;
  Clock::time_point last_activity_;  // the last sign of life
  Clock::time_point deadline_ = Clock::time_point::max();
};

class Calls {
 public:
  Calls(Connection& connection, const Config& config);

  // Publishes it. Where that fails it is finished with an error at once.
  void start(const std::shared_ptr<OutgoingCall>& call);
  // Nobody waits any more: the exporter is told, and finished() is not called from now on.
  void give_up(OutgoingCall& call);
  // The same, soon, by who calls give_up_abandoned() again and again. Neither waits for who has the
  // call.
  void give_up_soon(std::shared_ptr<OutgoingCall> call) noexcept;
  void give_up_abandoned();
  // The client wants no answer any more, but waits for one: EINTR comes within the bound.
  void cancel(OutgoingCall& call);
  // Published once; nobody answers. Returns 0 or an errno.
  int post(Imported& to, Header header, std::span<const std::byte> data);

  // A message to `inbox(word)`, where the word begins with 'c' or 'o'.
  void received(std::string_view word, Msg message);
  void denied(const std::string& subject);
  // A connection was lost, and with it perhaps what has been posted since a bound before its server
  // was last active.
  void lost();
  // All end: ECONNRESET.
  void end();
  // To be called often.
  void tick(Clock::time_point now);
  [[nodiscard]] bool empty() {
    const std::lock_guard guard(lock_);
    return calls_.empty();
  }

 private:
  using Lock = std::unique_lock<std::mutex>;

  void give_up(OutgoingCall& call, Lock& lock);
  void publish_first(const std::shared_ptr<OutgoingCall>& call, Lock& lock, bool may_wait);
  void publish_pieces(OutgoingCall& call, Lock& lock);
  void tell(const std::string& session, const Header& header);
  void finish(OutgoingCall& call, Lock& lock, int error);
  void no_answer(const std::shared_ptr<OutgoingCall>& call, Lock& lock, int error);
  void take_reply(const std::shared_ptr<OutgoingCall>& call, Lock& lock, const Header& header,
                  Msg message);
  void take_piece(OutgoingCall& call, Lock& lock, const Header& header, const Msg& message);
  [[nodiscard]] bool is_silent(const OutgoingCall& call, Clock::time_point now) const;
  void late(const Msg& message);
  [[nodiscard]] std::uint64_t new_id();
  void forget(std::uint64_t id);
  [[nodiscard]] std::string own_subject(std::uint64_t id) const;

  Connection& connection_;
  const Clock::duration bound_;
  const PeerSubjects peers_;
  Budget memory_;           // for answers in pieces and long one-way messages
  PiecesBudget in_pieces_;  // of it
  std::mutex lock_;  // protects what follows; taken while a call's lock is held, never before it
  Numbers numbers_;
  std::unordered_map<std::uint64_t, std::shared_ptr<OutgoingCall>> calls_;
  std::unordered_map<std::uint64_t, Imported*> posted_;  // to count what nobody listened to
  std::unordered_map<std::uint64_t, Clock::time_point> posted_at_;
  std::mutex abandoned_lock_;  // protects the next; nothing else is locked under it
  std::vector<std::shared_ptr<OutgoingCall>> abandoned_;
  std::atomic<bool> any_abandoned_{false};
};

}  // namespace farcall::bridge
