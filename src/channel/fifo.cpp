// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/fifo.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "channel/descriptor.hpp"
#include "channel/pipe_size.hpp"
#include "farcall/error.hpp"

namespace farcall::channel {
namespace {

// A FIFO in a directory where nobody else can put anything. Both go when it does.
class NamedFifo {
 public:
  NamedFifo() {
    const char* place = ::secure_getenv("TMPDIR");
    directory_ = std::string(place != nullptr && *place != '\0' ? place : "/tmp");
    directory_ += "/farcall-fifo-XXXXXX";  // clean.cpp knows this name
    if (::mkdtemp(directory_.data()) == nullptr) throw_errno("mkdtemp " + directory_);
    path_ = directory_ + "/fifo";
    if (::mkfifo(path_.c_str(), S_IRUSR | S_IWUSR) == 0) return;
    const int error = errno;
    ::rmdir(directory_.c_str());
    throw SystemError(error, "mkfifo " + path_);
  }
  NamedFifo(const NamedFifo&) = delete;
  NamedFifo& operator=(const NamedFifo&) = delete;
  ~NamedFifo() {
    ::unlink(path_.c_str());
    ::rmdir(directory_.c_str());
  }

  [[nodiscard]] UniqueFd open(int flags) const {
    UniqueFd fd(::open(path_.c_str(), flags | O_CLOEXEC | O_NOFOLLOW));
    if (!fd) throw_errno("open " + path_);
    return fd;
  }

 private:
  std::string directory_;
  std::string path_;
};

}  // namespace

const Properties& Fifo::properties() {
  static constexpr Properties kProperties{.name = "fifo",
                                          .title = "FIFO",
                                          .boundaries = false,
                                          .by_name = true,
                                          .notices_death = false,
                                          .waits = false};
  return kProperties;
}

Handles Fifo::create(const Options& options) {
  UniqueFd reader;
  UniqueFd writer;
  {
    const NamedFifo fifo;
    // A reader that may not wait for a writer; so neither has to wait for the other.
    reader = fifo.open(O_RDONLY | O_NONBLOCK);
    writer = fifo.open(O_WRONLY);
  }
  if (::fcntl(reader.get(), F_SETFL, 0) != 0) throw_errno("make a FIFO wait");
  set_pipe_size(writer.get(), options.buffer_bytes);
  return {.reader = handle_of(std::move(reader)), .writer = handle_of(std::move(writer))};
}

std::unique_ptr<Reader> Fifo::open_reader(Handle handle, const Options&) {
  return std::make_unique<DescriptorReader>(take_descriptor(handle));
}

std::unique_ptr<Writer> Fifo::open_writer(Handle handle, const Options&) {
  return std::make_unique<PipeWriter>(take_descriptor(handle));
}

}  // namespace farcall::channel
