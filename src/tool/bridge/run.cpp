// SPDX-License-Identifier: Apache-2.0
//
// farcall bridge: serves names until a signal ends it, and tells systemd about it.
#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "tool/bridge/bridge.hpp"
#include "tool/end_signals.hpp"
#include "tool/say.hpp"

namespace farcall::tool::bridge {
namespace {

using farcall::bridge::Bridge;
using farcall::bridge::Config;

constexpr std::chrono::seconds kDrain{5};
constexpr std::chrono::seconds kPatience{3};  // and then

// sd_notify(3), where there is somebody to notify.
void notify(const std::string& state) {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::strlen(path);
  if (length == 0 || length >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  (void)::sendto(fd, state.data(), state.size(), MSG_NOSIGNAL,
                 reinterpret_cast<const sockaddr*>(&address),
                 static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length));
  ::close(fd);
}

// Waits for a signal that ends the process, from the beginning on: who starts may have to wait for
// a server of the cluster, and nobody is to wait for that with it.
class End {
 public:
  End() {
    std::thread([this] {
      signals_.wait();
      notify("STOPPING=1");
      const std::lock_guard guard(lock_);
      if (!waits_) ::_exit(kSuccess);
      came_ = true;
      changed_.notify_all();
    }).detach();
  }
  // From now on the process ends when it has waited.
  void will_wait() {
    const std::lock_guard guard(lock_);
    waits_ = true;
  }
  void wait() {
    std::unique_lock guard(lock_);
    changed_.wait(guard, [this] { return came_; });
  }

 private:
  EndSignals signals_;
  std::mutex lock_;  // protects what follows
  std::condition_variable changed_;
  bool waits_ = false;
  bool came_ = false;
};

// Whoever is still waited for then: a local server may keep the thread that calls it, whatever it
// is told; a server of the cluster may take its time to be connected to.
void end_within(std::chrono::seconds time) {
  std::thread([time] {
    std::this_thread::sleep_for(time);
    say("farcall: ended without waiting any longer for calls in progress\n");
    ::_exit(kSuccess);
  }).detach();
}

void replace(std::string& into, const std::string& with) {
  if (!with.empty()) into = with;
}

Config configuration(const Options& options) {
  Config config;
  if (!options.config.empty()) config = farcall::bridge::read_config(options.config);
  if (!options.servers.empty()) config.servers = options.servers;
  replace(config.credentials, options.credentials);
  replace(config.user, options.user);
  replace(config.password, options.password);
  if (!options.password_file.empty())
    config.password = farcall::bridge::read_password(options.password_file);
  replace(config.tls_ca, options.tls_ca);
  replace(config.tls_certificate, options.tls_certificate);
  replace(config.tls_key, options.tls_key);
  replace(config.domain, options.domain);
  replace(config.status, options.status_name);
  // What is no number is said to be wrong later.
  if (!(options.death_bound_s < 0)) config.death_bound_s = options.death_bound_s;
  if (!(options.connect_bound_s < 0)) config.connect_bound_s = options.connect_bound_s;
  for (const std::string& each : options.exports)
    config.names.push_back(farcall::bridge::exported_name(each));
  for (const std::string& each : options.imports)
    config.names.push_back(farcall::bridge::imported_name(each));
  return config;
}

void serve(const Config& config) {
  static End& end = *new End;  // its thread goes on until the process ends
  Bridge bridge(config, [] { end.will_wait(); });
  const std::string served = fmt::format(
      "{}", config.names.size() == 1 ? "1 name is served"
                                     : fmt::format("{} names are served", config.names.size()));
  notify("READY=1\nSTATUS=" + served);
  say("farcall: {}\n", served);
  end.wait();
  end_within(kDrain + kPatience);
  bridge.drain(std::chrono::duration<double>(kDrain).count());
  end_within(kPatience);
}

}  // namespace

ExitCode run(const Options& options) {
  // Over the module clients of channels that are interrupted wait for an answer, however long.
  ::setenv("FARCALL_ENGINE", "shared", 0);
  Config config;
  try {
    config = configuration(options);
    farcall::bridge::validate(config);
  } catch (const farcall::bridge::BridgeError& error) {
    say("farcall: {}\n", error.what());
    return kUsage;
  }
  ::signal(SIGPIPE, SIG_IGN);
  try {
    if (options.check) {
      farcall::bridge::check(config);
      fmt::print("the configuration is right, and the cluster permits it\n");
    } else {
      serve(config);
    }
  } catch (const farcall::bridge::ConfigurationError& error) {
    say("farcall: {}\n", error.what());
    return kUsage;
  }
  return kSuccess;
}

}  // namespace farcall::tool::bridge
