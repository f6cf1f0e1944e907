// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "farcall/error.hpp"
#include "farcall/limits.h"
#include "farcall/socket.hpp"
#include "farcall/thrift/transport.hpp"
#include "one_way.hpp"
#include "process/ledger.hpp"
#include "protocol.hpp"
#include "within.hpp"

namespace farcall::thrift {

using apache::thrift::transport::TTransport;
using apache::thrift::transport::TTransportException;

// A channel that clients open by name, and the way to interrupt who waits there.
struct TFarcallServerTransport::Listening {
  Listening(const std::string& name, mode_t mode)
      : channel(name, 0, mode), own(channel.connect()) {}
  void interrupt() noexcept {
    interrupts.fetch_add(1);
    (void)farcall_pulse(own.number(), 0, kInterrupt, 0);
  }
  // Anybody who may connect may send such a pulse; whether this process has.
  bool take_interrupt() noexcept {
    int before = interrupts.load();
    while (before > 0 && !interrupts.compare_exchange_weak(before, before - 1)) continue;
    return before > 0;
  }
  MessageChannel channel;
  MessageConnection own;
  std::atomic<int> interrupts{0};
};

namespace {

// The only descriptor that came along; -1 where there are none, or more.
int only_descriptor(const ReceivedMessage& message) noexcept {
  const auto all = message.descriptors();
  return all.size() == 1 ? all[0] : -1;
}

// A client that has gone is told of by a pulse; one that cannot have this answer learns why.
void answer(ReceivedMessage& message, std::span<const std::byte> data, int status) noexcept {
  const std::int64_t id = message.release();
  if (farcall_reply(id, status, data.data(), data.size()) != 0 && errno != ESRCH)
    (void)farcall_error(id, errno);
}

// What a client of another user's makes this process hold. A channel of its own, two connections to
// it and what tells of pulses are 9 descriptors; they count twice, for the library of messages
// keeps accounts of its own, in which the same users may hold as much again.
process::Charge charged(process::Resource resource, uid_t user, std::size_t amount) noexcept {
  if (process::is_own(user)) return process::Charge::exempt();
  farcall_limits limits{};
  limits.size = sizeof limits;
  (void)farcall_limits_get(&limits);
  const bool bytes = resource == process::Resource::bytes;
  return {resource, user, amount, bytes ? limits.bytes_per_user : limits.descriptors_per_user};
}
constexpr std::size_t kDescriptors = std::size_t{2} * 9;

// Those that are no streams of this machine may be long in all that is done with them.
void check_stream(int fd) {
  const auto option = [fd](int name) {
    int value = 0;
    socklen_t size = sizeof value;
    checked_message(::getsockopt(fd, SOL_SOCKET, name, &value, &size), "a client's socket");
    return value;
  };
  if (option(SO_DOMAIN) != AF_UNIX || option(SO_TYPE) != SOCK_STREAM)
    throw SystemError(EPROTO, "a client's socket");
}

}  // namespace

// The server's end of one client.
class TFarcallServerTransport::Accepted final : public MessageTransport {
 public:
  explicit Accepted(std::chrono::milliseconds timeout, const farcall_info& client)
      : MessageTransport(nullptr),
        timeout_(timeout),
        user_(client.uid),
        descriptors_(room_for(client.uid)),
        origin_("pid " + std::to_string(client.pid) + " uid " + std::to_string(client.uid)),
        channel_(FARCALL_DISCONNECT),
        own_(channel_.connect()),
        interrupts_(own_.number()) {}
  ~Accepted() override { shut(); }

  // A connection for the client.
  [[nodiscard]] MessageConnection connect() const { return channel_.connect(); }
  // By any thread, also while another closes it.
  void interrupt() const noexcept { (void)farcall_pulse(interrupts_, 0, kInterrupt, 0); }

  [[nodiscard]] bool isOpen() const override { return open_; }
  bool peek() override { return rBase_ != rBound_ || (open_ && fill()); }
  void open() override {}
  void close() override { shut(); }
  [[nodiscard]] const std::string getOrigin() const override { return origin_; }

  void flush() override {
    const auto reply = written();
    if (message_ && reply.size() > message_.info().room) return keep(reply.size());
    if (message_) answer(message_, reply, kWhole);
    forget_written();
  }

 protected:
  bool fill() override {
    // The last one was served, and nobody wrote an answer: it was one-way after all.
    if (message_) answer(message_, {}, kWhole);
    give_room_back();
    while (open_) {
      farcall_info info{};
      const std::int64_t id = again_after_signals(Within(timeout_), [&] {
        return farcall_receive(channel_.number(), room().data(), room().size(), &info);
      });
      if (id < 0) {
        if (errno == ETIMEDOUT) throw TTransportException(TTransportException::TIMED_OUT, origin_);
        open_ = false;
        break;
      }
      message_ = ReceivedMessage(id, info);
      message_.drop_descriptors();
      if (message_.is_pulse()) {
        if (told(info)) continue;
        break;
      }
      if (info.length == 0 && message_) answer(message_, written(), kWhole);
      kept_ = {};
      forget_written();
      if (info.length != 0 && take(info)) return true;
    }
    return false;
  }

 private:
  static process::Charge room_for(uid_t user) {
    process::Charge held = charged(process::Resource::descriptors, user, kDescriptors);
    if (!held) throw SystemError(EAGAIN, "too many clients of one user");
    return held;
  }
  // What is written is for the client that comes again with more room, if that is what comes next.
  void keep(std::uint64_t length) {
    kept_ = charged(process::Resource::bytes, user_, length);
    if (kept_) return answer(message_, std::as_bytes(std::span(&length, 1)), kLonger);
    (void)farcall_error(message_.release(), ENOMEM);
    forget_written();
  }
  // False: the client has gone.
  bool told(const farcall_info& pulse) {
    if (pulse.code == kInterrupt)
      throw TTransportException(TTransportException::INTERRUPTED, origin_);
    if (pulse.code == FARCALL_PULSE_DISCONNECT) open_ = false;
    return open_;
  }
  bool take(const farcall_info& info) {
    if (info.length > room().size()) {
      const std::size_t before = info.received;
      if (!message_) return false;
      make_room(info.length);
      if (!read_rest(before, info.length - before)) {
        message_ = {};
        return false;
      }
    }
    received(info.length);
    if (message_ && is_one_way({rBase_, info.length})) answer(message_, {}, kWhole);
    return true;
  }
  // False: the client has gone meanwhile, of which a pulse tells.
  bool read_rest(std::size_t before, std::size_t size) {
    try {
      return message_.read(before, room().subspan(before, size)) == size;
    } catch (const std::system_error&) {
      return false;
    }
  }
  void shut() noexcept {
    open_ = false;
    message_ = {};
    own_ = MessageConnection();
    const MessageChannel last(std::move(channel_));
  }

  const std::chrono::milliseconds timeout_;
  const uid_t user_;
  const process::Charge descriptors_;
  const std::string origin_;
  MessageChannel channel_;
  MessageConnection own_;
  const int interrupts_;
  ReceivedMessage message_;
  process::Charge kept_;  // a reply that was too long
  std::atomic<bool> open_{true};
};

namespace {

// One call that came through a bridge, for whoever accepts it.
class FarCall final : public MessageTransport {
 public:
  explicit FarCall(ReceivedMessage message)
      : MessageTransport(nullptr), message_(std::move(message)) {
    message_.drop_descriptors();
    const std::size_t length = message_.info().length - sizeof kFar;
    make_room(length);
    if (message_.read(sizeof kFar, room().first(length)) != length)
      throw SystemError(ESRCH, "read a call");
    received(length);
    if (is_one_way({rBase_, length})) answer(message_, {}, kWhole);
  }
  FarCall(const FarCall&) = delete;
  FarCall& operator=(const FarCall&) = delete;
  ~FarCall() override { finish(); }

  [[nodiscard]] bool isOpen() const override { return open_; }
  bool peek() override { return rBase_ != rBound_; }
  void open() override {}
  void close() override { finish(); }
  [[nodiscard]] const std::string getOrigin() const override { return "a bridge"; }

  void flush() override {
    const auto reply = written();
    if (message_ && reply.size() <= message_.info().room) answer(message_, reply, kWhole);
    if (message_) answer(message_, {}, kLonger);
    forget_written();
  }

 protected:
  bool fill() override {
    finish();
    return false;
  }

 private:
  // Nobody wrote an answer: it was one-way.
  void finish() noexcept {
    open_ = false;
    if (message_) answer(message_, {}, kWhole);
  }

  ReceivedMessage message_;
  std::atomic<bool> open_{true};
};

}  // namespace

TFarcallServerTransport::TFarcallServerTransport(std::string name, mode_t mode)
    : name_(std::move(name)), mode_(mode) {}

TFarcallServerTransport::~TFarcallServerTransport() { close(); }

std::shared_ptr<TFarcallServerTransport::Listening> TFarcallServerTransport::listening() const {
  const std::lock_guard guard(lock_);
  return listening_;
}

bool TFarcallServerTransport::isOpen() const { return listening() != nullptr; }

void TFarcallServerTransport::listen() {
  try {
    auto fresh = std::make_shared<Listening>(name_, mode_);
    const std::lock_guard guard(lock_);
    listening_ = std::move(fresh);
  } catch (const std::system_error& error) {
    throw TTransportException(TTransportException::NOT_OPEN, name_, error.code().value());
  }
}

void TFarcallServerTransport::interrupt() {
  if (const auto now = listening()) now->interrupt();
}

void TFarcallServerTransport::interruptChildren() {
  std::vector<std::shared_ptr<Accepted>> children;
  {
    const std::lock_guard guard(lock_);
    for (const auto& child : children_)
      if (auto alive = child.lock()) children.push_back(std::move(alive));
  }
  for (const auto& child : children) child->interrupt();
}

void TFarcallServerTransport::close() {
  std::shared_ptr<Listening> last;
  {
    const std::lock_guard guard(lock_);
    last = std::move(listening_);
    listening_ = nullptr;
  }
  // Who is in accept() still holds it; this ends its wait.
  if (last) last->interrupt();
}

std::shared_ptr<TTransport> TFarcallServerTransport::acceptImpl() {
  const auto now = listening();
  if (!now) throw TTransportException(TTransportException::NOT_OPEN, name_);
  for (;;) {
    std::uint32_t hello = 0;
    ReceivedMessage message;
    try {
      message = now->channel.receive(std::as_writable_bytes(std::span(&hello, 1)));
    } catch (const std::system_error& error) {
      if (error.code().value() != EBADF) continue;  // others than that client can be accepted
      throw TTransportException(TTransportException::UNKNOWN, name_, error.code().value());
    }
    if (message.is_pulse() && message.info().code == kInterrupt && now->take_interrupt())
      throw TTransportException(TTransportException::INTERRUPTED, name_);
    try {
      if (message && hello == kFar) {
        if (message.info().length > sizeof kFar)
          return std::make_shared<FarCall>(std::move(message));
        message.reply({}, kWhole);
        continue;
      }
      if (!message || hello != kHello || only_descriptor(message) < 0) continue;
      check_stream(only_descriptor(message));
      auto accepted = std::make_shared<Accepted>(timeout_, message.info());
      const MessageConnection connection = accepted->connect();
      // A client that means well has one with room; others are not waited for.
      send_fd_message(only_descriptor(message), {}, std::array{connection.descriptor()},
                      Deadline::now());
      message.reply();
      const std::lock_guard guard(lock_);
      std::erase_if(children_, [](const auto& child) { return child.expired(); });
      children_.push_back(accepted);
      return accepted;
    } catch (const std::exception&) {
      // This client has gone, or there is no room for it: it is told by the end of its message.
      continue;
    }
  }
}

}  // namespace farcall::thrift
