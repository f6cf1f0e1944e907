// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "farcall/error.hpp"
#include "farcall/socket.hpp"
#include "farcall/thrift/transport.hpp"
#include "one_way.hpp"
#include "protocol.hpp"
#include "within.hpp"

namespace farcall::thrift {

using apache::thrift::transport::TTransportException;

TFarcallTransport::TFarcallTransport(std::string name,
                                     std::shared_ptr<apache::thrift::TConfiguration> config)
    : MessageTransport(std::move(config)), name_(std::move(name)) {}

TFarcallTransport::~TFarcallTransport() = default;

namespace {

constexpr std::size_t kMostUnread = std::size_t{1} << 20;

// Waits for the answer whatever signals come. How many bytes came is in `replied`.
int exchange(const MessageConnection& connection, std::span<const iovec> out,
             std::span<std::byte> room, std::span<const int> descriptors, const Within& within,
             std::size_t& replied) {
  const iovec into{.iov_base = room.data(), .iov_len = room.size()};
  farcall_message all{};
  all.send = out.data();
  all.send_count = static_cast<int>(out.size());
  all.reply = &into;
  all.reply_count = 1;
  all.descriptors = descriptors.data();
  all.descriptor_count = static_cast<unsigned>(descriptors.size());
  all.flags = FARCALL_KEEP_WAITING;
  const int status =
      again_after_signals(within, [&] { return farcall_send_message(connection.number(), &all); });
  replied = all.replied;
  return checked_message(status, "send");
}

MessageConnection adopt(UniqueFd& descriptor) {
  const int number = farcall_adopt(descriptor.get());
  // What is no connection stays.
  if (number >= 0 || errno != EINVAL) (void)descriptor.release();
  return MessageConnection(checked_message(number, "adopt"));
}

iovec part(const void* data, std::size_t size) {
  return {.iov_base = const_cast<void*>(data), .iov_len = size};
}

// What a bridge says of a server is called as what happens to one here.
TTransportException::TTransportExceptionType type_of(int error) noexcept {
  switch (error) {
    case ENOENT:
    case EACCES:
    case ECONNREFUSED:  // as the next one, from a bridge: nobody has seen the call
    case ENETDOWN: return TTransportException::NOT_OPEN;
    case ESRCH:
    case ECANCELED:
    case EPIPE:
    case ECONNRESET: return TTransportException::END_OF_FILE;
    case ETIMEDOUT: return TTransportException::TIMED_OUT;
    case EINTR: return TTransportException::INTERRUPTED;
    default: return TTransportException::UNKNOWN;
  }
}

}  // namespace

void TFarcallTransport::fail(const std::system_error& error) {
  const int code = error.code().value();
  // What was asked may be answered later, and must not be taken for the answer to something else.
  close();
  throw TTransportException(type_of(code), name_, code);
}

// Of the address space, for one reply of any length that comes from afar.
class TFarcallTransport::FarRoom {
 public:
  FarRoom()
      : memory_(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (memory_ == MAP_FAILED) throw SystemError(ENOMEM, "room for replies");
  }
  ~FarRoom() { ::munmap(memory_, kBytes); }
  FarRoom(const FarRoom&) = delete;
  FarRoom& operator=(const FarRoom&) = delete;
  [[nodiscard]] std::span<std::byte> all() const noexcept {
    return {static_cast<std::byte*>(memory_), kBytes};
  }
  // What has been used costs nothing any more.
  void give_back(std::size_t used) const noexcept {
    constexpr std::size_t kKept = std::size_t{1} << 20;
    if (used > kKept) ::madvise(memory_, used, MADV_DONTNEED);
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{64} << 20;
  void* const memory_;
};

// No descriptor goes to another machine: calls go to the name itself.
void TFarcallTransport::open_far(MessageConnection listener, const Within& within) {
  const iovec far = part(&kFar, sizeof kFar);
  std::size_t replied = 0;
  if (exchange(listener, std::span(&far, 1), {}, {}, within, replied) != kWhole)
    throw SystemError(EPROTO, "open");
  far_ = std::make_unique<FarRoom>();
  connection_ = std::move(listener);
}

void TFarcallTransport::open() {
  if (isOpen()) return;
  constexpr auto kPatience = std::chrono::seconds(10);
  const Within within(timeout_);
  const Deadline deadline =
      within.deadline().is_never() ? Deadline::after(kPatience) : within.deadline();
  try {
    MessageConnection listener(checked_message(
        again_after_signals(within, [&] { return farcall_name_open(name_.c_str()); }),
        "open a name"));
    auto [mine, theirs] = socket_pair();
    const int descriptor = theirs.get();
    const iovec hello = part(&kHello, sizeof kHello);
    std::size_t replied = 0;
    try {
      (void)exchange(listener, std::span(&hello, 1), {}, std::span(&descriptor, 1), within,
                     replied);
    } catch (const std::system_error& error) {
      if (error.code().value() != EOPNOTSUPP) throw;
      return open_far(std::move(listener), within);
    }
    theirs.reset();
    auto answer = receive_fd_message(mine.get(), deadline);
    if (!answer) throw SystemError(ESRCH, "open");
    ReceivedFds came(std::move(answer->descriptors));  // more than one may be long in closing
    if (came.size() != 1) throw SystemError(ESRCH, "open");
    connection_ = adopt(came[0]);
  } catch (const std::system_error& error) {
    fail(error);
  }
}

void TFarcallTransport::close() {
  connection_ = MessageConnection();
  far_ = nullptr;
  forget_written();
  received(0);
  give_room_back();
}

bool TFarcallTransport::peek() {
  if (rBase_ != rBound_) return true;
  if (!isOpen()) return false;
  pollfd server{.fd = connection_.descriptor(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&server, 1, 0) == 0;
}

void TFarcallTransport::call(std::span<const std::byte> request) {
  const Within within(timeout_);
  const std::size_t before = keep_unread();
  const auto send = [&](std::span<const std::byte> out, std::size_t& replied) {
    const iovec message = part(out.data(), out.size());
    return exchange(connection_, std::span(&message, 1), room().subspan(before), {}, within,
                    replied);
  };
  std::size_t replied = 0;
  int status = send(request, replied);
  if (status == kLonger) {
    std::uint64_t length = 0;
    if (replied != sizeof length) throw SystemError(EPROTO, "reply");
    std::memcpy(&length, room().data() + before, sizeof length);
    if (length > FARCALL_MESSAGE_MAX - before) throw SystemError(EPROTO, "reply");
    if (length > static_cast<std::uint64_t>(getMaxMessageSize()))
      throw TTransportException(TTransportException::END_OF_FILE, "MaxMessageSize reached");
    make_room(before + length);
    status = send({}, replied);
    if (replied != length) throw SystemError(EPROTO, "reply");
  }
  if (status != kWhole) throw SystemError(EPROTO, "reply");
  received(before + replied);
}

void TFarcallTransport::call_far(std::span<const std::byte> request) {
  const std::array<iovec, 2> out{part(&kFar, sizeof kFar), part(request.data(), request.size())};
  std::size_t replied = 0;
  const int status = exchange(connection_, out, far_->all(), {}, Within(timeout_), replied);
  if (status != kWhole) throw SystemError(EMSGSIZE, "reply");
  const std::size_t before = keep_unread();
  make_room(before + replied);
  std::ranges::copy(far_->all().first(replied), room().subspan(before).begin());
  far_->give_back(replied);
  received(before + replied);
}

void TFarcallTransport::flush() {
  if (!isOpen()) {
    forget_written();  // or the next call would get the answer to this one
    throw TTransportException(TTransportException::NOT_OPEN, name_);
  }
  const auto message = written();
  if (message.empty()) return;
  if (unread() > kMostUnread) {
    forget_written();  // it is not sent later instead
    throw TTransportException(TTransportException::BAD_ARGS,
                              name_ + ": too many replies are not read yet");
  }
  give_room_back();
  try {
    // One-way calls are answered before they are served there, too.
    if (far_) {
      call_far(message);
      return forget_written();
    }
    const bool one_way =
        is_one_way({reinterpret_cast<const std::uint8_t*>(message.data()), message.size()});
    if (one_way && message.size() <= kOneWayBytes) {
      const int result = again_after_signals(Within(timeout_), [&] {
        return farcall_send_one_way(connection_.number(), message.data(), message.size());
      });
      checked_message(result, "send");
    } else {
      call(message);
    }
  } catch (const std::system_error& error) {
    fail(error);
  } catch (...) {
    // What was written is not to go along with the next call.
    close();
    throw;
  }
  forget_written();
}

}  // namespace farcall::thrift
