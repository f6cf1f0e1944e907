// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/pipe.hpp"

#include <fcntl.h>
#include <unistd.h>

#include "channel/descriptor.hpp"
#include "channel/pipe_size.hpp"
#include "farcall/error.hpp"

namespace farcall::channel {

const Properties& Pipe::properties() {
  static constexpr Properties kProperties{.name = "pipe",
                                          .title = "Pipe",
                                          .boundaries = false,
                                          .by_name = true,
                                          .notices_death = false,
                                          .waits = false};
  return kProperties;
}

Handles Pipe::create(const Options& options) { return create_pipe(options); }

std::unique_ptr<Reader> Pipe::open_reader(Handle handle, const Options&) {
  return std::make_unique<DescriptorReader>(take_descriptor(handle));
}

std::unique_ptr<Writer> Pipe::open_writer(Handle handle, const Options&) {
  return std::make_unique<PipeWriter>(take_descriptor(handle));
}

}  // namespace farcall::channel
