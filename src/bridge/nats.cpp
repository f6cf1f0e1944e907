// SPDX-License-Identifier: Apache-2.0
#include "bridge/nats.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

namespace farcall::bridge {
namespace {

constexpr std::size_t kMostDiscarded = 64;  // messages, before they are freed

constinit std::mutex discarded_lock;  // protects what follows
constinit std::array<natsMsg*, kMostDiscarded> discarded{};
constinit std::size_t discarded_count = 0;

// For a server to let in who connects to it.
constexpr std::chrono::milliseconds kLeastToConnect{1000};
constexpr std::chrono::milliseconds kMostToConnect{2000};

constexpr std::size_t kHeaderRoom = 1024;  // of a message, for the header and what NATS adds

// Where `Permissions Violation for Publish to "a.b"` says it.
std::string subject_in(const std::string& text) {
  const std::size_t begin = text.find('"');
  const std::size_t end = text.rfind('"');
  return begin < end ? text.substr(begin + 1, end - begin - 1) : std::string();
}

// Between two attempts: 50 ms, and twice as long each time, up to 2 s, less a random part.
std::int64_t backoff_ms(int attempts) {
  const std::int64_t most = std::min<std::int64_t>(2000, 50LL << std::min(attempts, 6));
  return most / 2 + ::nats_Now() % (most / 2 + 1);
}

}  // namespace

void discard(natsMsg* message) noexcept {
  constexpr int kSmall = 4096;  // bytes
  if (::natsMsg_GetDataLength(message) > kSmall) return ::natsMsg_Destroy(message);
  std::array<natsMsg*, kMostDiscarded> all{};
  {
    const std::lock_guard guard(discarded_lock);
    discarded[discarded_count++] = message;
    if (discarded_count < kMostDiscarded) return;
    all = discarded;
    discarded_count = 0;
  }
  for (natsMsg* const each : all) ::natsMsg_Destroy(each);
}

Event::Event() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_ < 0)
    throw BridgeError(fmt::format("cannot make an eventfd: {}", ::strerrorname_np(errno)));
}

struct Connection::Callbacks {
  static Connection& self(void* closure) { return *static_cast<Connection*>(closure); }
  static void error(natsConnection* connection, natsSubscription*, natsStatus status,
                    void* closure) {
    self(closure).failed(connection, status);
  }
  static void closed(natsConnection*, void* closure) { self(closure).ended(self(closure).told_); }
  static void complete(void* closure) { self(closure).ended(self(closure).emptied_); }
  static void discovered(natsConnection* connection, void* closure) {
    self(closure).know(connection);
  }
  static void message(natsConnection*, natsSubscription* subscription, natsMsg* message,
                      void* closure) {
    self(closure).message(subscription, Msg(message));
  }

  // Of its loop over sockets, which is ours. Called with the connection locked.
  static natsStatus attach(void** data, void* closure, natsConnection*, natsSock socket) {
    *data = self(closure).attach(socket);
    return *data != nullptr ? NATS_OK : NATS_NO_MEMORY;
  }
  static Link::Attached& of(void* data) { return *static_cast<Link::Attached*>(data); }
  static natsStatus read(void* data, bool wanted) {
    if (!wanted) of(data).owner.detach(of(data).socket);
    return NATS_OK;
  }
  static natsStatus write(void* data, bool wanted) {
    Connection& owner = of(data).owner;
    if (owner.sockets_ != of(data).socket) return NATS_OK;
    owner.unsent_ = wanted;
    if (wanted && !owner.sending_) owner.interrupt();
    return NATS_OK;
  }
  // Without that lock: another socket may be attached already.
  static natsStatus detached(void* data) {
    of(data).owner.detach(of(data).socket);
    return NATS_OK;
  }
};

// Threads that wait for a lock do not spin: there are more of them than processors.
Connection::Connection(const Config& config, Reads reads)
    : domain_(config.domain),
      reads_(reads),
      patience_(std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(config.connect_bound_s))),
      ping_(
          std::max<std::int64_t>(static_cast<std::int64_t>(config.death_bound_s * 1000 / 4), 100)),
      again_(std::clamp(kPings * ping_, kLeastToConnect, kMostToConnect)),
      signs_(!config.credentials.empty()),
      most_pending_(std::clamp<std::uint64_t>(config.memory_mib << 20, kLongest,
                                              std::numeric_limits<int>::max())),
      servers_(config.servers) {
  (void)::nats_Open(0);
  natsStatistics* counts = nullptr;
  set(::natsStatistics_Create(&counts), "counts");
  counts_.reset(counts);
  natsOptions* options = nullptr;
  set(::natsOptions_Create(&options), "options");
  options_.reset(options);
  std::array<char, 65> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string name = fmt::format("farcall-bridge {} {}", host.data(), ::getpid());
  set(::natsOptions_SetName(options, name.c_str()), "name");
  set_security(options, config);
  // A dead server is to be noticed well within the bound for calls. By us: to libnats, one that has
  // so much to send that its answers to pings come late is dead.
  set(::natsOptions_SetPingInterval(options, ping_.count()), "ping");
  set(::natsOptions_SetMaxPingsOut(options, std::numeric_limits<int>::max()), "ping");
  set(::natsOptions_SetSendAsap(options, true), "options");
  set(::natsOptions_SetAllowReconnect(options, false), "options");
  set(::natsOptions_SetDiscoveredServersCB(options, &Callbacks::discovered, this), "options");
  set(::natsOptions_SetErrorHandler(options, &Callbacks::error, this), "options");
  set(::natsOptions_SetClosedCB(options, &Callbacks::closed, this), "options");
  set(::natsOptions_SetMaxPendingMsgs(options, 1 << 20), "options");
  set(::natsOptions_SetEventLoop(options, this, &Callbacks::attach, &Callbacks::read,
                                 &Callbacks::write, &Callbacks::detached),
      "options");
  natsInbox* inbox = nullptr;
  set(::natsInbox_Create(&inbox), "inbox");
  prefix_ = config.inbox + std::string(inbox).substr(std::string_view("_INBOX").size()) + ".";
  ::natsInbox_Destroy(inbox);
  Refusal refusal;
  link_ = connect(
      std::max(std::chrono::duration_cast<std::chrono::milliseconds>(patience_), kLeastToConnect),
      refusal);
  if (!link_) connect_failed(config, refusal);
}

Connection::~Connection() { close(); }

// The servers of the cluster that this one tells of. One that is alone now tells of none; the
// others may be back when it is lost.
void Connection::know(natsConnection* connection) {
  char** urls = nullptr;
  int count = 0;
  if (::natsConnection_GetDiscoveredServers(connection, &urls, &count) != NATS_OK) return;
  const std::lock_guard guard(lock_);
  if (count > 0) told_of_.assign(urls, urls + count);
  for (int i = 0; i < count; ++i) ::free(urls[i]);
  ::free(urls);
}

void Connection::listen(Events events) {
  events_ = std::move(events);
  listen_on(*link_);
  keeper_ = std::thread([this] { keep_connected(); });
}

void Connection::listen_on(Link& link) {
  natsSubscription* subscription = nullptr;
  set(::natsConnection_Subscribe(&subscription, link.connection.get(), inbox("*").c_str(),
                                 &Callbacks::message, this),
      "subscribe to replies");
  link.inbox.reset(subscription);
  set(::natsSubscription_SetOnCompleteCB(subscription, &Callbacks::complete, this), "subscribe");
  {
    const std::lock_guard guard(lock_);
    ++inboxes_;
  }
  limit_pending(subscription);
}

// What is beyond is dropped. What comes too fast for a bridge is refused before it gets so far.
void Connection::limit_pending(natsSubscription* subscription) const {
  constexpr std::uint64_t kLeast = 1024;  // bytes that a message costs, at least
  set(::natsSubscription_SetPendingLimits(subscription, static_cast<int>(most_pending_ / kLeast),
                                          static_cast<int>(most_pending_)),
      "limits");
}

void Connection::keep_connected() noexcept {
  const auto lost = [this] { return closing_ || told_ == links_; };
  for (int attempts = 0; !closing_;) {
    if (reads_ == Reads::itself) read_first();
    {
      std::unique_lock guard(lock_);
      changed_.wait(guard, lost);
    }
    down(link().get());
    {
      std::unique_lock guard(lock_);
      changed_.wait_for(guard, std::chrono::milliseconds(backoff_ms(attempts)),
                        [this] { return closing_.load(); });
    }
    if (closing_) return;
    bool made = false;
    try {
      Refusal refusal;
      auto fresh = connect(again_, refusal);
      made = fresh != nullptr;
      if (made) {
        listen_on(*fresh);
        const std::lock_guard guard(link_lock_);
        reading_ = false;
        link_.swap(fresh);
      }
    } catch (const std::exception&) {
      // It is closed already, or memory is short.
      continue;
    }
    attempts = made ? 0 : attempts + 1;
    if (made) up();
  }
}

std::uint64_t Connection::came() noexcept {
  const auto link = this->link();
  if (counted_ != link->number) came_before_ = came_;
  counted_ = link->number;
  std::uint64_t came = 0;
  if (::natsConnection_GetStats(link->connection.get(), counts_.get()) == NATS_OK)
    ::natsStatistics_GetCounts(counts_.get(), &came, nullptr, nullptr, nullptr, nullptr);
  int pending = 0;
  std::int64_t handled = 0;
  if (::natsSubscription_GetStats(link->inbox.get(), &pending, nullptr, nullptr, nullptr, &handled,
                                  nullptr) == NATS_OK)
    came -= static_cast<std::uint64_t>(pending + handled);
  came_ = std::max(came_, came_before_ + came);
  return came_;
}

void Connection::hurry() noexcept {
  {
    const std::lock_guard guard(lock_);
    hurried_ = true;
  }
  changed_.notify_all();
  const std::lock_guard guard(send_lock_);
  room_.notify_all();
}

void Connection::end_waits() noexcept {
  hurry();
  {
    std::unique_lock lock(send_lock_);
    room_.wait_for(lock, std::chrono::seconds(1), [this] {
      return !up_ || closing_ || (!sending_ && queue_.empty() && !unsent_);
    });
  }
  {
    const std::lock_guard guard(lock_);
    closing_ = true;
  }
  changed_.notify_all();
  interrupt();
  const std::lock_guard guard(send_lock_);
  room_.notify_all();
}

void Connection::close() noexcept {
  end_waits();
  {
    const std::lock_guard guard(lock_);
    if (std::exchange(closed_, true) || !link_) return;
  }
  if (keeper_.joinable()) keeper_.join();
  ::natsConnection_Close(link_->connection.get());
  // Threads of libnats may still be at it; these are their last words. Without them, which would be
  // an error of libnats, the process must not hang for ever.
  std::unique_lock guard(lock_);
  changed_.wait_for(guard, std::chrono::seconds(10),
                    [this] { return told_ == links_ && emptied_ == inboxes_; });
}

void Connection::ended(unsigned& what) {
  const std::lock_guard guard(lock_);
  ++what;
  changed_.notify_all();
}

bool Connection::wait_up(Clock::time_point deadline) {
  std::unique_lock guard(lock_);
  const auto until = std::min(down_since_ + patience_, deadline);
  while (!up_ && !hurried_) {
    if (Clock::now() >= until) break;
    changed_.wait_until(guard, until);
  }
  return up_ && !closing_;
}

Subscription Connection::subscribe_queue(const std::string& subject, std::uint64_t& link_number) {
  const auto link = this->link();
  link_number = link->number;
  natsSubscription* made = nullptr;
  const natsStatus status = ::natsConnection_QueueSubscribeSync(&made, link->connection.get(),
                                                                full(subject).c_str(), "farcall");
  if (status != NATS_OK)
    throw BridgeError(fmt::format("cannot subscribe to {}: {} {}", full(subject),
                                  ::natsStatus_GetText(status), last_error()));
  Subscription subscription(made);
  limit_pending(made);
  return subscription;
}

void Connection::confirm() {
  const auto link = this->link();
  const natsStatus status = ::natsConnection_FlushTimeout(
      link->connection.get(),
      std::chrono::duration_cast<std::chrono::milliseconds>(patience_).count());
  // Errors are told by a thread of their own.
  const char* text = nullptr;
  const natsStatus last = ::natsConnection_GetLastError(link->connection.get(), &text);
  std::string refusal;
  {
    const std::lock_guard guard(lock_);
    refusal = refusal_;
  }
  if (refusal.empty() && last == NATS_NOT_PERMITTED && text != nullptr) refusal = text;
  if (!refusal.empty())
    throw BridgeError(
        fmt::format("the cluster does not permit it: {} (let this user publish and subscribe "
                    "there: permissions "
                    "in the server's configuration; replies come to _INBOX.>)",
                    refusal));
  if (status != NATS_OK)
    throw BridgeError(fmt::format("the cluster does not answer: {} {}",
                                  ::natsStatus_GetText(status), last_error()));
}

std::size_t Connection::longest() const noexcept {
  const std::int64_t most = ::natsConnection_GetMaxPayload(link()->connection.get());
  return most > std::int64_t{2 * kHeaderRoom} ? static_cast<std::size_t>(most) - kHeaderRoom
                                              : kHeaderRoom;
}

std::string Connection::server() const {
  std::array<char, 256> url{};
  if (!up_ ||
      ::natsConnection_GetConnectedUrl(link()->connection.get(), url.data(), url.size()) != NATS_OK)
    return {};
  return url.data();
}

// That link is no good, if it is still the one.
void Connection::down(const Link* which) {
  {
    const std::lock_guard guard(lock_);
    if (link().get() != which || !up_.exchange(false)) return;
    // Some time is left for another server.
    const Clock::time_point now = Clock::now();
    down_since_ = std::max(std::min(now, silent_since_.load()), now - patience_ * 3 / 4);
  }
  if (events_.lost) events_.lost();
}

void Connection::up() {
  {
    const std::lock_guard guard(lock_);
    up_ = true;
    silent_since_ = Clock::time_point::max();
  }
  changed_.notify_all();
  if (events_.linked) events_.linked();
}

void Connection::failed(natsConnection* connection, natsStatus status) {
  const char* text = nullptr;
  ::natsConnection_GetLastError(connection, &text);
  const std::string what = text != nullptr ? text : ::natsStatus_GetText(status);
  if (status != NATS_NOT_PERMITTED && !mentions(what, "permissions violation")) return;
  {
    const std::lock_guard guard(lock_);
    refusal_ = what;
  }
  if (events_.publish_denied && mentions(what, "publish")) events_.publish_denied(subject_in(what));
}

}  // namespace farcall::bridge
