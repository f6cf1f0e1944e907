// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "message/kernel.hpp"
#include "message/names.hpp"

namespace farcall::message {

namespace {

// No signal ends what the thread does meanwhile.
class WithoutSignals {
 public:
  explicit WithoutSignals(bool on) : on_(on) {
    if (!on_) return;
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~WithoutSignals() {
    if (on_) ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSignals(const WithoutSignals&) = delete;
  WithoutSignals& operator=(const WithoutSignals&) = delete;

 private:
  const bool on_;
  sigset_t before_{};
};

}  // namespace

int KernelConnection::send(Sending& sending, Deadline deadline) {
  const KernelBuffer message(sending.message);
  const KernelBuffer room(sending.room);
  SendArguments send{};
  send.send = message.get();
  send.reply = room.get();
  send.timeout_ns = time_left(deadline);
  send.files = reinterpret_cast<std::uintptr_t>(sending.descriptors.data());
  send.file_count = static_cast<std::uint32_t>(sending.descriptors.size());
  send.flags = sending.one_way ? STPLR_SEND_ONE_WAY : 0;
  const WithoutSignals guard(sending.keep_waiting);
  checked(::stplr_send_full(fd_.get(), &send), "send");
  sending.replied = send.replied;
  return static_cast<int>(send.status);
}

void KernelConnection::pulse(int priority, int code, std::int64_t value) {
  const PulseArguments pulse{.code = code, .priority = priority, .value = value};
  if (::ioctl(fd_.get(), STPLR_PULSE, &pulse) != 0) throw_errno("pulse");
}

void KernelConnection::watch_death(const std::shared_ptr<Channel>& channel, std::int64_t value) {
  checked(::stplr_death(fd_.get(), channel->descriptor(), value), "watch a server's death");
}

namespace {

constexpr const char* kControl = "/dev/stplr";

class KernelEngine final : public Engine {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "kernel"; }

  std::shared_ptr<Channel> create(std::string_view name, unsigned flags, mode_t mode) override {
    const std::string full = name.empty() ? std::string() : own_name(name);
    return std::make_shared<KernelChannel>(name.empty() ? nullptr : full.c_str(), flags, mode);
  }

  std::shared_ptr<Connection> open(std::string_view name, Deadline) override {
    int error = ENOENT;
    for (const std::string& full : full_names(name)) {
      const int fd = ::stplr_connect(full.c_str());
      if (fd >= 0) return std::make_shared<KernelConnection>(UniqueFd(fd));
      error = -fd;
      if (error != ENOENT) break;
    }
    throw SystemError(error, "open a name");
  }

  std::shared_ptr<Connection> adopt(UniqueFd& descriptor) override {
    struct ::stplr_info info {};
    if (::stplr_info(descriptor.get(), &info) != 0 || info.kind != STPLR_KIND_CONNECTION)
      return nullptr;
    return std::make_shared<KernelConnection>(std::move(descriptor));
  }
};

}  // namespace

Engine* kernel_engine() {
  static constinit KernelEngine engine;
  const UniqueFd control(::open(kControl, O_RDWR | O_CLOEXEC));
  struct ::stplr_info info {};
  if (!control || ::stplr_info(control.get(), &info) != 0) return nullptr;
  return info.interface == STPLR_INTERFACE ? &engine : nullptr;
}

}  // namespace farcall::message
