// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/vmsplice.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

#include "channel/descriptor.hpp"
#include "channel/pipe_size.hpp"
#include "channel/sigpipe.hpp"
#include "farcall/error.hpp"

namespace farcall::channel {
namespace {

std::size_t pipe_size(int pipe) {
  const int size = ::fcntl(pipe, F_GETPIPE_SZ);
  if (size < 0) throw_errno("F_GETPIPE_SZ");
  return static_cast<std::size_t>(size);
}

Mapping private_pages(std::size_t size) {
  void* address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) throw_errno("mmap of a page ring");
  return {address, size};
}

class SplicingWriter final : public Writer {
 public:
  explicit SplicingWriter(UniqueFd fd)
      : fd_(std::move(fd)),
        at_once_(pipe_size(fd_.get())),
        // One pipe's worth for what is in the pipe, one for what is being given, one for what is
        // skipped at the end of the ring.
        ring_(private_pages(3 * at_once_)) {}
  ~SplicingWriter() override { finish_quietly(); }

 protected:
  std::size_t write_some(std::span<const std::byte> bytes) override {
    const std::size_t size = std::min(bytes.size(), at_once_);
    if (ring_.size() - next_ < size) next_ = 0;
    std::byte* place = ring_.data() + next_;
    std::copy_n(bytes.data(), size, place);
    give({place, size});
    next_ += size;
    return size;
  }
  void write_end() override { fd_.reset(); }

 private:
  // Puts all of `bytes` into the pipe; more pieces than pages, if it takes several calls.
  void give(std::span<std::byte> bytes) {
    while (!bytes.empty()) {
      const iovec piece{.iov_base = bytes.data(), .iov_len = bytes.size()};
      const ssize_t count = uninterrupted(
          [&] { return signal_.suppress([&] { return ::vmsplice(fd_.get(), &piece, 1, 0); }); });
      if (count < 0) throw_write_error("vmsplice");
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }

  UniqueFd fd_;
  PipeSignal signal_;
  std::size_t at_once_;
  Mapping ring_;
  std::size_t next_ = 0;
};

}  // namespace

const Properties& Vmsplice::properties() {
  static constexpr Properties kProperties{.name = "vmsplice",
                                          .title = "vmsplice pipe",
                                          .boundaries = false,
                                          .by_name = true,
                                          .notices_death = false,
                                          .waits = false};
  return kProperties;
}

Handles Vmsplice::create(const Options& options) { return create_pipe(options); }

std::unique_ptr<Reader> Vmsplice::open_reader(Handle handle, const Options&) {
  return std::make_unique<DescriptorReader>(take_descriptor(handle));
}

std::unique_ptr<Writer> Vmsplice::open_writer(Handle handle, const Options&) {
  return std::make_unique<SplicingWriter>(take_descriptor(handle));
}

}  // namespace farcall::channel
