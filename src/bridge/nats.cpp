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

constexpr std::size_t kHeaderRoom = 1024;  // of a message, for the header and what NATS adds

std::string last_error() {
  const char* const text = ::nats_GetLastError(nullptr);
  return text != nullptr ? text : "";
}

void set(natsStatus status, const char* what) {
  if (status != NATS_OK)
    throw BridgeError(fmt::format("{}: {} {}", what, ::natsStatus_GetText(status), last_error()));
}

std::string joined(const std::vector<std::string>& all) {
  return fmt::format("{}", fmt::join(all, ", "));
}

bool mentions(const std::string& text, std::string_view what) {
  return std::search(text.begin(), text.end(), what.begin(), what.end(), [](char a, char b) {
           return std::tolower(static_cast<unsigned char>(a)) ==
                  std::tolower(static_cast<unsigned char>(b));
         }) != text.end();
}

// Why there is no connection, and what to do about it.
std::string connect_advice(const Config& config, natsStatus status, const std::string& detail) {
  if (status == NATS_CONNECTION_AUTH_FAILED || mentions(detail, "authorization violation") ||
      mentions(detail, "authentication"))
    return "the cluster does not accept these credentials (--creds, or --user with "
           "--password-file)";
  const bool secure = !config.tls_ca.empty() || config.servers.front().starts_with("tls:");
  if (mentions(detail, "Expected 'PONG', got ''") && secure)
    return "the server has ended the connection: it may ask for a certificate, --tls-cert with "
           "--tls-key";
  if (mentions(detail, "issuer certificate") || mentions(detail, "verify failed") ||
      mentions(detail, "self signed") || mentions(detail, "self-signed") ||
      mentions(detail, "hostname"))
    return "TLS: the server's certificate is not signed by the authority in --tls-ca, or is for "
           "another host";
  if (status == NATS_SECURE_CONNECTION_REQUIRED || mentions(detail, "secure connection required"))
    return "the server wants TLS: give --tls-ca, and --tls-cert with --tls-key if it asks for them";
  if (status == NATS_SECURE_CONNECTION_WANTED || mentions(detail, "tls is not"))
    return "the server knows no TLS: leave out --tls-ca, or set tls in its configuration";
  if (status == NATS_SSL_ERROR || mentions(detail, "ssl") || mentions(detail, "tls"))
    return "TLS failed: does the server accept the certificate in --tls-cert, and --tls-ca name "
           "its "
           "authority?";
  if (mentions(detail, "credentials") || mentions(detail, "nkey"))
    return fmt::format("the file of --creds cannot be used: {}", config.credentials);
  return "no NATS server answers there: start nats-server, or correct --nats";
}

[[noreturn]] void connect_failed(const Config& config, natsStatus status) {
  const std::string detail = last_error();
  throw BridgeError(fmt::format("cannot connect to {}: {} ({}{}{})", joined(config.servers),
                                connect_advice(config, status, detail),
                                ::natsStatus_GetText(status), detail.empty() ? "" : ": ", detail));
}

void set_security(natsOptions* options, const Config& config) {
  if (!config.user.empty())
    set(::natsOptions_SetUserInfo(options, config.user.c_str(), config.password.c_str()), "--user");
  if (!config.credentials.empty()) {
    if (::access(config.credentials.c_str(), R_OK) != 0)
      throw BridgeError(fmt::format("cannot read the credentials in {}: {}", config.credentials,
                                    ::strerrorname_np(errno)));
    set(::natsOptions_SetUserCredentialsFromFiles(options, config.credentials.c_str(), nullptr),
        "--creds");
  }
  const bool scheme = std::any_of(config.servers.begin(), config.servers.end(),
                                  [](const std::string& url) { return url.starts_with("tls:"); });
  if (config.tls_ca.empty() && config.tls_certificate.empty() && !scheme) return;
  set(::natsOptions_SetSecure(options, true), "TLS");
  if (!config.tls_ca.empty()) {
    if (::natsOptions_LoadCATrustedCertificates(options, config.tls_ca.c_str()) != NATS_OK)
      throw BridgeError(fmt::format("--tls-ca {}: not a file of certificates in PEM ({})",
                                    config.tls_ca, last_error()));
  }
  if (!config.tls_certificate.empty() &&
      ::natsOptions_LoadCertificatesChain(options, config.tls_certificate.c_str(),
                                          config.tls_key.c_str()) != NATS_OK)
    throw BridgeError(
        fmt::format("--tls-cert {} and --tls-key {}: not a certificate and its key in PEM ({})",
                    config.tls_certificate, config.tls_key, last_error()));
}

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
  static void disconnected(natsConnection*, void* closure) { self(closure).down(); }
  static void reconnected(natsConnection*, void* closure) { self(closure).up(); }
  static void error(natsConnection*, natsSubscription*, natsStatus status, void* closure) {
    self(closure).failed(status);
  }
  static std::int64_t delay(natsConnection*, int attempts, void*) { return backoff_ms(attempts); }
  static void closed(natsConnection*, void* closure) { self(closure).ended(self(closure).told_); }
  static void complete(void* closure) { self(closure).ended(self(closure).emptied_); }
  static void message(natsConnection*, natsSubscription*, natsMsg* message, void* closure) {
    self(closure).message(Msg(message));
  }

  // Of its loop over sockets, which is ours. Called with the connection locked.
  static natsStatus attach(void** data, void* closure, natsConnection*, natsSock socket) {
    *data = closure;
    self(closure).attach(socket);
    return NATS_OK;
  }
  static natsStatus read(void* closure, bool wanted) {
    if (!wanted) self(closure).detach();
    return NATS_OK;
  }
  static natsStatus write(void* closure, bool wanted) {
    self(closure).unsent_ = wanted;
    if (wanted && !self(closure).sending_) self(closure).interrupt();
    return NATS_OK;
  }
  static natsStatus detached(void* closure) {
    self(closure).detach();
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
          std::max<std::int64_t>(static_cast<std::int64_t>(config.death_bound_s * 1000 / 4), 100)) {
  (void)::nats_Open(0);
  natsStatistics* counts = nullptr;
  set(::natsStatistics_Create(&counts), "counts");
  counts_.reset(counts);
  natsOptions* options = nullptr;
  set(::natsOptions_Create(&options), "options");
  options_.reset(options);
  std::vector<const char*> servers;
  for (const std::string& url : config.servers) servers.push_back(url.c_str());
  set(::natsOptions_SetServers(options, servers.data(), static_cast<int>(servers.size())),
      "--nats");
  std::array<char, 65> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string name = fmt::format("farcall-bridge {} {}", host.data(), ::getpid());
  set(::natsOptions_SetName(options, name.c_str()), "name");
  set_security(options, config);
  // A dead server is to be noticed well within the bound for calls. By us: to libnats, one that has
  // so much to send that its answers to pings come late is dead.
  set(::natsOptions_SetPingInterval(options, ping_.count()), "ping");
  set(::natsOptions_SetMaxPingsOut(options, std::numeric_limits<int>::max()), "ping");
  set(::natsOptions_SetTimeout(options, static_cast<std::int64_t>(config.connect_bound_s * 1000)),
      "timeout");
  set(::natsOptions_SetSendAsap(options, true), "options");
  set(::natsOptions_SetMaxReconnect(options, -1), "options");
  // What could not be sent is an error at once: nothing is published late.
  set(::natsOptions_SetReconnectBufSize(options, 0), "options");
  set(::natsOptions_SetCustomReconnectDelay(options, &Callbacks::delay, nullptr), "options");
  set(::natsOptions_SetDisconnectedCB(options, &Callbacks::disconnected, this), "options");
  set(::natsOptions_SetReconnectedCB(options, &Callbacks::reconnected, this), "options");
  set(::natsOptions_SetErrorHandler(options, &Callbacks::error, this), "options");
  set(::natsOptions_SetClosedCB(options, &Callbacks::closed, this), "options");
  set(::natsOptions_SetMaxPendingMsgs(options, 1 << 20), "options");
  set(::natsOptions_SetEventLoop(options, this, &Callbacks::attach, &Callbacks::read,
                                 &Callbacks::write, &Callbacks::detached),
      "options");
  natsConnection* connection = nullptr;
  natsStatus status = NATS_OK;
  // One in 256 of the signatures that libnats 3.4 makes is refused, whoever signs.
  for (int tries = 0; tries < 3; ++tries) {
    status = ::natsConnection_Connect(&connection, options);
    if (status != NATS_CONNECTION_AUTH_FAILED || config.credentials.empty()) break;
  }
  if (status != NATS_OK) connect_failed(config, status);
  connection_.reset(connection);
  natsInbox* inbox = nullptr;
  set(::natsInbox_Create(&inbox), "inbox");
  prefix_ = std::string(inbox) + ".";
  ::natsInbox_Destroy(inbox);
}

Connection::~Connection() { close(); }

void Connection::listen(Events events) {
  events_ = std::move(events);
  natsSubscription* subscription = nullptr;
  set(::natsConnection_Subscribe(&subscription, connection_.get(), inbox("*").c_str(),
                                 &Callbacks::message, this),
      "subscribe to replies");
  inbox_.reset(subscription);
  set(::natsSubscription_SetOnCompleteCB(subscription, &Callbacks::complete, this), "subscribe");
  set(::natsSubscription_SetPendingLimits(subscription, -1, -1), "limits");
  if (reads_ == Reads::itself) first_ = std::thread([this] { read_first(); });
}

std::uint64_t Connection::came() noexcept {
  std::uint64_t came = 0;
  if (::natsConnection_GetStats(connection_.get(), counts_.get()) == NATS_OK)
    ::natsStatistics_GetCounts(counts_.get(), &came, nullptr, nullptr, nullptr, nullptr);
  int pending = 0;
  std::int64_t handled = 0;
  if (::natsSubscription_GetStats(inbox_.get(), &pending, nullptr, nullptr, nullptr, &handled,
                                  nullptr) == NATS_OK)
    came -= static_cast<std::uint64_t>(pending + handled);
  return came;
}

void Connection::end_waits() noexcept {
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
    if (std::exchange(closed_, true) || !connection_) return;
  }
  if (first_.joinable()) first_.join();
  ::natsConnection_Close(connection_.get());
  // Threads of libnats may still be at it; these are their last words. Without them, which would be
  // an error of libnats, the process must not hang for ever.
  std::unique_lock guard(lock_);
  changed_.wait_for(guard, std::chrono::seconds(10),
                    [this] { return told_ && (emptied_ || !inbox_); });
}

void Connection::ended(bool& what) {
  const std::lock_guard guard(lock_);
  what = true;
  changed_.notify_all();
}

bool Connection::wait_up() {
  std::unique_lock guard(lock_);
  const auto until = down_since_ + patience_;
  while (!up_ && !closing_) {
    // The word that it is back may have come before the one that it is away.
    if (::natsConnection_Status(connection_.get()) == NATS_CONN_STATUS_CONNECTED) up_ = true;
    if (up_ || Clock::now() >= until) break;
    changed_.wait_until(guard, std::min(until, Clock::now() + std::chrono::milliseconds(100)));
  }
  return up_ && !closing_;
}

Subscription Connection::subscribe_queue(const std::string& subject) {
  natsSubscription* made = nullptr;
  const natsStatus status = ::natsConnection_QueueSubscribeSync(&made, connection_.get(),
                                                                full(subject).c_str(), "farcall");
  if (status != NATS_OK)
    throw BridgeError(fmt::format("cannot subscribe to {}: {} {}", full(subject),
                                  ::natsStatus_GetText(status), last_error()));
  Subscription subscription(made);
  set(::natsSubscription_SetPendingLimits(made, -1, -1), "limits");
  return subscription;
}

void Connection::confirm() {
  const natsStatus status = ::natsConnection_FlushTimeout(
      connection_.get(), std::chrono::duration_cast<std::chrono::milliseconds>(patience_).count());
  // Errors are told by a thread of their own.
  const char* text = nullptr;
  const natsStatus last = ::natsConnection_GetLastError(connection_.get(), &text);
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
  const std::int64_t most = ::natsConnection_GetMaxPayload(connection_.get());
  return most > std::int64_t{2 * kHeaderRoom} ? static_cast<std::size_t>(most) - kHeaderRoom
                                              : kHeaderRoom;
}

std::string Connection::server() const {
  std::array<char, 256> url{};
  if (!up_ ||
      ::natsConnection_GetConnectedUrl(connection_.get(), url.data(), url.size()) != NATS_OK)
    return {};
  return url.data();
}

void Connection::down() {
  const std::lock_guard guard(lock_);
  if (up_.exchange(false)) down_since_ = Clock::now();
}

void Connection::up() {
  {
    const std::lock_guard guard(lock_);
    up_ = true;
    ++reconnects_;
  }
  changed_.notify_all();
}

void Connection::failed(natsStatus status) {
  const char* text = nullptr;
  ::natsConnection_GetLastError(connection_.get(), &text);
  const std::string what = text != nullptr ? text : ::natsStatus_GetText(status);
  if (status != NATS_NOT_PERMITTED && !mentions(what, "permissions violation")) return;
  {
    const std::lock_guard guard(lock_);
    refusal_ = what;
  }
  if (events_.publish_denied && mentions(what, "publish")) events_.publish_denied(subject_in(what));
}

}  // namespace farcall::bridge
