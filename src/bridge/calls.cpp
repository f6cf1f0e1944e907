// SPDX-License-Identifier: Apache-2.0
#include "bridge/calls.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <new>

namespace farcall::bridge {
namespace {

constexpr unsigned kRefusals = 8;  // so often another exporter is asked

std::chrono::nanoseconds seconds(double value) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(value));
}

// Behind it may stand what the request was about.
std::uint64_t number_in(std::string_view word) noexcept {
  std::uint64_t number = 0;
  const char* const behind = word.data() + word.size();
  const auto [end, error] = std::from_chars(word.data() + 1, behind, number, 16);
  return error == std::errc() && (end == behind || *end == ';') ? number : 0;
}

// A one-way message of several pieces: it is answered when it has been received.
class LongPost final : public OutgoingCall {
 public:
  LongPost(Imported& to, const Header& about, std::span<const std::byte> data, PiecesShare&& memory)
      : OutgoingCall(to, about, data.size()),
        statistics_(to.statistics),
        held_(std::move(memory)),
        data_(data.begin(), data.end()) {}

 protected:
  std::span<const std::byte> request(std::uint64_t offset, std::size_t size) override {
    return std::span<const std::byte>(data_).subspan(offset, size);
  }
  void finished(Answer& answer) noexcept override { statistics_.lost(answer.error); }

 private:
  Statistics& statistics_;
  const PiecesShare held_;
  const std::vector<std::byte> data_;
};

}  // namespace

Calls::Calls(Connection& connection, const Config& config)
    : connection_(connection),
      bound_(std::chrono::duration_cast<Clock::duration>(seconds(config.death_bound_s))),
      peers_(config, connection),
      memory_(config.memory_mib << 20),
      in_pieces_(memory_.most()) {}

std::string Calls::own_subject(std::uint64_t id) const {
  return connection_.inbox(fmt::format("c{:x}", id));
}

void Calls::start(const std::shared_ptr<OutgoingCall>& call) {
  Lock lock(call->lock_);
  call->began_ = Clock::now();
  const double seconds_left = call->to_.name.deadline_s;
  if (seconds_left > 0) {
    call->deadline_ =
        call->began_ + std::chrono::duration_cast<Clock::duration>(seconds(seconds_left));
    call->header_.deadline_ms = static_cast<std::uint64_t>(seconds_left * 1000);
  }
  ++call->to_.statistics.calls;
  ++call->to_.statistics.in_progress;
  publish_first(call, lock, true);
}

// Who knows the subject of a call can answer it. With the lock held.
std::uint64_t Calls::new_id() {
  for (;;)
    if (const std::uint64_t id = numbers_.next(); !calls_.contains(id) && !posted_.contains(id))
      return id;
}

// Under a new number, so that nobody takes a late answer to an earlier attempt for this one's.
void Calls::publish_first(const std::shared_ptr<OutgoingCall>& call, Lock& lock, bool may_wait) {
  OutgoingCall& it = *call;
  ++it.attempts_;
  it.last_activity_ = Clock::now();
  it.session_.clear();
  it.credit_ = it.total_ = 0;
  it.window_ = {};
  it.answer_ = {};
  it.memory_.give_back();
  {
    const std::lock_guard guard(lock_);
    it.id_ = new_id();
    calls_.emplace(it.id_, call);
  }
  const std::size_t whole = connection_.whole();
  const auto first = static_cast<std::size_t>(
      it.size_ <= whole ? it.size_ : std::min<std::uint64_t>(kPieceBytes, whole));
  const std::span<const std::byte> data = it.request(0, first);
  if (data.size() != first) return finish(it, lock, EINTR);
  it.sent_ = first;
  Header header = it.header_;
  header.total = it.size_;
  header.bound_ms = static_cast<std::uint64_t>(
      std::max<std::int64_t>(1, std::chrono::floor<std::chrono::milliseconds>(bound_).count()));
  if (it.deadline_ != Clock::time_point::max())
    header.deadline_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(
        1, std::chrono::duration_cast<std::chrono::milliseconds>(it.deadline_ - it.last_activity_)
               .count()));
  const std::string reply = own_subject(it.id_) + ";" + encode(header);
  int error = connection_.publish(it.to_.subject, &reply, nullptr, data,
                                  may_wait ? it.deadline_ : Connection::kAtOnce);
  it.published();
  if (error == ENETDOWN && Clock::now() >= it.deadline_) error = ETIMEDOUT;
  if (error != 0) return finish(it, lock, error);
  // It may have waited for the cluster, or for room. What a silent one takes is no sign of life.
  it.last_activity_ = std::max(it.last_activity_, connection_.last_activity());
}

void Calls::publish_pieces(OutgoingCall& call, Lock& lock) {
  const std::size_t piece = std::min<std::size_t>(kPieceBytes, connection_.longest());
  while (call.credit_ > 0 && call.sent_ < call.size_) {
    const auto size =
        static_cast<std::size_t>(std::min<std::uint64_t>(piece, call.size_ - call.sent_));
    const std::span<const std::byte> data = call.request(call.sent_, size);
    if (data.size() != size) return finish(call, lock, EINTR);
    Header header{.kind = Kind::data};
    header.offset = call.sent_;
    if (const int error = connection_.publish(call.session_, nullptr, &header, data); error != 0)
      return finish(call, lock, error == ENETDOWN ? ECONNRESET : error);
    call.sent_ += size;
    --call.credit_;
  }
}

void Calls::tell(const std::string& session, const Header& header) {
  (void)connection_.publish(session, nullptr, &header, {});
}

void Calls::forget(std::uint64_t id) {
  const std::lock_guard guard(lock_);
  calls_.erase(id);
}

void Calls::finish(OutgoingCall& call, Lock& lock, int error) {
  if (call.over_) return;
  call.over_ = true;
  // What is true of the last attempt is not of the earlier ones.
  if (call.maybe_served_ && (error == ENETDOWN || error == ECONNREFUSED)) error = ECONNRESET;
  // It may be this that keeps the call.
  std::shared_ptr<OutgoingCall> keep;
  {
    const std::lock_guard guard(lock_);
    if (const auto found = calls_.find(call.id_); found != calls_.end()) {
      keep = std::move(found->second);
      calls_.erase(found);
    }
  }
  Statistics& statistics = call.to_.statistics;
  --statistics.in_progress;
  if (error != 0) {
    call.answer_.error = error;
    statistics.failed(error);
  } else {
    ++statistics.answered;
    statistics.latencies.add(Clock::now() - call.began_);
  }
  Answer answer = std::move(call.answer_);
  lock.unlock();
  call.finished(answer);
}

void Calls::give_up(OutgoingCall& call) {
  Lock lock(call.lock_);
  give_up(call, lock);
}

void Calls::give_up(OutgoingCall& call, Lock& lock) {
  if (call.over_) return;
  call.over_ = true;
  --call.to_.statistics.in_progress;
  ++call.to_.statistics.cancelled;
  std::shared_ptr<OutgoingCall> keep;
  {
    const std::lock_guard guard(lock_);
    if (const auto found = calls_.find(call.id_); found != calls_.end()) {
      keep = std::move(found->second);
      calls_.erase(found);
    }
  }
  if (!call.session_.empty()) tell(call.session_, {.kind = Kind::cancel});
  lock.unlock();
  call.given_up();
}

void Calls::give_up_soon(std::shared_ptr<OutgoingCall> call) noexcept {
  const std::lock_guard guard(abandoned_lock_);
  abandoned_.push_back(std::move(call));
  any_abandoned_ = true;
}

void Calls::give_up_abandoned() {
  if (!any_abandoned_.exchange(false)) return;
  std::vector<std::shared_ptr<OutgoingCall>> all;
  {
    const std::lock_guard guard(abandoned_lock_);
    all.swap(abandoned_);
  }
  std::erase_if(all, [this](const auto& call) {
    Lock lock(call->lock_, std::try_to_lock);
    if (!lock) return false;
    give_up(*call, lock);
    return true;
  });
  if (all.empty()) return;
  // Who has them may wait for the cluster; and who calls this looks after all the others.
  const std::lock_guard guard(abandoned_lock_);
  abandoned_.insert(abandoned_.end(), all.begin(), all.end());
  any_abandoned_ = true;
}

void Calls::cancel(OutgoingCall& call) {
  const Lock lock(call.lock_);
  if (call.over_ || call.cancelled_) return;
  call.cancelled_ = true;
  ++call.to_.statistics.cancelled;
  // Now it is the bound for the answer; signs of life do not count any more.
  call.deadline_ = std::min(call.deadline_, Clock::now() + bound_);
  if (!call.session_.empty()) tell(call.session_, {.kind = Kind::cancel});
}

int Calls::post(Imported& to, Header header, std::span<const std::byte> data) {
  if (data.size() > connection_.whole()) {
    PiecesShare memory;
    if (!memory.take(to.in_pieces, in_pieces_, memory_, data.size())) return ENOBUFS;
    start(std::make_shared<LongPost>(to, header, data, std::move(memory)));
    return 0;
  }
  header.total = data.size();
  std::uint64_t id = 0;
  {
    const std::lock_guard guard(lock_);
    id = new_id();
    posted_.emplace(id, &to);
    posted_at_.emplace(id, Clock::now());
  }
  const std::string reply = connection_.inbox(fmt::format("o{:x}", id));
  const int error =
      connection_.publish(to.subject, &reply, &header, data, Clock::time_point::max());
  if (error != 0) {
    const std::lock_guard guard(lock_);
    posted_.erase(id);
    posted_at_.erase(id);
  }
  return error;
}

void Calls::lost() {
  const std::lock_guard guard(lock_);
  for (const auto& [id, to] : posted_) ++to->statistics.uncertain;
  posted_.clear();
  posted_at_.clear();
}

void Calls::received(std::string_view word, Msg message) {
  const std::uint64_t id = number_in(word);
  std::shared_ptr<OutgoingCall> call;
  {
    const std::lock_guard guard(lock_);
    if (word.front() == 'o') {
      const auto posted = posted_.find(id);
      if (posted == posted_.end()) return;
      const std::optional<Header> header = message.header();
      if (message.is_no_responders() || (header && header->not_taken))
        ++posted->second->statistics.undelivered;
      posted_.erase(posted);
      posted_at_.erase(id);
      return;
    }
    if (const auto found = calls_.find(id); found != calls_.end()) call = found->second;
  }
  if (!call) return late(message);
  Lock lock(call->lock_);
  if (call->over_ || call->id_ != id) return;
  if (message.is_no_responders()) return finish(*call, lock, ECONNREFUSED);
  call->last_activity_ = Clock::now();
  if (!message.has_header()) {  // a whole answer
    call->answer_.message = std::move(message);
    return finish(*call, lock, 0);
  }
  const std::optional<Header> header = message.header();
  if (!header) {
    ++call->to_.statistics.malformed;
    return finish(*call, lock, EPROTO);
  }
  if (!message.reply().empty() && call->session_.empty()) {
    if (!peers_.may_answer(message.reply())) {
      ++call->to_.statistics.malformed;
      return finish(*call, lock, EPROTO);
    }
    call->session_ = message.reply();
    if (call->cancelled_) tell(call->session_, {.kind = Kind::cancel});
  }
  switch (header->kind) {
    case Kind::alive: break;
    case Kind::credit:
      call->credit_ = std::min(call->credit_ + header->credit, kWindow);
      if (!call->session_.empty()) publish_pieces(*call, lock);
      break;
    case Kind::reply: take_reply(call, lock, *header, std::move(message)); break;
    case Kind::data: take_piece(*call, lock, *header, message); break;
    default: ++call->to_.statistics.malformed;
  }
}

// Of a call that is over here, whatever has become of it: who still serves it is told.
void Calls::late(const Msg& message) {
  if (peers_.may_answer(message.reply()))
    tell(std::string(message.reply()), {.kind = Kind::cancel});
}

void Calls::take_reply(const std::shared_ptr<OutgoingCall>& call, Lock& lock, const Header& header,
                       Msg message) {
  if (header.not_taken && call->attempts_ < kRefusals && !call->cancelled_) {
    ++call->to_.statistics.resent;
    forget(call->id_);
    return publish_first(call, lock, false);
  }
  // Whoever has given up there, it was nobody here: a client takes EINTR for its own signal, and
  // may call again.
  if (header.error == EINTR && !call->cancelled_) return finish(*call, lock, ECONNRESET);
  if (header.error != 0) return finish(*call, lock, header.error);
  call->answer_.status = header.status;
  const std::span<const std::byte> data = message.data();
  if (header.total <= data.size()) {
    call->answer_.message = std::move(message);
    return finish(*call, lock, 0);
  }
  if (header.total > kLongest || call->total_ != 0 || call->session_.empty()) {
    ++call->to_.statistics.malformed;
    return finish(*call, lock, EPROTO);
  }
  const auto no_room = [&] {
    tell(call->session_, {.kind = Kind::cancel});
    finish(*call, lock, ENOBUFS);
  };
  if (!call->memory_.take(call->to_.in_pieces, in_pieces_, memory_, header.total)) return no_room();
  try {
    call->answer_.pieces.reserve(header.total);
  } catch (const std::bad_alloc&) {
    return no_room();
  }
  call->total_ = header.total;
  call->travels_since_ = call->last_activity_;
  call->answer_.pieces.assign(data.begin(), data.end());
  tell(call->session_, {.kind = Kind::credit, .credit = call->window_.open()});
}

void Calls::take_piece(OutgoingCall& call, Lock& lock, const Header& header, const Msg& message) {
  const std::span<const std::byte> data = message.data();
  std::vector<std::byte>& pieces = call.answer_.pieces;
  if (call.total_ == 0 || header.offset != pieces.size() || data.empty() ||
      data.size() > call.total_ - pieces.size() || !call.window_.is_open()) {
    ++call.to_.statistics.malformed;
    return finish(call, lock, EPROTO);
  }
  pieces.insert(pieces.end(), data.begin(), data.end());
  if (pieces.size() == call.total_) return finish(call, lock, 0);
  if (const std::uint64_t more = call.window_.take(); more != 0)
    tell(call.session_, {.kind = Kind::credit, .credit = more});
}

// Nothing more is to be expected of this attempt.
void Calls::no_answer(const std::shared_ptr<OutgoingCall>& call, Lock& lock, int error) {
  if (!call->session_.empty()) tell(call->session_, {.kind = Kind::cancel});
  const Name& name = call->to_.name;
  if (error == ECONNRESET && name.idempotent && call->attempts_ <= name.retries &&
      !call->cancelled_) {
    ++call->to_.statistics.resent;
    call->maybe_served_ = true;
    forget(call->id_);
    return publish_first(call, lock, false);
  }
  finish(*call, lock, error);
}

void Calls::end() {
  std::vector<std::shared_ptr<OutgoingCall>> all;
  {
    const std::lock_guard guard(lock_);
    for (const auto& [id, call] : calls_) all.push_back(call);
  }
  for (const auto& call : all) {
    Lock lock(call->lock_);
    if (!call->over_ && !call->session_.empty()) tell(call->session_, {.kind = Kind::cancel});
    finish(*call, lock, ECONNRESET);
  }
}

// Signs of life are none where an answer that has begun does not come on.
bool Calls::is_silent(const OutgoingCall& call, Clock::time_point now) const {
  return now - call.last_activity_ >= bound_ ||
         (call.total_ != 0 &&
          is_too_slow(now - call.travels_since_, call.answer_.pieces.size(), bound_));
}

void Calls::tick(Clock::time_point now) {
  std::vector<std::shared_ptr<OutgoingCall>> all;
  {
    const std::lock_guard guard(lock_);
    // Time alone says nothing: a server may take longer than that to be known as dead.
    const Clock::time_point active = connection_.last_activity();
    std::erase_if(posted_at_, [&](const auto& each) {
      if (each.second + bound_ > active) return false;
      posted_.erase(each.first);
      return true;
    });
    all.reserve(calls_.size());
    for (const auto& [id, call] : calls_) all.push_back(call);
  }
  for (const auto& call : all) {
    Lock lock(call->lock_, std::try_to_lock);
    if (!lock || call->over_) continue;  // who has it may wait for the cluster
    if (now >= call->deadline_) {
      no_answer(call, lock, call->cancelled_ ? EINTR : ETIMEDOUT);
    } else if (is_silent(*call, now)) {
      no_answer(call, lock, ECONNRESET);
    }
  }
}

void Calls::denied(const std::string& subject) {
  std::vector<std::shared_ptr<OutgoingCall>> all;
  {
    const std::lock_guard guard(lock_);
    for (const auto& [id, call] : calls_)
      if (call->to_.subject == subject) all.push_back(call);
    std::erase_if(posted_, [&](const auto& each) {
      if (each.second->subject != subject) return false;
      ++each.second->statistics.undelivered;
      posted_at_.erase(each.first);
      return true;
    });
  }
  for (const auto& call : all) {
    Lock lock(call->lock_);
    if (!call->over_ && call->session_.empty()) finish(*call, lock, EACCES);
  }
}

}  // namespace farcall::bridge
