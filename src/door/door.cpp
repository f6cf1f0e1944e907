// SPDX-License-Identifier: Apache-2.0
#include "door/door.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "call/client_session.hpp"
#include "door/attach.hpp"
#include "door/real.hpp"
#include "door/references.hpp"
#include "farcall/error.hpp"
#include "process/background.hpp"
#include "socket/peer.hpp"
#include "socket/wait_for.hpp"
#include "wait/held_signals.hpp"

namespace farcall::door {
namespace {

std::uint64_t address_of(const void* pointer) noexcept {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

door_info_t blank(const Name& name) noexcept {
  door_info_t info{};
  info.di_target = -1;
  info.di_attributes = name.attributes;
  info.di_uniquifier = name.id;
  return info;
}

// Asks the server what it says of the door, and remembers it. Where it says nothing in time, or has
// no room for who asks, what it has said last is still so as far as is known.
Outcome ask(int fd, Handle& handle, Terms& terms) {
  Outcome outcome = Outcome::would_block;
  try {
    // Others' servers must not make those wait whom a thread of this process serves.
    constexpr std::chrono::milliseconds kLong{1000};
    constexpr std::chrono::milliseconds kShort{5};
    const auto patience = call::maker_of(fd).trusted ? kLong : kShort;
    outcome = handle.client.terms(terms, Deadline::after(patience), fd);
  } catch (const SystemError& error) {
    if (error.code().value() != EAGAIN) throw;
  }
  const std::lock_guard guard(handle.terms_lock);
  if (outcome == Outcome::ok) {
    handle.last_terms = terms;
  } else if (outcome != Outcome::peer_gone && handle.last_terms) {
    terms = *handle.last_terms;
    outcome = Outcome::ok;
  }
  return outcome;
}

// What it has said last; or else what it says of doors that nobody has set anything of.
Terms as_last_said(Handle& handle) {
  const std::lock_guard guard(handle.terms_lock);
  if (handle.last_terms) return *handle.last_terms;
  Terms terms{};
  terms[kDataMax] = SIZE_MAX;
  terms[kDescMax] = (handle.name.attributes & DOOR_REFUSE_DESC) != 0 ? 0 : INT_MAX;
  return terms;
}

door_info_t foreign_info(int fd, Handle& handle) {
  door_info_t info = blank(handle.name);
  // POLLRDHUP once it is revoked, POLLHUP once its server is dead.
  const short state = events_now(fd, POLLRDHUP);
  const bool dead = (state & POLLHUP) != 0 || has_peer_ended(fd);
  if (dead || (state & POLLRDHUP) != 0) info.di_attributes |= DOOR_REVOKED;
  if (dead) return info;
  ucred server{};
  socklen_t size = sizeof server;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &server, &size) == 0) info.di_target = server.pid;
  Terms terms{};
  if (state == 0 && ask(fd, handle, terms) == Outcome::ok) {
    info.di_proc = terms[kProcedure];
    info.di_data = terms[kCookie];
    // The name says what the door was made with; a notification that comes once is no more to come.
    if ((terms[kDescMax] >> 32 & DOOR_UNREF) == 0)
      info.di_attributes &= ~static_cast<door_attr_t>(DOOR_UNREF);
    info.di_attributes |= static_cast<door_attr_t>(terms[kDescMax] >> 32 & DOOR_IS_UNREF);
  }
  return info;
}

}  // namespace

Door::Door(const Order& order, const std::shared_ptr<SharedPool>& threads)
    : OwnDoor(order, threads),
      port_(threads->port),
      desc_max_((order.attributes & DOOR_REFUSE_DESC) != 0 ? 0 : INT_MAX) {}

Terms Door::terms() const noexcept {
  Terms terms{};
  terms[kDataMin] = data_min_;
  terms[kDataMax] = data_max_;
  std::uint64_t shown = shown_attributes();
  if (is_unref_.load(std::memory_order_relaxed)) shown |= DOOR_IS_UNREF;
  terms[kDescMax] = shown << 32 | desc_max_;
  terms[kProcedure] = address_of(reinterpret_cast<const void*>(procedure));
  terms[kCookie] = address_of(cookie);
  return terms;
}

// What each has changed before is in what is told last.
void Door::publish() {
  const HeldSignals held;  // a handler may come here
  const std::lock_guard guard(terms_lock_);
  endpoint_->set_terms(terms());
}

UniqueFd Door::open() {
  const auto self = shared_from_this();
  endpoint_ = port_.open_endpoint(self, terms());
  endpoint_->set_label(label_of({.id = id, .attributes = 0}));
  Process& process = Process::here();
  UniqueFd fd = endpoint_->branch(
      make_name({.id = id, .attributes = attributes & kNamedAttributes}), &primary_);
  lasting_info_ = info();
  process.add_branch(primary_, self);
  (void)process.find(fd.get());  // the number is known for the door's from now on
  return fd;
}

UniqueFd Door::branch(std::optional<uid_t> user, std::optional<mode_t> mode) {
  std::uint64_t socket = 0;
  UniqueFd fd = endpoint_->branch(
      make_name({.id = id, .attributes = shown_attributes() & kNamedAttributes, .mode = mode}),
      &socket, user);
  Process::here().add_branch(socket, shared_from_this());
  referenced();
  return fd;
}

void Door::referenced() {
  {
    const QuietGuard guard(lock_);
    was_referenced_ = true;
    if (!is_unref_.exchange(false, std::memory_order_relaxed)) return;
  }
  publish();
}

unsigned Door::shown_attributes() const noexcept {
  return told_.load(std::memory_order_relaxed) ? attributes & ~unsigned{DOOR_UNREF} : attributes;
}

door_info_t Door::info() const noexcept {
  door_info_t info = blank({.id = id, .attributes = shown_attributes() & kNamedAttributes});
  info.di_target = ::getpid();
  info.di_proc = address_of(reinterpret_cast<const void*>(procedure));
  info.di_data = address_of(cookie);
  info.di_attributes |= DOOR_LOCAL;
  if (revoked()) info.di_attributes |= DOOR_REVOKED;
  if (is_unref_.load(std::memory_order_relaxed)) info.di_attributes |= DOOR_IS_UNREF;
  return info;
}

int Door::admit_descriptors(std::size_t count) const noexcept {
  if ((attributes & DOOR_REFUSE_DESC) != 0) return ENOTSUP;
  return count > desc_max_ ? ENFILE : 0;
}

std::uint64_t Door::param(int which) const noexcept {
  if (which == DOOR_PARAM_DATA_MIN) return data_min_;
  if (which == DOOR_PARAM_DATA_MAX) return data_max_;
  return desc_max_;
}

int Door::set_param(int which, std::uint64_t value) {
  const HeldSignals held;
  const std::lock_guard guard(terms_lock_);
  switch (which) {
    case DOOR_PARAM_DATA_MIN:
      if (value > data_max_) return EINVAL;
      data_min_ = value;
      break;
    case DOOR_PARAM_DATA_MAX:
      if (value < data_min_) return EINVAL;
      data_max_ = value;
      break;
    case DOOR_PARAM_DESC_MAX:
      if (value > INT_MAX) return ERANGE;
      if (value != 0 && (attributes & DOOR_REFUSE_DESC) != 0) return ENOTSUP;
      desc_max_ = value;
      break;
    default: return EINVAL;
  }
  endpoint_->set_terms(terms());
  return 0;
}

void Door::check_references(std::size_t own) noexcept {
  try {
    std::size_t count = endpoint_->branches();
    // Our own count one by one. Where there are none, the branch that is left of them is held by
    // somebody to whom the program has passed it by other means than ours.
    if (own > 0 && count > 0) count += own - 1;
    count += attachments().size();
    if (!counts_references()) return;
    bool tell = false;
    bool changed = false;
    {
      const QuietGuard guard(lock_);
      if (count > 1) {
        was_referenced_ = true;
        changed = is_unref_.exchange(false, std::memory_order_relaxed);
      } else if (was_referenced_ && !is_active()) {
        // Where none is left, there was one between this look and the last.
        was_referenced_ = false;
        is_unref_.store(true, std::memory_order_relaxed);
        changed = true;
        const bool first = !told_.exchange(true, std::memory_order_relaxed);
        tell = !revoked() && ((attributes & DOOR_UNREF_MULTI) != 0 || first);
      }
    }
    if (changed) publish();
    if (tell) post_notice();
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): told at the next occasion
  }
}

// The last reference may go before a thread has come to take it. A private door is kept by the
// threads that are bound to it, and without a reference none can be bound any more.
void Door::post_notice() {
  {
    const QuietGuard guard(lock_);
    if (revoked()) return;  // with the lock held: revoke() has let go of it, or will
    if (notices_++ == 0 && !is_private()) until_told_ = shared_from_this();
  }
  try {
    port_.post(endpoint_);
  } catch (...) {
    notice_taken();
    throw;
  }
}

// Nobody is told of it any more.
void Door::revoke() noexcept {
  endpoint_->close();
  std::shared_ptr<Door> last;  // outlives the lock
  const QuietGuard guard(lock_);
  last = std::move(until_told_);
}

void Door::notice_taken() noexcept {
  std::shared_ptr<Door> last;  // outlives the lock
  const QuietGuard guard(lock_);
  if (--notices_ == 0) last = std::move(until_told_);
}

// seq_cst, as in call_ended(): whose call is seen here to go on sees that somebody waits for it.
bool Door::is_active() noexcept {
  if (active_.load(std::memory_order_relaxed) == 0) return false;
  waits_.store(true, std::memory_order_seq_cst);
  return active_.load(std::memory_order_seq_cst) != 0;
}

void Door::call_ended() noexcept {
  const NoCancel guard;
  if (active_.fetch_sub(1, std::memory_order_seq_cst) != 1) return;
  if (waits_.load(std::memory_order_seq_cst) && waits_.exchange(false))
    ReferenceChecks::add(shared_from_this());
}

void Door::branch_closed(std::uint64_t socket) noexcept {
  Process::here().remove_branch(socket);
  if (counts_references()) ReferenceChecks::add(shared_from_this());
}

bool Door::received(std::uint8_t purpose, ReceivedFds& descriptors,
                    const Credentials& sender) noexcept {
  if (purpose != kPurposeAttach || descriptors.size() != 3) return false;
  attach(shared_from_this(), descriptors, sender);
  return true;
}

void Door::add_attachment(std::shared_ptr<Attachment> attachment) {
  {
    const QuietGuard guard(lock_);
    attachments_.push_back(std::move(attachment));
  }
  referenced();
}

void Door::remove_attachment(const Attachment& attachment) noexcept {
  std::shared_ptr<Attachment> last;  // outlives the lock
  {
    const QuietGuard guard(lock_);
    const auto found = std::ranges::find_if(
        attachments_, [&](const auto& other) { return other.get() == &attachment; });
    if (found == attachments_.end()) return;
    last = std::move(*found);
    attachments_.erase(found);
  }
  last = nullptr;
  if (auto self = weak_from_this().lock()) ReferenceChecks::add(std::move(self));
}

// Or its server is dead.
bool Handle::is_revoked(int d) const noexcept {
  const auto door = local.lock();
  return door ? door->revoked() : (events_now(d, POLLRDHUP) & (POLLRDHUP | POLLHUP)) != 0;
}

int Handle::info(int d, door_info_t& info) {
  const auto door = local.lock();
  info = door ? door->info() : foreign_info(d, *this);
  return 0;
}

int Handle::param(int d, int which, std::uint64_t& value) {
  if (const auto door = local.lock()) {
    value = door->param(which);
    return 0;
  }
  Terms terms{};
  auto outcome = Outcome::peer_gone;
  if (!is_revoked(d)) outcome = ask(d, *this, terms);
  if (outcome == Outcome::peer_gone)
    terms = as_last_said(*this);
  else if (outcome != Outcome::ok)
    return EAGAIN;
  value = which == DOOR_PARAM_DATA_MIN   ? terms[kDataMin]
          : which == DOOR_PARAM_DATA_MAX ? terms[kDataMax]
                                         : terms[kDescMax] & UINT32_MAX;
  return 0;
}

int Handle::set_param(int d, int which, std::uint64_t value) {
  if (is_revoked(d)) return EBADF;
  const auto door = local.lock();
  return door ? door->set_param(which, value) : EPERM;
}

int Handle::revoke(int) {
  const auto door = local.lock();
  if (!door) return EPERM;
  door->revoke();
  return 0;
}

std::shared_ptr<OwnDoor> Handle::to_bind(int) {
  auto door = local.lock();
  return door && door->is_private() ? std::move(door) : nullptr;
}

void Handle::describe(int d, door_desc_t& descriptor) {
  const auto door = local.lock();
  descriptor.d_attributes |= door ? door->info().di_attributes : name.attributes;
  if (!door && is_revoked(d)) descriptor.d_attributes |= DOOR_REVOKED;
  descriptor.d_data.d_desc.d_id = name.id;
}

namespace {

class SharedEngine final : public Engine {
 public:
  int create(const OwnDoor::Order& order, std::shared_ptr<OwnDoor>& door) override {
    Process& process = Process::here();
    const bool is_private = (order.attributes & DOOR_PRIVATE) != 0;
    const auto made = std::make_shared<Door>(
        order, is_private ? std::make_shared<SharedPool>(process.mode) : process.shared_pool());
    const int fd = made->open().release();
    if (is_private) door = made;
    return fd;
  }
  std::shared_ptr<Pool> shared_pool() override { return Process::here().shared_pool(); }
};

constinit SharedEngine the_engine;

}  // namespace

Engine& shared_engine() noexcept { return the_engine; }

}  // namespace farcall::door
