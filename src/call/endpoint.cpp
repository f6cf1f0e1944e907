// SPDX-License-Identifier: Apache-2.0
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <tuple>

#include "call/port.hpp"
#include "farcall/error.hpp"
#include "socket/answers.hpp"
#include "socket/peer.hpp"
#include "socket/strangers.hpp"
#include "wait/held_signals.hpp"

namespace farcall {

int EndpointOwner::admit(std::size_t, std::size_t) const noexcept { return 0; }
std::uint8_t EndpointOwner::bounded(std::uint8_t claimed, const Credentials&,
                                    std::uint32_t) noexcept {
  return claimed;
}
void EndpointOwner::branch_closed(std::uint64_t) noexcept {}
bool EndpointOwner::received(std::uint8_t, ReceivedFds&, const Credentials&) noexcept {
  return false;
}

namespace call {

// The inner end of a pair of sockets: what clients send for the port comes out here.
class EndpointState::Branch final : public Watch, public std::enable_shared_from_this<Branch> {
 public:
  Branch(std::weak_ptr<EndpointState> endpoint, PrivateFd inner, std::uint64_t outer_cookie,
         Charge held, uid_t user)
      : endpoint_(std::move(endpoint)),
        inner_(std::move(inner)),
        cookie_(outer_cookie),
        charge_(std::move(held)),
        user_(user) {}
  // Packets that nobody has taken may hold anything.
  ~Branch() override { close_later(user_, std::move(inner_), std::move(charge_)); }

  void start() { registration_.start(inner_.get(), kEvents, shared_from_this()); }
  void stop() noexcept { registration_.stop(); }
  void refuse_from_now_on() noexcept { ::shutdown(inner_.get(), SHUT_WR); }

  void on_readable(std::uint32_t) noexcept override {
    constexpr int kMostAtOnce = 16;
    for (int i = 0; i < kMostAtOnce && !paused_.load(std::memory_order_acquire); ++i) {
      // Whose rubbish comes faster than it can be thrown away has to wait.
      if (is_flooding(user_)) return pause(user_, false);
      if (!take()) return;
    }
  }

 private:
  static constexpr std::uint32_t kEvents = EPOLLIN | EPOLLRDHUP;

  // Takes one packet. False: there is none, or it goes on by itself later.
  bool take() noexcept {
    const std::shared_ptr<EndpointState> endpoint = endpoint_.lock();
    Packet packet;
    uid_t sender = user_;
    try {
      const Next next = look_at_next(inner_.get());
      sender = next.sender.value_or(user_);
      packet = next.sender && process::is_own(sender) ? take_packet(inner_.get())
                                                      : take_strangers_packet(inner_.get(), next);
      if (packet.kind == Packet::Kind::nothing) return false;
      if (packet.kind == Packet::Kind::closed) {
        end(endpoint);
        return false;
      }
      if (packet.stays && endpoint) endpoint->count_unsolicited(packet.unsolicited, next.claimed);
      if (!packet.stays && endpoint) {
        const bool wanted = receive(packet, *endpoint, endpoint);
        endpoint->count_unsolicited(packet.unsolicited, wanted ? 0 : packet.descriptors.size());
      }
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      // What this client sent is no session, or there is no room: closing what came tells it.
    }
    if (!packet.descriptors.empty()) close_later(sender, std::move(packet.descriptors));
    if (!packet.stays && !behind(sender)) return true;
    pause(sender, packet.stays);
    return false;
  }
  // Whether it is something that clients send.
  static bool receive(Packet& packet, const EndpointState& from,
                      const std::shared_ptr<EndpointState>& endpoint) {
    if (packet.kind == Packet::Kind::overflow) return true;
    if (packet.kind != Packet::Kind::descriptors || packet.more || !packet.sender) return false;
    if (packet.purpose == kPurposeSession) {
      if (packet.descriptors.size() != 2) return false;
      from.port->add(packet.descriptors, *packet.sender, endpoint);
      return true;
    }
    const auto owner = from.owner.lock();
    return owner && packet.purpose >= kFirstOwnPurpose &&
           owner->received(packet.purpose, packet.descriptors, *packet.sender);
  }
  // Until what `sender` has sent is closed, the packet that stays in the socket too if there is
  // one, by a thread that does that sender's work.
  void pause(uid_t sender, bool one_stays) noexcept {
    paused_.store(true, std::memory_order_relaxed);
    // A hang-up is told of whatever is asked for, and again each time that something is.
    registration_.rearm(EPOLLET);
    const auto go_on = [self = weak_from_this(), one_stays] {
      const auto branch = self.lock();
      if (!branch) return;
      if (one_stays) drop_next(branch->inner_.get());
      // release: the reactor sees what is left.
      branch->paused_.store(false, std::memory_order_release);
      branch->registration_.rearm(kEvents);
    };
    try {
      catch_up(sender, go_on);
    } catch (const std::exception&) {
      go_on();  // there is no thread
    }
  }
  void end(const std::shared_ptr<EndpointState>& endpoint) noexcept {
    stop();
    ::shutdown(inner_.get(), SHUT_RDWR);
    if (!endpoint) return;
    std::shared_ptr<Branch> self;  // outlives the lock
    {
      const QuietGuard guard(endpoint->branches_lock);
      auto& all = endpoint->branches;
      const auto found =
          std::ranges::find_if(all, [this](const auto& other) { return other.get() == this; });
      if (found == all.end()) return;
      self = std::move(*found);
      all.erase(found);
    }
    if (const auto owner = endpoint->owner.lock()) owner->branch_closed(cookie_);
  }

  const std::weak_ptr<EndpointState> endpoint_;
  PrivateFd inner_;
  const std::uint64_t cookie_;
  Charge charge_;
  const uid_t user_;
  std::atomic<bool> paused_{false};
  Registration registration_;
};

}  // namespace call

using call::EndpointState;
using call::inside;

const PortLimits& Endpoint::limits() const noexcept { return inside(*this).port->limits; }
bool Endpoint::closed() const noexcept { return inside(*this).closed; }
std::shared_ptr<EndpointOwner> Endpoint::owner() const noexcept {
  return inside(*this).owner.lock();
}

Unsolicited Endpoint::unsolicited() const noexcept {
  const EndpointState& state = inside(*this);
  return {.control_messages = state.unsolicited_control_messages.load(std::memory_order_relaxed),
          .descriptors = state.unsolicited_descriptors.load(std::memory_order_relaxed)};
}

void Endpoint::count_unsolicited(std::size_t control_messages, std::size_t descriptors) noexcept {
  EndpointState& state = inside(*this);
  state.unsolicited_control_messages.fetch_add(control_messages, std::memory_order_relaxed);
  state.unsolicited_descriptors.fetch_add(descriptors, std::memory_order_relaxed);
}

UniqueFd Endpoint::branch(std::string_view name, std::uint64_t* cookie, std::optional<uid_t> user,
                          std::optional<uid_t> holder) {
  EndpointState& state = inside(*this);
  process::Charge held;
  if (user) {
    held = process::Charge(process::Resource::descriptors, *user, 1, limits().descriptors_per_user);
    if (!held) throw SystemError(EAGAIN, "that user holds too many descriptors here");
  }
  auto [inner, outer] = server_socket_pair();
  if (!name.empty()) {
    const AbstractAddress address(name);
    if (::bind(outer.get(), address.get(), address.size()) != 0) throw_errno("name a socket");
  }
  const std::uint64_t outer_cookie = socket_cookie(outer.get());
  if (outer_cookie == 0) throw_errno("SO_COOKIE");
  if (cookie != nullptr) *cookie = outer_cookie;
  auto branch = std::make_shared<EndpointState::Branch>(
      state.weak_from_this(), std::move(inner), outer_cookie, std::move(held),
      user ? *user : holder.value_or(::geteuid()));
  {
    const QuietGuard guard(state.branches_lock);
    state.branches.push_back(branch);
    if (state.closed) branch->refuse_from_now_on();
  }
  try {
    branch->start();
  } catch (...) {
    const QuietGuard guard(state.branches_lock);
    std::erase(state.branches, branch);
    throw;
  }
  return outer.release();
}

std::size_t Endpoint::branches() const noexcept {
  const EndpointState& state = inside(*this);
  const QuietGuard guard(state.branches_lock);
  return state.branches.size();
}

void Endpoint::set_terms(const Terms& terms) {
  EndpointState& state = inside(*this);
  const std::lock_guard guard(state.port->lock);
  state.terms = terms;
  for (const auto& [id, entry] : state.port->sessions)
    if (entry.session->endpoint.get() == this) entry.session->set_terms(terms);
}

void Endpoint::set_label(const observe::Label& label) {
  EndpointState& state = inside(*this);
  const std::lock_guard guard(state.port->lock);
  state.label = label;
}

void Endpoint::close() noexcept {
  EndpointState& state = inside(*this);
  if (state.closed.exchange(true)) return;
  {
    const QuietGuard guard(state.branches_lock);
    for (const auto& branch : state.branches) branch->refuse_from_now_on();
  }
  state.port->close_sessions(this);
}

namespace call {

EndpointState::EndpointState(std::shared_ptr<PortState> its_port,
                             std::weak_ptr<EndpointOwner> its_owner, const Terms& its_terms)
    : port(std::move(its_port)), owner(std::move(its_owner)), terms(its_terms) {}

EndpointState::~EndpointState() {
  if (port->generation != process::generation()) {
    // The reactor that knows the branches is the parent's.
    for (auto& branch : branches) process::leak_in_child(branch);
    return;
  }
  for (const auto& branch : branches) branch->stop();
}

namespace {

// What its client does later is told to the threads; that it goes, to the reactor as well.
class SessionWatch final : public Watch {
 public:
  SessionWatch(std::weak_ptr<PortState> port, std::uint64_t number)
      : port_(std::move(port)), id_(number) {}
  void on_readable(std::uint32_t events) noexcept override {
    const auto port = port_.lock();
    if (!port) return;
    if (SessionPointer left = port->on_event(id_, events)) port->queue(std::move(left));
  }

 private:
  const std::weak_ptr<PortState> port_;
  const std::uint64_t id_;
};

// A session is not charged for in bytes; what a long list of groups is more than that is.
constexpr std::size_t kFewGroups = kSessionBytes / sizeof(gid_t);
Charge charge_for_groups(const CallerIdentity& identity, const PortLimits& limits) noexcept {
  const uid_t user = identity.effective.uid;
  const std::size_t count = identity.groups ? identity.groups->size() : 0;
  if (count <= kFewGroups || process::is_own(user)) return Charge::exempt();
  return {Resource::bytes, user, count * sizeof(gid_t), limits.bytes_per_user};
}

CallerIdentity identity_of(const Credentials& sender, int socket) {
  return {.effective = sender,
          .real_uid = sender.uid,
          .real_gid = sender.gid,
          .saved_uid = sender.uid,
          .saved_gid = sender.gid,
          .groups = groups_of_peer(socket)};
}

}  // namespace

void PortState::take_in(const SessionPointer& session, Account& account, std::uint64_t since) {
  Entry& entry = sessions[session->id];
  entry.session = session;
  ++account.sessions;
  // Who opens without end takes the reactor's time, and gets the less of the threads'.
  waiting.charge_at_once(account, ticks() - since);
  entry.death.start(session->socket(), EPOLLRDHUP | EPOLLET,
                    std::make_shared<SessionWatch>(weak_from_this(), session->id));
  listen(session->socket(), session->id, EPOLLIN | EPOLLET);
}

void PortState::add(ReceivedFds& descriptors, const Credentials& sender,
                    const std::shared_ptr<EndpointState>& endpoint) {
  const std::uint64_t since = ticks();
  const int answers = descriptors[1].get();
  std::uint64_t inode = 0;
  PrivateMapping memory = adopt_session(std::move(descriptors[0]), &inode);
  auto& control = *reinterpret_cast<SessionControl*>(memory.data());
  // Not said there: it may be somebody else's.
  if (!made_by_sender(answers, sender))
    return control.terms.refusal.store(EACCES, std::memory_order_relaxed);
  const auto refuse = [&](int error) {
    control.terms.refusal.store(static_cast<std::uint32_t>(error), std::memory_order_relaxed);
    try {
      send_descriptors(answers, {}, 0, Deadline::now());
    } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it does not want to know
    }
  };
  Charge held(Resource::descriptors, sender.uid, kSessionDescriptors, limits.descriptors_per_user);
  if (!held) return refuse(EAGAIN);
  PrivateFd theirs;
  SessionPointer session;
  try {
    PrivateFd ours;
    std::tie(ours, theirs) = server_socket_pair();
    SessionSockets sockets{.mine = std::move(ours),
                           .theirs = PrivateFd(descriptors[1].duplicate())};
    CallerIdentity identity = identity_of(sender, answers);
    Charge for_groups = charge_for_groups(identity, limits);
    if (!for_groups) return refuse(EAGAIN);
    const std::lock_guard guard(lock);
    if (closed || endpoint->closed) return;
    AccountPointer account = waiting.account(sender.uid);
    if (sessions.size() >= limits.sessions || account->sessions >= limits.sessions_per_user)
      return refuse(EAGAIN);
    session =
        std::make_shared<ServerSession>(std::move(memory), std::move(sockets), std::move(identity),
                                        next_id++, endpoint, mode, std::move(held), account);
    session->hold(std::move(for_groups));
    Waiter::park_on_descriptor(session->control().server);
    session->set_terms(endpoint->terms);
    observe::Description end = endpoint->label.description(observe::Role::server);
    end.session = inode;
    end.peer = sender.pid;
    session->observe(end);
    take_in(session, *account, since);
  } catch (const std::exception&) {
    if (!session && !memory) throw;  // there is nowhere left to say why
    refuse(EAGAIN);
    if (session) drop(session);
    return;
  }
  try {
    send_descriptors(answers, std::array{theirs.get()}, 0, Deadline::now());
  } catch (const SystemError&) {
    drop(session);
    throw;
  }
}

}  // namespace call

std::shared_ptr<Endpoint> Port::open_endpoint(std::weak_ptr<EndpointOwner> owner,
                                              const Terms& terms) {
  auto endpoint = std::make_shared<EndpointState>(state_, std::move(owner), terms);
  const std::lock_guard guard(state_->lock);
  std::erase_if(state_->endpoints, [](const auto& other) { return other.expired(); });
  state_->endpoints.push_back(endpoint);
  return endpoint;
}

}  // namespace farcall
