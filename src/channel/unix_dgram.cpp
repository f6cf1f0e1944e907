// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/unix_dgram.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cstdint>

#include "channel/counted.hpp"
#include "channel/descriptor.hpp"
#include "channel/socket.hpp"
#include "farcall/error.hpp"

namespace farcall::channel {
namespace {

class DgramReader final : public CountedReader {
 public:
  explicit DgramReader(MessageSocket end)
      : CountedReader(end.longest, end.fd.get(), std::move(end.lifeline)), fd_(std::move(end.fd)) {
    set_timeout(fd_.get(), SO_RCVTIMEO, kBriefly);
  }

 protected:
  std::optional<std::size_t> attempt(std::span<std::byte> into, std::span<std::byte> spill,
                                     Wait wait) override {
    const ssize_t size =
        receive_message(fd_.get(), into, spill, wait == Wait::no ? MSG_DONTWAIT : 0);
    if (size >= 0) return static_cast<std::size_t>(size);
    if (errno == EAGAIN) return std::nullopt;
    throw_errno("recv");
  }

 private:
  UniqueFd fd_;
};

class DgramWriter final : public CountedWriter {
 public:
  explicit DgramWriter(MessageSocket end)
      : CountedWriter(end.longest, std::min(end.longest, kWritePiece), std::move(end.lifeline)),
        fd_(std::move(end.fd)) {}
  ~DgramWriter() override { finish_quietly(); }

 protected:
  void post(std::span<const std::byte> message) override { send_message(fd_.get(), message); }
  void post_mark() noexcept override {
    const timeval patience{.tv_sec = 0, .tv_usec = kPatienceForMark * 1000L};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    ::send(fd_.get(), nullptr, 0, MSG_NOSIGNAL);
  }
  void close_mechanism() noexcept override { fd_.reset(); }
  std::string limit_advice() const override { return kUnixLimitAdvice; }

 private:
  UniqueFd fd_;
};

}  // namespace

const Properties& UnixDgram::properties() {
  static constexpr Properties kProperties{.name = "unix_dgram",
                                          .title = "Unix datagram socket",
                                          .boundaries = true,
                                          .by_name = true,
                                          .notices_death = true,
                                          .waits = false};
  return kProperties;
}

Handles UnixDgram::create(const Options& options) {
  return create_message_sockets(SOCK_DGRAM, options);
}

std::unique_ptr<Reader> UnixDgram::open_reader(Handle handle, const Options&) {
  return std::make_unique<DgramReader>(take_message_socket(handle));
}

std::unique_ptr<Writer> UnixDgram::open_writer(Handle handle, const Options&) {
  return std::make_unique<DgramWriter>(take_message_socket(handle));
}

}  // namespace farcall::channel
