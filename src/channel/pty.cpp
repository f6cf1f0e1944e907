// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/pty.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "channel/descriptor.hpp"
#include "farcall/error.hpp"

namespace farcall::channel {
namespace {

class TerminalWriter final : public Writer {
 public:
  explicit TerminalWriter(UniqueFd fd) : fd_(std::move(fd)) {}
  ~TerminalWriter() override { finish_quietly(); }

 protected:
  std::size_t write_some(std::span<const std::byte> bytes) override {
    const ssize_t count =
        uninterrupted([&] { return ::write(fd_.get(), bytes.data(), bytes.size()); });
    if (count >= 0) return static_cast<std::size_t>(count);
    // The terminal was hung up: the controlling side is closed.
    if (errno == EIO) errno = EPIPE;
    throw_write_error("write to a terminal");
  }
  void write_end() override { fd_.reset(); }

 private:
  UniqueFd fd_;
};

// Every byte as it is: no echo, no signals, no line editing, no translation, no flow control.
void make_raw(int terminal) {
  termios settings{};
  if (::tcgetattr(terminal, &settings) != 0) throw_errno("tcgetattr");
  ::cfmakeraw(&settings);
  if (::tcsetattr(terminal, TCSANOW, &settings) != 0) throw_errno("tcsetattr");
}

}  // namespace

const Properties& Pty::properties() {
  static constexpr Properties kProperties{.name = "pty",
                                          .title = "Pseudo-terminal",
                                          .boundaries = false,
                                          .by_name = true,
                                          .notices_death = false,
                                          .waits = false};
  return kProperties;
}

Handles Pty::create(const Options&) {
  UniqueFd reader(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!reader) throw_errno("posix_openpt");
  if (::unlockpt(reader.get()) != 0) throw_errno("unlockpt");
  // By the descriptor, so that /dev/pts need not be mounted here.
  UniqueFd writer(::ioctl(reader.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!writer) throw_errno("open a terminal");
  make_raw(writer.get());
  return {.reader = handle_of(std::move(reader)), .writer = handle_of(std::move(writer))};
}

std::unique_ptr<Reader> Pty::open_reader(Handle handle, const Options&) {
  return std::make_unique<DescriptorReader>(take_descriptor(handle),
                                            DescriptorReader::End::nothing_or_eio);
}

std::unique_ptr<Writer> Pty::open_writer(Handle handle, const Options&) {
  return std::make_unique<TerminalWriter>(take_descriptor(handle));
}

}  // namespace farcall::channel
