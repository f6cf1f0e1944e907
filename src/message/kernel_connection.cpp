// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "farcall/socket.hpp"
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

// Threads that were about to use the number, or have used it last, keep the object that owns it:
// from now on it is a socket, whose other end has gone.
void KernelConnection::close() noexcept {
  try {
    const UniqueFd dead = packet_socket_pair().first;
    (void)::dup3(dead.get(), fd_.get(), O_CLOEXEC);
  } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it goes with its owner
  }
}

void KernelConnection::check(int result, const char* what) const {
  if (result == -ENOTTY && !usable()) throw SystemError(EBADF, "the connection has been closed");
  checked(result, what);
}

int KernelConnection::send(Sending& sending, Deadline deadline) {
  const KernelBuffer message(sending.message);
  const KernelBuffer room(sending.room);
  SendArguments send{};
  send.send = message.get();
  send.reply = room.get();
  send.files = reinterpret_cast<std::uintptr_t>(sending.descriptors.data());
  send.file_count = static_cast<std::uint32_t>(sending.descriptors.size());
  send.flags = sending.one_way ? STPLR_SEND_ONE_WAY : 0;
  const WithoutSignals guard(sending.keep_waiting);
  const SignalCount since = sending.keep_waiting ? SignalCount::now() : sending.since;
  if (SignalCount::now() != since) throw SystemError(EINTR, "send");
  const KernelWait wait(send.timeout_ns, deadline, since);
  check(::stplr_send_full(fd_.get(), &send), "send");
  sending.replied = send.replied;
  return static_cast<int>(send.status);
}

int KernelConnection::pulse(int priority, int code, std::int64_t value) {
  const int result = ::stplr_pulse_priority(fd_.get(), priority, code, value);
  if (result < 0 && errno == EAGAIN) return EAGAIN;
  check(result, "pulse");
  return 0;
}

// The kernel knows the channels that are told; a forked child has others than its parent.
void KernelConnection::watch_death(const std::shared_ptr<Channel>& channel, std::int64_t value) {
  // To be told is the kernel's to do; another channel would be changed by being asked for a
  // descriptor.
  if (dynamic_cast<const KernelChannel*>(channel.get()) == nullptr)
    throw SystemError(EINVAL, "the channel is not of the module");
  const std::uint64_t process = process::generation();
  std::uint64_t before = watched_by_.exchange(process);
  if (before == process) throw SystemError(EBUSY, "its death is watched already");
  const int result = ::stplr_death(fd_.get(), channel->descriptor(), value);
  if (result < 0) watched_by_.store(before);
  check(result, "watch a server's death");
}

namespace {

constexpr const char* kControl = "/dev/stplr";

// Whether it is of no file system and no device: where a server's word decides what an ioctl()
// does (FUSE), that may never come. The type is asked for without asking anybody.
bool is_kernels_own(int fd) noexcept {
  struct statx file {};
  // Not statx(2), of which a library of doors may make more.
  return ::syscall(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &file) == 0 &&
         (file.stx_mode & S_IFMT) == 0;
}

class KernelEngine final : public Engine {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "kernel"; }

  std::shared_ptr<Channel> create(std::string_view name, unsigned flags, mode_t mode) override {
    const std::string full = name.empty() ? std::string() : own_name(name, kModulesOwnUser);
    return std::make_shared<KernelChannel>(name.empty() ? nullptr : full.c_str(), flags, mode);
  }

  std::shared_ptr<Connection> open(std::string_view name, Deadline, SignalCount) override {
    int error = ENOENT;
    for (const std::string& full : full_names(name, kModulesOwnUser)) {
      const int fd = ::stplr_connect(full.c_str());
      if (fd >= 0) return std::make_shared<KernelConnection>(UniqueFd(fd));
      error = -fd;
      if (error != ENOENT) break;
    }
    throw SystemError(error, "open a name");
  }

  std::shared_ptr<Connection> adopt(UniqueFd& descriptor) override {
    struct ::stplr_info info {};
    if (!is_kernels_own(descriptor.get()) || ::stplr_info(descriptor.get(), &info) != 0 ||
        info.kind != STPLR_KIND_CONNECTION)
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
