// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/process_vm.hpp"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>
#include <cstring>
#include <string>

#include "channel/descriptor.hpp"
#include "channel/no_tracing.hpp"
#include "channel/socket.hpp"
#include "farcall/error.hpp"

namespace farcall::channel {
namespace {

// What the two ends send each other; one packet each.
//
//   writer                       reader
//                            <-  hello          when it is opened: who it is
//   offer(address, length)   ->                 copies
//                            <-  done(errno)    the writer may go on; EPERM: allow me, offer again
//   finish                   ->
struct Packet {
  enum Kind : std::uint64_t { hello = 1, offer, done, finish };
  Kind kind;
  std::uint64_t address;
  std::uint64_t length;
  std::int64_t error;
};

struct FromWhom {
  Packet packet;
  pid_t pid;  // as the kernel says
};

// The next packet; std::nullopt where the other end has gone.
std::optional<FromWhom> receive_packet(int socket) {
  FromWhom result{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred))> control{};
  iovec piece{.iov_base = &result.packet, .iov_len = sizeof result.packet};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t size = 0;
  // ECONNRESET: the other end closed without reading all we sent. Said once, and before what it
  // sent.
  do size = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  while (size < 0 && (errno == EINTR || errno == ECONNRESET));
  if (size == 0) return std::nullopt;
  if (size < 0) throw_errno("recvmsg");
  if (size != sizeof result.packet) throw SystemError(EPROTO, "receive: not a packet of ours");
  for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr;
       item = CMSG_NXTHDR(&message, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_CREDENTIALS) continue;
    ucred sender{};
    std::memcpy(&sender, CMSG_DATA(item), sizeof sender);
    result.pid = sender.pid;
  }
  return result;
}

bool send_packet(int socket, const Packet& packet) noexcept {
  return uninterrupted([&] { return ::send(socket, &packet, sizeof packet, MSG_NOSIGNAL); }) >= 0;
}

constexpr const char* kRefused =
    "process_vm_readv: the kernel does not let the reader read the writer's memory; both must run "
    "as the same user, the writer must not be set-uid, and neither kernel.yama.ptrace_scope=2 nor "
    "a container's seccomp profile may forbid it (docker: --cap-add SYS_PTRACE)";

// As somebody who may read no more than a process of the same user may: the writer says where, and
// may have become another program since.
ssize_t read_memory(pid_t writer, const iovec& local, const iovec& remote) noexcept {
  const NoTracing unprivileged;
  if (unprivileged) return ::process_vm_readv(writer, &local, 1, &remote, 1, 0);
  errno = EPERM;
  return -1;
}

// What is left to read of a message, in the writer's memory.
struct Remote {
  std::uint64_t address = 0;
  std::uint64_t length = 0;
};

class ProcessVmReader final : public Reader {
 public:
  explicit ProcessVmReader(UniqueFd fd) : fd_(std::move(fd)) {
    // The writer may have gone already; the first read tells.
    send_packet(fd_.get(), {.kind = Packet::hello, .address = 0, .length = 0, .error = 0});
  }

 protected:
  std::size_t read_some(std::span<std::byte> into) override {
    while (left_.length == 0) {
      if (!next_offer()) return 0;
      if (left_.length == 0) acknowledge(0);  // of 0 bytes: nothing, but its writer waits
    }
    const std::size_t size = std::min<std::size_t>(into.size(), left_.length);
    copy(into.first(size));
    left_.address += size;
    left_.length -= size;
    partly_read_ = left_.length != 0;
    // Each part is sure only if the writer still lives after it was copied: another process may
    // have got its number. A part that is not the last gets no answer from us, so look.
    if (partly_read_)
      require_writer();
    else
      acknowledge(0);
    return size;
  }

  std::optional<std::size_t> read_message(std::span<std::byte> into) override {
    if (partly_read_) throw MisuseError("receive() in the middle of a message");
    if (!next_offer()) return std::nullopt;
    const std::size_t size = left_.length;
    if (size > into.size()) {
      left_ = {};
      acknowledge(0);
      throw SystemError(EMSGSIZE, "receive a message of " + std::to_string(size) + " bytes into " +
                                      std::to_string(into.size()));
    }
    copy(into.first(size));
    left_ = {};
    acknowledge(0);
    return size;
  }

 private:
  // False where the writer has finished.
  bool next_offer() {
    if (finished_) return false;
    const auto received = receive_packet(fd_.get());
    if (!received) throw_dead();
    if (received->packet.kind == Packet::finish) {
      finished_ = true;
      return false;
    }
    if (received->packet.kind != Packet::offer) throw SystemError(EPROTO, "receive: not an offer");
    writer_ = received->pid;
    left_ = {.address = received->packet.address, .length = received->packet.length};
    return true;
  }

  void copy(std::span<std::byte> into) {
    std::uint64_t from = left_.address;
    for (int refusals = 0; !into.empty();) {
      const iovec local{.iov_base = into.data(), .iov_len = into.size()};
      const iovec remote{.iov_base = reinterpret_cast<void*>(from), .iov_len = into.size()};
      const ssize_t size = read_memory(writer_, local, remote);
      if (size > 0) {
        into = into.subspan(static_cast<std::size_t>(size));
        from += static_cast<std::size_t>(size);
      } else if (size < 0 && errno == EPERM && refusals < kRefusals) {
        ++refusals;
        ask_again();
      } else {
        give_up(size < 0 ? errno : EFAULT);
      }
    }
  }

  // The writer allows its reader once more: another channel's reader may have taken our place.
  void ask_again() {
    acknowledge(EPERM);
    const auto received = receive_packet(fd_.get());
    if (!received) throw_dead();
  }

  [[noreturn]] void give_up(int error) {
    left_ = {};
    require_writer();
    acknowledge(error == EPERM ? EACCES : error);  // EACCES: finally
    throw SystemError(error, error == EPERM ? kRefused : "process_vm_readv");
  }

  void acknowledge(int error) {
    if (!send_packet(fd_.get(), {.kind = Packet::done, .address = 0, .length = 0, .error = error}))
      throw_dead();
  }

  void require_writer() {
    char byte = 0;
    const ssize_t size = ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) throw_dead();
  }

  [[noreturn]] static void throw_dead() {
    throw SystemError(ECONNRESET, "the writer has died without finishing");
  }

  static constexpr int kRefusals = 3;

  UniqueFd fd_;
  pid_t writer_ = 0;
  Remote left_;
  bool partly_read_ = false;
  bool finished_ = false;
};

class ProcessVmWriter final : public Writer {
 public:
  explicit ProcessVmWriter(UniqueFd fd) : fd_(std::move(fd)) {}
  ~ProcessVmWriter() override { finish_quietly(); }

 protected:
  std::size_t write_some(std::span<const std::byte> bytes) override {
    write_message(bytes);
    return bytes.size();
  }

  void write_message(std::span<const std::byte> message) override {
    if (reader_ == 0) meet_reader();
    const Packet offer{.kind = Packet::offer,
                       .address = reinterpret_cast<std::uintptr_t>(message.data()),
                       .length = message.size(),
                       .error = 0};
    for (;;) {
      if (!send_packet(fd_.get(), offer)) throw_gone();
      const int error = wait_for(Packet::done);
      if (error == 0) return;
      if (error == EACCES) throw SystemError(EPERM, kRefused);
      if (error != EPERM) throw SystemError(error, "the reader could not read our memory");
      allow_reader();
    }
  }

  void write_end() override {
    send_packet(fd_.get(), {.kind = Packet::finish, .address = 0, .length = 0, .error = 0});
    fd_.reset();
  }

 private:
  void meet_reader() {
    wait_for(Packet::hello);
    allow_reader();
  }

  // Returns the error in the packet.
  int wait_for(Packet::Kind kind) {
    const auto received = receive_packet(fd_.get());
    if (!received) throw_gone();
    if (received->packet.kind != kind) throw SystemError(EPROTO, "write: not an answer of ours");
    reader_ = received->pid;
    return static_cast<int>(received->packet.error);
  }

  void allow_reader() const noexcept {
    // Fails with EINVAL where there is no Yama to ask, and nothing to allow.
    if (reader_ > 0 && reader_ != ::getpid())
      ::prctl(PR_SET_PTRACER, static_cast<unsigned long>(reader_), 0, 0, 0);
  }

  [[noreturn]] static void throw_gone() { throw SystemError(EPIPE, "write: the reader has gone"); }

  UniqueFd fd_;
  pid_t reader_ = 0;
};

void ask_for_credentials(int socket) {
  const int on = 1;
  if (::setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0)
    throw_errno("SO_PASSCRED");
}

}  // namespace

const Properties& ProcessVm::properties() {
  static constexpr Properties kProperties{.name = "process_vm",
                                          .title = "process_vm_readv",
                                          .boundaries = true,
                                          .by_name = true,
                                          .notices_death = true,
                                          .waits = false,
                                          .rendezvous = true};
  return kProperties;
}

Handles ProcessVm::create(const Options&) {
  auto [reader, writer] = unix_pair(SOCK_SEQPACKET);
  ask_for_credentials(reader.get());
  ask_for_credentials(writer.get());
  return {.reader = handle_of(std::move(reader)), .writer = handle_of(std::move(writer))};
}

std::unique_ptr<Reader> ProcessVm::open_reader(Handle handle, const Options&) {
  return std::make_unique<ProcessVmReader>(take_descriptor(handle));
}

std::unique_ptr<Writer> ProcessVm::open_writer(Handle handle, const Options&) {
  return std::make_unique<ProcessVmWriter>(take_descriptor(handle));
}

}  // namespace farcall::channel
