// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <new>

#include "far_call.hpp"
#include "farcall/error.hpp"
#include "farcall/socket.hpp"
#include "farcall/thrift/transport.hpp"
#include "one_way.hpp"
#include "protocol.hpp"
#include "serving.hpp"
#include "within.hpp"

namespace farcall::thrift {

using apache::thrift::transport::TTransport;
using apache::thrift::transport::TTransportException;

// A channel that clients open by name, and the way to interrupt who waits there.
struct TFarcallServerTransport::Listening {
  Listening(const std::string& name, mode_t mode)
      : channel(name, 0, mode),
        events(channel.descriptor()),
        wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)) {
    if (!wake) throw_errno("eventfd");
  }
  // Needs nothing that there may be no more of.
  void interrupt() noexcept {
    interrupts.fetch_add(1);
    (void)::eventfd_write(wake.get(), 1);
  }
  // Whether this process has; a forked child has the same descriptor.
  bool take_interrupt() noexcept {
    int before = interrupts.load();
    while (before > 0 && !interrupts.compare_exchange_weak(before, before - 1)) continue;
    return before > 0;
  }
  // Until something may have come, or somebody interrupts.
  void wait() const noexcept {
    std::array<pollfd, 2> both{pollfd{.fd = events, .events = POLLIN, .revents = 0},
                               pollfd{.fd = wake.get(), .events = POLLIN, .revents = 0}};
    eventfd_t one = 0;
    if (::poll(both.data(), both.size(), -1) > 0 && both[1].revents != 0)
      (void)::eventfd_read(wake.get(), &one);
  }

  MessageChannel channel;
  const int events;  // the channel's
  const UniqueFd wake;
  std::atomic<int> interrupts{0};
};

namespace {

// The only descriptor that came along; -1 where there are none, or more.
int only_descriptor(const ReceivedMessage& message) noexcept {
  const auto all = message.descriptors();
  return all.size() == 1 ? all[0] : -1;
}

// Of a client of another user's: a channel of its own, a connection to it and a session are 7. They
// count twice, for the library of messages keeps accounts of its own, in which the same users may
// hold as much again.
constexpr std::size_t kDescriptors = std::size_t{2} * 7;

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
        number_(channel_.number()) {}
  ~Accepted() override { shut(); }

  // A connection for the client.
  [[nodiscard]] MessageConnection connect() const { return channel_.connect(); }
  // By any thread, also while another closes it. A call that is being served is answered first; one
  // that comes meanwhile is either served, or not begun.
  void interrupt() noexcept {
    if (at_.exchange(At::end) == At::wait) (void)farcall_channel_destroy(number_);
  }

  [[nodiscard]] bool isOpen() const override { return open_; }
  bool peek() override { return rBase_ != rBound_ || (open_ && fill()); }
  void open() override {}
  void close() override { shut(); }
  [[nodiscard]] const std::string getOrigin() const override { return origin_; }

  void flush() override {
    const auto reply = written();
    // More calls came with this one, and their replies go along.
    if (message_ && unread() != 0) return;
    if (!message_ && answered_ && !reply.empty()) {
      forget_written();
      shut();
      throw TTransportException(TTransportException::CORRUPTED_DATA,
                                origin_ + ": a further reply to one message");
    }
    answered_ = static_cast<bool>(message_);
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
      if (!receive(info)) break;
      if (message_.is_pulse()) {
        open_ = open_ && info.code != FARCALL_PULSE_DISCONNECT;
        continue;
      }
      if (info.length == 0 && message_) answer(message_, written(), kWhole);
      kept_ = {};
      forget_written();
      if (info.length != 0 && take(info)) return true;
    }
    return false;
  }

 private:
  enum class At : unsigned char { work, wait, end };

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
  // Waits for what comes next, into `message_`. False: there will be no more.
  bool receive(farcall_info& info) {
    At at = At::work;
    if (!at_.compare_exchange_strong(at, At::wait)) interrupted();
    const std::int64_t id = again_after_signals(Within(timeout_), [&] {
      return farcall_receive(channel_.number(), room().data(), room().size(), &info);
    });
    const int error = id < 0 ? errno : 0;
    if (id >= 0) {
      message_ = ReceivedMessage(id, info);
      message_.drop_descriptors();
    }
    if (at = At::wait; !at_.compare_exchange_strong(at, At::work)) interrupted();
    if (error == ETIMEDOUT) throw TTransportException(TTransportException::TIMED_OUT, origin_);
    open_ = open_ && error == 0;
    return error == 0;
  }
  [[noreturn]] void interrupted() {
    message_ = {};
    throw TTransportException(TTransportException::INTERRUPTED, origin_);
  }
  // False: it is not served.
  bool take(const farcall_info& info) {
    if (info.length > room().size()) {
      const std::size_t before = info.received;
      if (!message_) return false;
      if (!grow(info.length)) {
        (void)farcall_error(message_.release(), ENOMEM);
        return false;
      }
      if (!read_rest(before, info.length - before)) {
        message_ = {};
        return false;
      }
    }
    received(info.length);
    answered_ = false;
    if (message_ && is_one_way({rBase_, info.length})) answer(message_, {}, kWhole);
    return true;
  }
  // The message's own memory is counted for its user as long as this is; false: there is no more.
  bool grow(std::size_t bytes) {
    try {
      make_room(bytes);
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
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
    const MessageChannel last(std::move(channel_));
  }

  const std::chrono::milliseconds timeout_;
  const uid_t user_;
  const process::Charge descriptors_;
  const std::string origin_;
  MessageChannel channel_;
  const int number_;  // the channel's, which refuses it once it is closed
  ReceivedMessage message_;
  process::Charge kept_;   // a reply that was too long
  bool answered_ = false;  // by a reply that was written
  std::atomic<At> at_{At::work};
  std::atomic<bool> open_{true};
};

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
    no_more_children_ = false;
  } catch (const std::system_error& error) {
    throw TTransportException(TTransportException::NOT_OPEN, name_, error.code().value());
  }
}

void TFarcallServerTransport::interrupt() {
  if (const auto now = listening()) now->interrupt();
}

void TFarcallServerTransport::interruptChildren() {
  const std::lock_guard guard(lock_);
  no_more_children_ = true;
  for (const auto& child : children_)
    if (const auto alive = child.lock()) alive->interrupt();
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

std::shared_ptr<TTransport> TFarcallServerTransport::accept_one(ReceivedMessage message,
                                                                std::uint32_t hello) {
  if (message && hello == kFar) {
    if (message.info().length > sizeof kFar) return accept_far_call(std::move(message));
    message.reply({}, kWhole);
    return nullptr;
  }
  if (!message || hello != kHello || only_descriptor(message) < 0) return nullptr;
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
  if (no_more_children_) accepted->interrupt();
  return accepted;
}

std::shared_ptr<TTransport> TFarcallServerTransport::acceptImpl() {
  const auto now = listening();
  if (!now) throw TTransportException(TTransportException::NOT_OPEN, name_);
  for (;;) {
    if (now->take_interrupt()) throw TTransportException(TTransportException::INTERRUPTED, name_);
    std::uint32_t hello = 0;
    farcall_info info{};
    (void)farcall_timeout(0);
    const std::int64_t id = farcall_receive(now->channel.number(), &hello, sizeof hello, &info);
    if (id < 0 && errno == EBADF)
      throw TTransportException(TTransportException::UNKNOWN, name_, EBADF);
    if (id < 0) {
      now->wait();
      continue;
    }
    try {
      if (auto accepted = accept_one(ReceivedMessage(id, info), hello)) return accepted;
    } catch (const std::exception&) {
      // This client has gone, or there is no room for it: it is told by the end of its message.
      continue;
    }
  }
}

}  // namespace farcall::thrift
