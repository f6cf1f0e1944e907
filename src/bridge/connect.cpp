// SPDX-License-Identifier: Apache-2.0
#include "bridge/connect.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "bridge/nats.hpp"
#include "interpose/next.hpp"

namespace farcall::bridge {
namespace {

class Attempt;
thread_local constinit Attempt* attempt = nullptr;  // of this thread

// The calling thread connects to a server. Libnats 3.4 waits without end for one that accepts it
// and then stops, in its handshake or in TLS's; so the socket is shut down when the time is over,
// or the bridge ends. What libnats connects to it says to connect(2), below.
class Attempt {
 public:
  // `closing` changes with `lock` held, and then `changed` is notified.
  Attempt(std::mutex& lock, std::condition_variable& changed, const std::atomic<bool>& closing,
          Clock::duration most)
      : lock_(lock), changed_(changed), closing_(closing), watch_([this, most] { watch(most); }) {
    attempt = this;
  }
  ~Attempt() {
    attempt = nullptr;
    {
      const std::lock_guard guard(lock_);
      over_ = true;
    }
    changed_.notify_all();
    watch_.join();
    if (socket_ >= 0) ::close(socket_);
  }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  // That is the socket now. False, with errno, where it must not be connected.
  bool takes(int socket) noexcept {
    // One of our own: libnats may close its descriptor, and another file get the number.
    const int own = ::fcntl(socket, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return false;
    const std::lock_guard guard(lock_);
    if (socket_ >= 0) ::close(socket_);
    socket_ = own;
    errno = ETIMEDOUT;
    return !ended_;
  }
  // Whether it was ended for the server has let its time pass.
  [[nodiscard]] bool silent() const {
    const std::lock_guard guard(lock_);
    return ended_;
  }

 private:
  void watch(Clock::duration most) {
    std::unique_lock guard(lock_);
    changed_.wait_for(guard, most, [this] { return over_ || closing_; });
    if (over_) return;
    ended_ = true;
    if (socket_ >= 0) ::shutdown(socket_, SHUT_RDWR);
  }

  std::mutex& lock_;  // protects what follows
  std::condition_variable& changed_;
  const std::atomic<bool>& closing_;
  int socket_ = -1;
  bool over_ = false;
  bool ended_ = false;
  std::thread watch_;
};

std::string joined(const std::vector<std::string>& all) {
  return fmt::format("{}", fmt::join(all, ", "));
}

std::string tls_advice(const std::string& detail, bool has_authority) {
  if (mentions(detail, "expired") || mentions(detail, "not yet valid"))
    return "TLS: the server's certificate has expired, or is not valid yet";
  if (mentions(detail, "mismatch"))
    return "TLS: the server's certificate is for another host: name in --nats the one that it is "
           "for";
  if (mentions(detail, "issuer certificate") || mentions(detail, "verify failed") ||
      mentions(detail, "self signed") || mentions(detail, "self-signed") ||
      mentions(detail, "hostname"))
    return has_authority
               ? "TLS: the server's certificate is not signed by the authority in --tls-ca, or is "
                 "for another host"
               : "TLS: no authority that this machine knows has signed the server's certificate: "
                 "give the one that has in --tls-ca";
  return {};
}

// Why there is no connection, and what to do about it.
std::string connect_advice(const Config& config, const Refusal& refusal) {
  const auto& [status, detail, silent] = refusal;
  if (silent)
    return "the server takes connections, and does not answer on them: it hangs, or is no server "
           "of NATS";
  if (status == NATS_CONNECTION_AUTH_FAILED || mentions(detail, "authorization violation") ||
      mentions(detail, "authentication"))
    return "the cluster does not accept these credentials (--creds, or --user with "
           "--password-file)";
  const bool secure = !config.tls_ca.empty() || config.servers.front().starts_with("tls:");
  if (mentions(detail, "Expected 'PONG', got ''") && secure)
    return "the server has ended the connection: it may ask for a certificate, --tls-cert with "
           "--tls-key";
  if (std::string advice = tls_advice(detail, !config.tls_ca.empty()); !advice.empty())
    return advice;
  if (status == NATS_SECURE_CONNECTION_REQUIRED || mentions(detail, "secure connection required"))
    return "the server wants TLS: give --tls-ca, and --tls-cert with --tls-key if it asks for them";
  if (status == NATS_SECURE_CONNECTION_WANTED || mentions(detail, "tls is not"))
    return "the server knows no TLS: leave out --tls-ca, or set tls in its configuration";
  if (status == NATS_SSL_ERROR || mentions(detail, "ssl") || mentions(detail, "tls"))
    return "TLS failed: does the server accept the certificate in --tls-cert, and --tls-ca name "
           "its authority?";
  if (mentions(detail, "credentials") || mentions(detail, "nkey"))
    return fmt::format("the file of --creds cannot be used: {}", config.credentials);
  return "no NATS server answers there: start nats-server, or correct --nats";
}

}  // namespace

std::string last_error() {
  const char* const text = ::nats_GetLastError(nullptr);
  return text != nullptr ? text : "";
}

void set(natsStatus status, const char* what) {
  if (status != NATS_OK)
    throw BridgeError(fmt::format("{}: {} {}", what, ::natsStatus_GetText(status), last_error()));
}

bool mentions(const std::string& text, std::string_view what) {
  return std::search(text.begin(), text.end(), what.begin(), what.end(), [](char a, char b) {
           return std::tolower(static_cast<unsigned char>(a)) ==
                  std::tolower(static_cast<unsigned char>(b));
         }) != text.end();
}

void connect_failed(const Config& config, const Refusal& refusal) {
  throw BridgeError(fmt::format(
      "cannot connect to {}: {} ({}{}{})", joined(config.servers), connect_advice(config, refusal),
      ::natsStatus_GetText(refusal.status), refusal.detail.empty() ? "" : ": ", refusal.detail));
}

void set_security(natsOptions* options, const Config& config) {
  if (!config.user.empty())
    set(::natsOptions_SetUserInfo(options, config.user.c_str(), config.password.c_str()), "--user");
  if (!config.credentials.empty())
    set(::natsOptions_SetUserCredentialsFromFiles(options, config.credentials.c_str(), nullptr),
        "--creds");
  const bool scheme = std::any_of(config.servers.begin(), config.servers.end(),
                                  [](const std::string& url) { return url.starts_with("tls:"); });
  if (config.tls_ca.empty() && config.tls_certificate.empty() && !scheme) return;
  set(::natsOptions_SetSecure(options, true), "TLS");
  if (!config.tls_ca.empty() &&
      ::natsOptions_LoadCATrustedCertificates(options, config.tls_ca.c_str()) != NATS_OK)
    throw ConfigurationError(fmt::format("--tls-ca {}: not a file of certificates in PEM ({})",
                                         config.tls_ca, last_error()));
  if (!config.tls_certificate.empty() &&
      ::natsOptions_LoadCertificatesChain(options, config.tls_certificate.c_str(),
                                          config.tls_key.c_str()) != NATS_OK)
    throw ConfigurationError(
        fmt::format("--tls-cert {} and --tls-key {}: not a certificate and its key in PEM ({})",
                    config.tls_certificate, config.tls_key, last_error()));
}

// Null where it does not let us in within its time.
natsConnection* Connection::connect_to(const std::string& url, std::chrono::milliseconds most,
                                       Refusal& refusal) {
  const char* const one = url.c_str();
  set(::natsOptions_SetServers(options_.get(), const_cast<const char**>(&one), 1), "--nats");
  set(::natsOptions_SetTimeout(options_.get(), most.count()), "timeout");
  natsConnection* made = nullptr;
  const Attempt watched(lock_, changed_, closing_, most);
  // One in 256 of the signatures that libnats 3.4 makes is refused, whoever signs.
  for (int tries = 0; tries < 3; ++tries) {
    refusal.status = ::natsConnection_Connect(&made, options_.get());
    if (refusal.status != NATS_CONNECTION_AUTH_FAILED || !signs_) break;
  }
  if (refusal.status == NATS_OK) return made;
  refusal.detail = last_error();
  refusal.silent = watched.silent();
  return nullptr;
}

// Null where none of the servers can be reached. Each has its own time: one that hangs does not
// keep us from the others.
std::shared_ptr<Link> Connection::connect(std::chrono::milliseconds most, Refusal& refusal) {
  std::vector<std::string> servers;
  {
    const std::lock_guard guard(lock_);
    servers = servers_;
    for (const std::string& url : told_of_)
      if (std::find(servers.begin(), servers.end(), url) == servers.end()) servers.push_back(url);
  }
  // So that bridges spread over the cluster.
  std::shuffle(servers.begin(), servers.end(),
               std::minstd_rand(static_cast<unsigned>(::nats_NowInNanoSeconds())));
  for (const std::string& url : servers) {
    if (closing_) break;
    Refusal by_this;
    natsConnection* const made = connect_to(url, most, by_this);
    if (made == nullptr) {
      if (refusal.status == NATS_NO_SERVER) refusal = std::move(by_this);
      continue;
    }
    auto link = std::make_shared<Link>();
    link->attached = std::move(attached_);
    link->connection.reset(made);
    link->number = ++links_;
    know(made);
    return link;
  }
  return nullptr;
}

}  // namespace farcall::bridge

// In front of the C library's, for libnats.
extern "C" [[gnu::visibility("default")]] int connect(int fd, const sockaddr* address,
                                                      socklen_t size) {
  if (auto* const watched = farcall::bridge::attempt; watched != nullptr && !watched->takes(fd))
    return -1;
  return farcall::interpose::next<"connect", decltype(::connect)>()(fd, address, size);
}
