// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/unix_seqpacket.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cstdint>

#include "channel/descriptor.hpp"
#include "channel/lifeline.hpp"
#include "channel/record.hpp"
#include "channel/socket.hpp"
#include "farcall/error.hpp"

namespace farcall::channel {
namespace {

class SeqpacketReader final : public RecordReader {
 public:
  explicit SeqpacketReader(MessageSocket end)
      : RecordReader(end.longest), fd_(std::move(end.fd)), lifeline_(std::move(end.lifeline)) {}

 protected:
  std::optional<std::size_t> take(std::span<std::byte> into, std::span<std::byte> spill) override {
    if (finished_) return std::nullopt;
    const ssize_t size = receive_message(fd_.get(), into, spill, 0);
    if (size > 0) return static_cast<std::size_t>(size);
    if (size < 0) throw_errno("recv");
    // Whatever the writer had to say about this, it said before.
    const auto note = lifeline_.try_receive();
    if (!note) throw SystemError(ECONNRESET, "the writer has died without finishing");
    if (note->kind == Note::empty) return 0;
    finished_ = true;
    return std::nullopt;
  }

 private:
  UniqueFd fd_;
  Lifeline lifeline_;
  bool finished_ = false;
};

class SeqpacketWriter final : public RecordWriter {
 public:
  explicit SeqpacketWriter(MessageSocket end)
      : RecordWriter(end.longest, std::min(end.longest, kWritePiece)),
        fd_(std::move(end.fd)),
        lifeline_(std::move(end.lifeline)) {}
  ~SeqpacketWriter() override { finish_quietly(); }

 protected:
  void write_message(std::span<const std::byte> message) override {
    if (message.empty()) lifeline_.send({.kind = Note::empty, .value = 0});
    send_message(fd_.get(), message);
  }
  void write_end() override {
    lifeline_.send({.kind = Note::finished, .value = 0});
    ::shutdown(fd_.get(), SHUT_WR);
    fd_.reset();
    lifeline_.close();
  }
  std::string limit_advice() const override { return kUnixLimitAdvice; }

 private:
  UniqueFd fd_;
  Lifeline lifeline_;
};

}  // namespace

const Properties& UnixSeqpacket::properties() {
  static constexpr Properties kProperties{.name = "unix_seqpacket",
                                          .title = "Unix seqpacket socket",
                                          .boundaries = true,
                                          .by_name = true,
                                          .notices_death = true,
                                          .waits = false};
  return kProperties;
}

Handles UnixSeqpacket::create(const Options& options) {
  return create_message_sockets(SOCK_SEQPACKET, options);
}

std::unique_ptr<Reader> UnixSeqpacket::open_reader(Handle handle, const Options&) {
  return std::make_unique<SeqpacketReader>(take_message_socket(handle));
}

std::unique_ptr<Writer> UnixSeqpacket::open_writer(Handle handle, const Options&) {
  return std::make_unique<SeqpacketWriter>(take_message_socket(handle));
}

}  // namespace farcall::channel
