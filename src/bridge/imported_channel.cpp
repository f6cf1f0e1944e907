// SPDX-License-Identifier: Apache-2.0
//
// An imported channel: one thread receives and publishes, and messages are answered by their ids,
// so that many are on their way and those of one thread keep their order.
#include <fmt/format.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <vector>

#include "bridge/importer.hpp"
#include "farcall/message.h"

namespace farcall::bridge {
namespace {

class ImportedChannel;

// Nobody is left without an answer, whatever was to be said.
void refuse(std::int64_t message, int error) noexcept {
  if (::farcall_error(message, error) != 0) (void)::farcall_error(message, EPROTO);
}

class ChannelCall final : public OutgoingCall {
 public:
  ChannelCall(ImportedChannel& channel, Imported& to, const Header& about,
              std::span<const std::byte> data, std::int64_t id)
      : OutgoingCall(to, about, data.size()), channel_(channel), first_(data), message_(id) {}

 protected:
  std::span<const std::byte> request(std::uint64_t offset, std::size_t size) override {
    if (!published_) return first_.subspan(offset, size);
    again_.resize(size);
    const ssize_t got = ::farcall_read(message_, offset, again_.data(), size);
    return got == static_cast<ssize_t>(size) ? std::span<const std::byte>(again_)
                                             : std::span<const std::byte>(again_).first(0);
  }
  // The buffer that the message was received in is about to be used for another.
  void published() noexcept override { published_ = true; }
  void finished(Answer& answer) noexcept override;

 private:
  ImportedChannel& channel_;
  const std::span<const std::byte> first_;
  const std::int64_t message_;
  bool published_ = false;
  std::vector<std::byte> again_;
};

class ImportedChannel final : public ImportedServer {
 public:
  ImportedChannel(Imported& name, ImportContext context) : name_(name), context_(context) {
    channel_ = ::farcall_name_attach(name.name.path.c_str(), FARCALL_UNBLOCK | FARCALL_DISCONNECT,
                                     name.name.mode);
    if (channel_ < 0)
      throw BridgeError(fmt::format(
          "cannot import {} as channel {}: {}{}", name.name.subject, name.name.path,
          ::strerrorname_np(errno),
          errno == EADDRINUSE || errno == EBUSY ? " (somebody serves that name already)" : ""));
    buffer_ = ::mmap(nullptr, kBuffer, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (buffer_ == MAP_FAILED) {
      ::farcall_channel_destroy(channel_);
      throw BridgeError("no memory for messages");
    }
    thread_ = std::thread([this] { run(); });
  }
  // A call that had come when the channel was closed may have begun since the others ended.
  ~ImportedChannel() override {
    close();
    ::farcall_channel_destroy(channel_);  // which ends the wait
    thread_.join();
    for (const auto& [id, pending] : std::exchange(calls_, {}))
      context_.calls.give_up(*pending.call);
    ::munmap(buffer_, kBuffer);
  }
  // The channel stays, for the answers.
  void close() override { closed_ = true; }

  void over(std::int64_t message) noexcept {
    const std::lock_guard guard(lock_);
    const auto found = calls_.find(message);
    if (found == calls_.end()) return;
    by_connection_[found->second.connection].erase(message);
    if (by_connection_[found->second.connection].empty())
      by_connection_.erase(found->second.connection);
    calls_.erase(found);
  }

 private:
  static constexpr std::size_t kBuffer = std::size_t{kLongest} + 1;

  void run();
  void take(std::int64_t id, farcall_info& info);
  void take_pulse(const farcall_info& info);
  void call(std::int64_t id, const farcall_info& info, const Header& header);
  void shrink(std::size_t used) noexcept;

  struct Pending {
    std::shared_ptr<ChannelCall> call;
    std::int64_t connection;
  };

  Imported& name_;
  const ImportContext context_;
  int channel_ = -1;
  void* buffer_ = nullptr;
  std::atomic<bool> closed_{false};
  std::mutex lock_;  // protects what follows; nothing else is locked under it
  std::unordered_map<std::int64_t, Pending> calls_;
  std::unordered_map<std::int64_t, std::unordered_set<std::int64_t>> by_connection_;
  std::thread thread_;
};

void ChannelCall::finished(Answer& answer) noexcept {
  channel_.over(message_);
  const std::span<const std::byte> data = answer.data();
  if (answer.error != 0) return refuse(message_, answer.error);
  if (::farcall_reply(message_, answer.status, data.data(), data.size()) != 0)
    refuse(message_, errno);
}

void ImportedChannel::run() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  for (;;) {
    farcall_info info{};
    const std::int64_t id = ::farcall_receive(channel_, buffer_, kBuffer, &info);
    if (id < 0 && errno == EBADF) return;  // destroyed
    if (id < 0) continue;                  // one could not be received; others can
    if (id == 0) {
      take_pulse(info);
    } else {
      take(id, info);
    }
  }
}

void ImportedChannel::take(std::int64_t id, farcall_info& info) {
  const bool has_descriptors = info.descriptor_count != 0;
  (void)::farcall_drop_descriptors(&info);
  Header header{.kind = id == FARCALL_ONE_WAY ? Kind::one_way : Kind::call};
  header.message = true;
  header.room = std::min<std::uint64_t>(info.room, kLongest);
  header.priority = std::clamp(info.priority, 0, 255);
  header.caller = {.pid = info.pid,
                   .tid = info.tid,
                   .uid = std::int64_t{info.uid},
                   .gid = std::int64_t{info.gid},
                   .connection = info.connection};
  int error = 0;
  if (!may_call(name_, info.uid)) {
    error = EACCES;
  } else if (closed_) {
    error = ECONNREFUSED;
  } else if (has_descriptors) {
    error = EOPNOTSUPP;
  } else if (info.length > kLongest) {
    error = EMSGSIZE;
  }
  if (error == 0 && id != FARCALL_ONE_WAY) return call(id, info, header);
  if (error == 0) {
    ++name_.statistics.one_way;
    const std::span<const std::byte> data(static_cast<std::byte*>(buffer_), info.received);
    error = context_.calls.post(name_, header, data);
    context_.ticker.wake();
    shrink(info.received);
  }
  if (error == 0) return;
  name_.statistics.failed(error);
  if (id == FARCALL_ONE_WAY && error == ECONNREFUSED) ++name_.statistics.undelivered;
  if (id != FARCALL_ONE_WAY) refuse(id, error);
}

void ImportedChannel::call(std::int64_t id, const farcall_info& info, const Header& header) {
  const std::span<const std::byte> data(static_cast<std::byte*>(buffer_), info.received);
  const auto call = std::make_shared<ChannelCall>(*this, name_, header, data, id);
  {
    const std::lock_guard guard(lock_);
    calls_.emplace(id, Pending{call, info.connection});
    by_connection_[info.connection].insert(id);
  }
  context_.calls.start(call);
  context_.ticker.wake();
  shrink(info.received);
}

// One long message is not to be paid for until the next.
void ImportedChannel::shrink(std::size_t used) noexcept {
  constexpr std::size_t kKept = std::size_t{1} << 20;
  if (used > kKept) ::madvise(buffer_, kBuffer, MADV_DONTNEED);
}

void ImportedChannel::take_pulse(const farcall_info& info) {
  std::vector<std::shared_ptr<ChannelCall>> concerned;
  if (info.code == FARCALL_PULSE_UNBLOCK || info.code == FARCALL_PULSE_DISCONNECT) {
    const std::lock_guard guard(lock_);
    if (info.code == FARCALL_PULSE_UNBLOCK) {
      if (const auto found = calls_.find(info.value); found != calls_.end())
        concerned.push_back(found->second.call);
    } else if (const auto all = by_connection_.find(info.value); all != by_connection_.end()) {
      for (const std::int64_t id : all->second) concerned.push_back(calls_.at(id).call);
    }
  }
  for (const auto& call : concerned) context_.calls.cancel(*call);
  if (info.code < 0 || !may_call(name_, info.uid)) return;
  Header header{.kind = Kind::pulse};
  header.code = info.code;
  header.value = info.value;
  header.message = true;
  header.priority = std::clamp(info.priority, 0, 255);
  header.caller = {.pid = info.pid,
                   .tid = info.tid,
                   .uid = std::int64_t{info.uid},
                   .gid = std::int64_t{info.gid},
                   .connection = info.connection};
  ++name_.statistics.pulses;
  if (closed_) {
    ++name_.statistics.undelivered;
    return;
  }
  if (const int error = context_.calls.post(name_, header, {}); error != 0)
    name_.statistics.failed(error);
  context_.ticker.wake();
}

}  // namespace

std::unique_ptr<ImportedServer> import_channel(Imported& name, ImportContext context) {
  return std::make_unique<ImportedChannel>(name, context);
}

}  // namespace farcall::bridge
