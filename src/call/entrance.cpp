// SPDX-License-Identifier: Apache-2.0
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "call/port.hpp"
#include "farcall/error.hpp"

namespace farcall {

void EntranceOwner::branch_closed(std::uint64_t) noexcept {}
// NOLINTNEXTLINE(performance-unnecessary-value-param): an owner that wants them takes them over
void EntranceOwner::received(std::uint8_t, std::vector<UniqueFd>, const Credentials&) noexcept {}

struct Entrance::Private {};

// The inner end of a pair of sockets: what clients send for the port comes out here.
class Entrance::Branch final : public call::Watch {
 public:
  Branch(std::weak_ptr<Entrance> entrance, UniqueFd inner, std::uint64_t outer_cookie)
      : entrance_(std::move(entrance)), inner_(std::move(inner)), cookie_(outer_cookie) {}
  ~Branch() override = default;

  void start(std::shared_ptr<Branch> self) {
    number_ = call::Warden::here().watch(inner_.get(), EPOLLIN | EPOLLRDHUP, std::move(self));
  }
  void stop() noexcept {
    if (number_ != 0 && inner_) call::Warden::here().forget(inner_.get(), number_);
  }
  void refuse_from_now_on() noexcept { ::shutdown(inner_.get(), SHUT_WR); }

  void heard(std::uint32_t) noexcept override {
    constexpr int kMostAtOnce = 16;
    const std::shared_ptr<Entrance> entrance = entrance_.lock();
    for (int i = 0; i < kMostAtOnce; ++i) {
      try {
        Arrival arrival = take_arrival(inner_.get());
        if (arrival.kind == Arrival::Kind::nothing) return;
        if (arrival.kind == Arrival::Kind::closed) return end(entrance);
        if (arrival.kind != Arrival::Kind::descriptors || arrival.more || !arrival.sender ||
            !entrance)
          continue;
        if (arrival.purpose == call::kPurposeSession)
          entrance->port_->add(std::move(arrival.descriptors), *arrival.sender, entrance);
        else if (const auto owner = entrance->owner(); owner && arrival.purpose >= kFirstOwnPurpose)
          owner->received(arrival.purpose, std::move(arrival.descriptors), *arrival.sender);
      } catch (const std::exception&) {
        // What this client sent is no session, or there is no room: closing what came tells it.
        continue;
      }
    }
  }

 private:
  void end(const std::shared_ptr<Entrance>& entrance) noexcept {
    stop();
    if (!entrance) return;
    std::shared_ptr<Branch> self;  // outlives the lock
    {
      const std::lock_guard guard(entrance->port_->lock);
      auto& all = entrance->branches_;
      const auto found =
          std::ranges::find_if(all, [this](const auto& other) { return other.get() == this; });
      if (found == all.end()) return;
      self = std::move(*found);
      all.erase(found);
    }
    if (const auto owner = entrance->owner()) owner->branch_closed(cookie_);
  }

  const std::weak_ptr<Entrance> entrance_;
  call::PrivateFd inner_;
  const std::uint64_t cookie_;
  std::uint64_t number_ = 0;
};

Entrance::Entrance(const Private&, std::shared_ptr<call::PortState> port,
                   std::weak_ptr<EntranceOwner> owner, const Terms& terms)
    : port_(std::move(port)), owner_(std::move(owner)), terms_(terms) {}

Entrance::~Entrance() {
  if (port_->generation != call::generation()) {
    // The warden that knows the branches is the parent's.
    for (auto& branch : branches_) call::leave_alone(branch);
    return;
  }
  for (const auto& branch : branches_) branch->stop();
}

UniqueFd Entrance::branch(std::string_view name, std::uint64_t* cookie) {
  auto [inner, outer] = packet_socket_pair();
  const int on = 1;
  if (::setsockopt(inner.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0)
    throw_errno("SO_PASSCRED");
  if (!name.empty()) {
    const AbstractAddress address(name);
    if (::bind(outer.get(), address.get(), address.size()) != 0) throw_errno("name a socket");
  }
  const std::uint64_t outer_cookie = socket_cookie(outer.get());
  if (outer_cookie == 0) throw_errno("SO_COOKIE");
  if (cookie != nullptr) *cookie = outer_cookie;
  auto branch = std::make_shared<Branch>(weak_from_this(), std::move(inner), outer_cookie);
  {
    const std::lock_guard guard(port_->lock);
    branches_.push_back(branch);
    if (closed_) branch->refuse_from_now_on();
  }
  try {
    branch->start(branch);
  } catch (...) {
    const std::lock_guard guard(port_->lock);
    std::erase(branches_, branch);
    throw;
  }
  return std::move(outer);
}

std::size_t Entrance::branches() const noexcept {
  const std::lock_guard guard(port_->lock);
  return branches_.size();
}

void Entrance::set_terms(const Terms& terms) {
  const std::lock_guard guard(port_->lock);
  terms_ = terms;
  for (const auto& [id, entry] : port_->sessions)
    if (entry.session->entrance.get() == this) entry.session->set_terms(terms);
}

void Entrance::close() noexcept {
  if (closed_.exchange(true)) return;
  {
    const std::lock_guard guard(port_->lock);
    for (const auto& branch : branches_) branch->refuse_from_now_on();
  }
  port_->close_sessions(this);
}

namespace call {

void PortState::add(std::vector<UniqueFd> descriptors, const Credentials& sender,
                    const std::shared_ptr<Entrance>& entrance) {
  if (descriptors.size() != 2) return;
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(descriptors[1].get(), SOL_SOCKET, SO_TYPE, &type, &size) != 0 ||
      type != SOCK_SEQPACKET)
    return;
  // A branch of an entrance, held here, would never close.
  if (AbstractAddress::of(descriptors[1].get())) return;
  Mapping memory = adopt_session(std::move(descriptors[0]));
  const std::lock_guard guard(lock);
  if (closed || entrance->closed()) return;
  const std::uint64_t id = next_id++;
  auto session = std::make_shared<ServerSession>(std::move(memory), std::move(descriptors[1]),
                                                 sender, id, entrance, mode);
  const auto users = per_user.find(sender.uid);
  if (sessions.size() >= limits.sessions ||
      (users != per_user.end() && users->second >= most_sessions(sender.uid))) {
    session->welcome(EAGAIN);
    return;
  }

  // What its client does later is for the threads to hear; that it goes, for the warden as well.
  class SessionWatch final : public Watch {
   public:
    SessionWatch(std::weak_ptr<PortState> port, std::uint64_t number)
        : port_(std::move(port)), id_(number) {}
    void heard(std::uint32_t events) noexcept override {
      const auto port = port_.lock();
      if (!port) return;
      if (SessionPointer left = port->hear(id_, events)) port->queue({std::move(left), nullptr});
    }

   private:
    const std::weak_ptr<PortState> port_;
    const std::uint64_t id_;
  };
  Waiter::park_on_descriptor(session->control().server);
  const std::uint64_t watch =
      Warden::here().watch(session->socket(), EPOLLRDHUP | EPOLLET,
                           std::make_shared<SessionWatch>(weak_from_this(), id));
  try {
    sessions.emplace(id, Entry{.session = session, .watch = watch});
    ++per_user[sender.uid];
    listen(session->socket(), id, EPOLLIN | EPOLLET);
  } catch (const std::exception&) {
    Warden::here().forget(session->socket(), watch);
    if (sessions.erase(id) != 0 && --per_user[sender.uid] == 0) per_user.erase(sender.uid);
    throw;
  }
  session->set_terms(entrance->terms_);
  session->welcome(0);
}

}  // namespace call

std::shared_ptr<Entrance> Port::open_entrance(std::weak_ptr<EntranceOwner> owner,
                                              const Terms& terms) {
  auto entrance = std::make_shared<Entrance>(Entrance::Private(), state_, std::move(owner), terms);
  const std::lock_guard guard(state_->lock);
  std::erase_if(state_->entrances, [](const auto& other) { return other.expired(); });
  state_->entrances.push_back(entrance);
  return entrance;
}

}  // namespace farcall
