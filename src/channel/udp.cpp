// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/udp.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "channel/counted.hpp"
#include "channel/descriptor.hpp"
#include "channel/loopback.hpp"
#include "channel/socket.hpp"
#include "channel/udp_window.hpp"
#include "farcall/error.hpp"
#include "farcall/wait.hpp"

namespace farcall::channel {
namespace {

using Sequence = std::uint32_t;  // wraps around
constexpr std::size_t kLongest = kUdpLongest - sizeof(Sequence);

// How far a datagram can be ahead of the one that is due: no window holds as many.
constexpr Sequence kFarthest = 1U << 24;

// Asked of SO_RCVBUF if Options::buffer_bytes does not; what the kernel allows is usually less.
constexpr std::size_t kDefaultBuffer = std::size_t{1} << 20;

// How long the writer waits for credit before it tells the reader what should have arrived.
constexpr int kPatienceForCredit = 50;  // ms

class UdpReader final : public CountedReader {
 public:
  UdpReader(std::size_t window, UniqueFd fd, Lifeline lifeline, UniqueFd others)
      : CountedReader(kLongest, fd.get(), std::move(lifeline)),
        fd_(std::move(fd)),
        others_(std::move(others)),
        grants_(window) {
    set_timeout(fd_.get(), SO_RCVTIMEO, kBriefly);
  }

 protected:
  std::optional<std::size_t> attempt(std::span<std::byte> into, std::span<std::byte> spill,
                                     Wait wait) override {
    if (!early_.empty()) {
      if (const auto due = early_.find(next_); due != early_.end()) {
        const std::size_t size = deliver(due->second, into, spill);
        early_.erase(due);
        ++next_;
        return size;
      }
    }
    if (spill.empty()) spill = own_spill();
    Sequence sequence = 0;
    const ssize_t got = receive(sequence, into, spill, wait);
    // Empty datagrams without a number only wake us.
    if (got < static_cast<ssize_t>(sizeof sequence)) return std::nullopt;
    const std::size_t size = static_cast<std::size_t>(got) - sizeof sequence;
    if (grants_.take(udp_cost(size)))
      lifeline().send({.kind = Note::granted, .value = grants_.total()});
    if (sequence == next_) {
      ++next_;
      ++delivered_;
      return size;
    }
    keep(sequence, size, into, spill);
    return std::nullopt;
  }

 private:
  using Message = std::vector<std::byte>;

  std::span<std::byte> own_spill() {
    if (spill_.empty()) spill_.resize(kLongest);
    return spill_;
  }

  ssize_t receive(Sequence& sequence, std::span<std::byte> into, std::span<std::byte> spill,
                  Wait wait) {
    std::array<iovec, 3> pieces{iovec{.iov_base = &sequence, .iov_len = sizeof sequence},
                                iovec{.iov_base = into.data(), .iov_len = into.size()},
                                iovec{.iov_base = spill.data(), .iov_len = spill.size()}};
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    const ssize_t got = uninterrupted(
        [&] { return ::recvmsg(fd_.get(), &message, wait == Wait::no ? MSG_DONTWAIT : 0); });
    // An earlier error of the socket itself, such as ECONNREFUSED, says nothing about the data.
    if (got < 0 && errno != EAGAIN && errno != ECONNREFUSED) throw_errno("recv");
    return got;
  }

  // Puts by a message that has overtaken others; forgets one that came before.
  void keep(Sequence sequence, std::size_t size, std::span<std::byte> into,
            std::span<std::byte> spill) {
    const Sequence ahead = sequence - next_;
    if (ahead > kFarthest) return;
    Message message(size);
    const std::size_t head = std::min(size, into.size());
    std::copy_n(into.begin(), head, message.begin());
    std::copy_n(spill.begin(), size - head, message.begin() + static_cast<std::ptrdiff_t>(head));
    early_.emplace(sequence, std::move(message));
    expect(delivered_ + ahead + 1);
  }

  std::size_t deliver(const Message& message, std::span<std::byte> into,
                      std::span<std::byte> spill) {
    const std::size_t head = std::min(message.size(), into.size());
    std::copy_n(message.begin(), head, into.begin());
    const std::size_t rest = std::min(message.size() - head, spill.size());
    std::copy_n(message.begin() + static_cast<std::ptrdiff_t>(head), rest, spill.begin());
    ++delivered_;
    return message.size();
  }

  UniqueFd fd_;
  UniqueFd others_;
  UdpGrants grants_;
  Sequence next_ = 0;
  std::uint64_t delivered_ = 0;  // next_ without wrapping around
  std::map<Sequence, Message> early_;
  std::vector<std::byte> spill_;
};

class UdpWriter final : public CountedWriter {
 public:
  UdpWriter(std::size_t window, UniqueFd fd, Lifeline lifeline, UniqueFd others)
      : CountedWriter(kLongest, kLongest, std::move(lifeline)),
        fd_(std::move(fd)),
        others_(std::move(others)),
        window_(window) {
    set_timeout(this->lifeline().fd(), SO_RCVTIMEO, kPatienceForCredit);
  }
  ~UdpWriter() override { finish_quietly(); }

 protected:
  void post(std::span<const std::byte> bytes) override {
    const std::size_t cost = udp_cost(bytes.size());
    look_for_reader();
    if (!window_.admits(cost)) wait_for_credit(cost);
    Sequence sequence = static_cast<Sequence>(sent());
    std::array<iovec, 2> pieces{
        iovec{.iov_base = &sequence, .iov_len = sizeof sequence},
        iovec{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()}};
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    if (uninterrupted([&] { return ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL); }) < 0)
      throw_write_error("send");
    window_.spend(cost);
  }
  void post_mark() noexcept override { ::send(fd_.get(), nullptr, 0, MSG_NOSIGNAL); }
  void close_mechanism() noexcept override {
    fd_.reset();
    others_.reset();
  }
  std::string limit_advice() const override {
    return "; it is what UDP can carry, and write() splits what is longer";
  }

 private:
  // The kernel refuses no datagram for a reader that has gone: its socket is here, too.
  void look_for_reader() {
    if (looked_ != 0 && ticks() - looked_ < kTicksPerLook) return;
    looked_ = ticks();
    while (const auto note = lifeline().try_receive())
      if (note->kind == Note::granted) window_.grant(note->value);
    if (lifeline().closed()) throw_reader_gone();
  }
  [[noreturn]] static void throw_reader_gone() {
    throw SystemError(EPIPE, "send: the reader has gone");
  }

  void wait_for_credit(std::size_t cost) {
    while (!window_.admits(cost)) {
      auto note = lifeline().receive();
      if (!note && !lifeline().closed()) {
        // A slow reader, or one that waits for what the kernel has lost.
        lifeline().try_to_send({.kind = Note::sent, .value = sent()});
        sleep_on(-1, 0, lifeline());
        note = lifeline().try_receive();
      }
      if (lifeline().closed()) throw_reader_gone();
      if (note && note->kind == Note::granted) window_.grant(note->value);
    }
  }

  static constexpr std::uint64_t kTicksPerLook = 2'000'000;  // 0.4 to 2 ms

  UniqueFd fd_;
  UniqueFd others_;
  UdpWindow window_;
  std::uint64_t looked_ = 0;
};

// Throws away what strangers sent before the socket was connected.
void drain(int socket) {
  constexpr int kBounded = 100'000;
  for (int i = 0; i < kBounded && ::recv(socket, nullptr, 0, MSG_DONTWAIT) >= 0; ++i) {
  }
}

}  // namespace

const Properties& Udp::properties() {
  static constexpr Properties kProperties{.name = "udp",
                                          .title = "UDP loopback",
                                          .boundaries = true,
                                          .by_name = true,
                                          .notices_death = true,
                                          .waits = false};
  return kProperties;
}

Handles Udp::create(const Options& options) {
  UniqueFd reader = loopback_socket(SOCK_DGRAM);
  UniqueFd writer = loopback_socket(SOCK_DGRAM);
  connect_loopback(reader.get(), local_address(writer.get()));
  connect_loopback(writer.get(), local_address(reader.get()));
  set_buffer(reader.get(), SO_RCVBUF,
             options.buffer_bytes != 0 ? options.buffer_bytes : kDefaultBuffer);
  drain(reader.get());
  auto [reader_life, writer_life] = Lifeline::make();
  const std::uint64_t window = buffer_size(reader.get(), SO_RCVBUF) / 2;
  // Each end holds the other's socket, too: a port would else be anybody's once its end has gone.
  UniqueFd of_reader = reader.duplicate();
  UniqueFd of_writer = writer.duplicate();
  Handles handles{
      .reader = handle_of(std::move(reader), std::move(reader_life), std::move(of_writer)),
      .writer = handle_of(std::move(writer), std::move(writer_life), std::move(of_reader))};
  put_value(handles.reader, window);
  put_value(handles.writer, window);
  return handles;
}

std::unique_ptr<Reader> Udp::open_reader(Handle handle, const Options&) {
  const auto window = get_value<std::uint64_t>(handle);
  auto fds = take_descriptors(handle, 3);
  return std::make_unique<UdpReader>(window, std::move(fds[0]), Lifeline(std::move(fds[1])),
                                     std::move(fds[2]));
}

std::unique_ptr<Writer> Udp::open_writer(Handle handle, const Options&) {
  const auto window = get_value<std::uint64_t>(handle);
  auto fds = take_descriptors(handle, 3);
  return std::make_unique<UdpWriter>(window, std::move(fds[0]), Lifeline(std::move(fds[1])),
                                     std::move(fds[2]));
}

}  // namespace farcall::channel
