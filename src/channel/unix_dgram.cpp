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
  DgramReader(std::size_t longest, UniqueFd fd, Lifeline lifeline)
      : CountedReader(longest, fd.get(), std::move(lifeline)), fd_(std::move(fd)) {
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
  DgramWriter(std::size_t longest, UniqueFd fd, Lifeline lifeline)
      : CountedWriter(longest, std::min(longest, kWritePiece), std::move(lifeline)),
        fd_(std::move(fd)) {}
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
  auto [reader, writer] = unix_pair(SOCK_DGRAM);
  auto [reader_life, writer_life] = Lifeline::make();
  set_buffer(writer.get(), SO_SNDBUF, options.buffer_bytes);
  const std::uint64_t longest = longest_unix_message(writer.get());
  Handles handles{.reader = handle_of(std::move(reader), std::move(reader_life)),
                  .writer = handle_of(std::move(writer), std::move(writer_life))};
  put_value(handles.reader, longest);
  put_value(handles.writer, longest);
  return handles;
}

std::unique_ptr<Reader> UnixDgram::open_reader(Handle handle, const Options&) {
  const auto longest = get_value<std::uint64_t>(handle);
  auto fds = take_descriptors(handle, 2);
  return std::make_unique<DgramReader>(longest, std::move(fds[0]), Lifeline(std::move(fds[1])));
}

std::unique_ptr<Writer> UnixDgram::open_writer(Handle handle, const Options&) {
  const auto longest = get_value<std::uint64_t>(handle);
  auto fds = take_descriptors(handle, 2);
  return std::make_unique<DgramWriter>(longest, std::move(fds[0]), Lifeline(std::move(fds[1])));
}

}  // namespace farcall::channel
