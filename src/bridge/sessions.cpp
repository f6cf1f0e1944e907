// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <new>
#include <unordered_set>
#include <utility>

#include "bridge/exporter.hpp"

namespace farcall::bridge {
namespace {

// A quick call says nothing before its answer; who takes longer says who serves.
constexpr std::chrono::milliseconds kFirstSign{20};

Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

}  // namespace

Sessions::Sessions(Connection& connection, const Config& config)
    : connection_(connection),
      bound_(seconds(config.death_bound_s)),
      peers_(config, connection),
      memory_(config.memory_mib << 20),
      in_pieces_(memory_.most()) {}

bool Sessions::hold_pieces(Session& session, std::uint64_t bytes) noexcept {
  session.pieces.give_back();  // of the request, which has been served
  return session.pieces.take(session.owner->in_pieces(), in_pieces_, memory_, bytes);
}

std::shared_ptr<Session> Sessions::add(ExportedName& owner, Msg message, const Header& header,
                                       bool answers) {
  auto session = std::make_shared<Session>();
  session->owner = &owner;
  session->header = header;
  if (answers) session->reply_to = message.reply();
  session->first = std::move(message);
  session->began = session->last_activity = session->travels_since = Clock::now();
  // What gives up first, this side or that. To a program that knows nothing of bridges a sign of
  // life would be the answer.
  session->alive_every = std::max<Clock::duration>(
      kFirstSign,
      std::min<Clock::duration>(bound_, std::chrono::milliseconds(header.bound_ms)) / 4);
  session->next_alive =
      header.bound_ms != 0 ? session->began + kFirstSign : Clock::time_point::max();
  if (header.deadline_ms != 0 && header.deadline_ms < 1'000'000'000)
    session->deadline = session->began + std::chrono::milliseconds(header.deadline_ms);
  const std::lock_guard guard(lock_);
  do session->id = numbers_.next();
  while (all_.contains(session->id));
  session->own = connection_.inbox(fmt::format("s{:x}", session->id));
  all_.emplace(session->id, session);
  return session;
}

void Sessions::remove(const Session& session) {
  std::shared_ptr<Session> keep;
  const std::lock_guard guard(lock_);
  if (const auto found = all_.find(session.id); found != all_.end()) {
    keep = std::move(found->second);
    all_.erase(found);
  }
}

void Sessions::grant(Session& session, std::uint64_t pieces) {
  const Header header{.kind = Kind::credit, .credit = pieces};
  (void)connection_.publish(session.reply_to, &session.own, &header, {});
}

void Sessions::answer(const std::shared_ptr<Session>& session, const LocalAnswer& answer) {
  if (session->reply_to.empty()) {  // then nobody else is told
    session->owner->statistics.lost(answer.error);
    return remove(*session);
  }
  Header header{.kind = Kind::reply};
  header.error = answer.error;
  header.status = answer.status;
  header.not_taken = answer.not_taken;
  const std::span<const std::byte> data = answer.data;
  header.total = data.size();
  if (data.size() <= connection_.whole()) {
    const bool plain = answer.error == 0 && answer.status == 0;
    (void)connection_.publish(session->reply_to, nullptr, plain ? nullptr : &header, data);
    return remove(*session);
  }
  const std::lock_guard guard(session->lock);
  if (!hold_answer(*session, data)) {
    header.error = ENOBUFS;
    remove(*session);
    (void)connection_.publish(session->reply_to, nullptr, &header, {});
    return;
  }
  session->answering = true;
  session->last_activity = session->travels_since = Clock::now();
  session->sent = std::min<std::size_t>(kPieceBytes, connection_.longest());
  (void)connection_.publish(session->reply_to, &session->own, &header, data.first(session->sent));
}

// False: there is no memory for it. With the session locked.
bool Sessions::hold_answer(Session& session, std::span<const std::byte> data) {
  try {
    std::vector<std::byte>().swap(session.request);
    if (!hold_pieces(session, data.size())) return false;
    session.answer.assign(data.begin(), data.end());
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

// With the session locked.
void Sessions::send_pieces(Session& session) {
  const std::size_t piece = std::min<std::size_t>(kPieceBytes, connection_.longest());
  while (session.credit > 0 && session.sent < session.answer.size()) {
    const std::size_t size = std::min(piece, session.answer.size() - session.sent);
    Header header{.kind = Kind::data};
    header.offset = session.sent;
    const auto data = std::span<const std::byte>(session.answer).subspan(session.sent, size);
    if (connection_.publish(session.reply_to, &session.own, &header, data) != 0) return;
    session.sent += size;
    --session.credit;
  }
}

// With the session locked.
Sessions::Piece Sessions::take_piece(Session& session, const Msg& message, const Header& header) {
  const std::span<const std::byte> data = message.data();
  std::vector<std::byte>& request = session.request;
  if (header.offset != request.size() || data.empty() || !session.window.is_open() ||
      data.size() > session.header.total - request.size())
    return Piece::wrong;
  session.last_activity = Clock::now();
  request.insert(request.end(), data.begin(), data.end());
  const std::uint64_t more = session.window.take();
  if (request.size() == session.header.total) {
    session.assembling = false;
    session.next_alive = session.last_activity + kFirstSign;
    return Piece::last;
  }
  if (more != 0) grant(session, more);
  return Piece::wanted;
}

// With the session locked.
void Sessions::cancel(Session& session) {
  session.cancelled = true;
  if (session.worker != nullptr) session.worker->interrupt();
}

std::shared_ptr<Session> Sessions::received(std::string_view word, const Msg& message) {
  std::uint64_t id = 0;
  std::from_chars(word.data() + 1, word.data() + word.size(), id, 16);
  std::shared_ptr<Session> session;
  {
    const std::lock_guard guard(lock_);
    const auto found = all_.find(id);
    if (found == all_.end()) return nullptr;
    session = found->second;
  }
  std::unique_lock guard(session->lock);
  const std::optional<Header> header = message.header();
  Piece piece = Piece::wanted;
  bool gone = false;
  if (message.is_no_responders() || (header && header->kind == Kind::cancel)) {
    cancel(*session);  // the importer has died, or wants no answer
    gone = session->answering || session->assembling;
  } else if (header && header->kind == Kind::data && session->assembling) {
    piece = take_piece(*session, message, *header);
  } else if (header && header->kind == Kind::credit && header->credit != 0 && session->answering) {
    session->last_activity = Clock::now();
    session->credit = std::min(session->credit + header->credit, kWindow);
    send_pieces(*session);
    gone = session->sent == session->answer.size();
  }
  guard.unlock();
  if (piece == Piece::wrong) ++session->owner->statistics.malformed;
  if (gone || piece == Piece::wrong) drop(session, gone ? 0 : EPROTO);
  return piece == Piece::last ? session : nullptr;
}

// Pieces of it travel no more. `error`: what the importer is to hear of it; 0: nothing.
void Sessions::drop(const std::shared_ptr<Session>& session, int error) {
  bool unserved = false;
  {
    const std::lock_guard guard(session->lock);
    unserved = std::exchange(session->assembling, false);
    if (unserved) session->cancelled = true;
    session->answering = false;
  }
  remove(*session);
  if (unserved) session->owner->pass_over(session);
  if (!unserved || error == 0) return;
  session->owner->statistics.failed(error);
  const Header header{.kind = Kind::reply, .error = error};
  (void)connection_.publish(session->reply_to, nullptr, &header, {});
}

// Why no more pieces of it are waited for, or 0. With the session locked. Whatever the importer
// says, its deadline is one, and it cannot keep for ever what is held for it.
int Sessions::why_to_drop(const Session& session, Clock::time_point now) const {
  const std::uint64_t bytes = session.assembling ? session.request.size() : session.sent;
  if (now >= session.deadline) return ETIMEDOUT;
  const bool silent = now - session.last_activity > bound_;
  return silent || is_too_slow(now - session.travels_since, bytes, bound_) ? ECONNRESET : 0;
}

void Sessions::cancel_all() {
  std::vector<std::shared_ptr<Session>> all;
  {
    const std::lock_guard guard(lock_);
    for (const auto& [id, session] : all_) all.push_back(session);
  }
  for (const auto& session : all) {
    const std::lock_guard guard(session->lock);
    if (!session->cancelled) session->ended = true;
    cancel(*session);
  }
}

void Sessions::tick(Clock::time_point now) {
  std::vector<std::shared_ptr<Session>> due;
  std::unordered_set<ExportedName*> with_cancelled;
  {
    const std::lock_guard guard(lock_);
    for (const auto& [id, session] : all_) due.push_back(session);
  }
  for (const auto& session : due) {
    std::unique_lock guard(session->lock, std::try_to_lock);
    if (!guard) continue;  // who has it may wait for the cluster
    if (session->assembling || session->answering) {
      const int error = why_to_drop(*session, now);
      guard.unlock();
      if (error != 0) drop(session, error);
      continue;
    }
    if (now >= session->deadline) session->timed_out = session->cancelled = true;
    if (session->cancelled && session->worker != nullptr) session->worker->interrupt();
    if (session->cancelled && session->worker == nullptr) with_cancelled.insert(session->owner);
    if (now < session->next_alive || session->reply_to.empty()) continue;
    session->next_alive = now + session->alive_every;
    const Header header{.kind = Kind::alive};
    (void)connection_.publish(session->reply_to, &session->own, &header, {});
  }
  for (ExportedName* const name : with_cancelled) name->withdraw_cancelled();
}

}  // namespace farcall::bridge
