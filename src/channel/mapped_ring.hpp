// SPDX-License-Identifier: Apache-2.0
//
// What all mechanisms made of a ring in shared memory have in common: a byte ring, and beside it
// the lifeline, a pair of connected sockets that rings the doorbell and tells of death. The
// mechanisms differ in where the memory comes from.
//
// A handle has the lifeline as its first descriptor, and behind it what leads to the memory.
#pragma once

#include <unistd.h>

#include <memory>
#include <utility>

#include "farcall/channel/mechanism.hpp"
#include "farcall/observe.hpp"
#include "farcall/ring.hpp"
#include "socket/doorbells.hpp"

namespace farcall::channel::mapped_ring {

// The capacity that `options` ask for. Throws SystemError: ENOMEM where no machine has that much.
std::size_t capacity(const Options& options);

// Two handles with the two ends of a new lifeline. Throws SystemError.
Handles create_lifeline();
// Takes the n-th descriptor out of a handle. Throws SystemError: EPROTO if it is not there.
UniqueFd take_descriptor(Handle& handle, std::size_t n);
inline UniqueFd take_lifeline(Handle& handle) { return take_descriptor(handle, 0); }

// What either end holds: the memory, the lifeline, its half of the ring, and what it says of itself
// to who looks.
template <class Half>
class End {
 public:
  End(observe::Role role, RingMemory memory, UniqueFd lifeline, WaitMode mode)
      : memory_(std::move(memory)),
        lifeline_(std::move(lifeline)),
        entry_(description(role, memory_)),
        ring(memory_.view(), Waiter(lifeline_.get(), mode, kDoorbells)) {
    take_out_of_band_as_well(lifeline_.get());
    ring.observe(role == observe::Role::reader ? entry_.received() : entry_.sent());
  }
  // False in a forked child that has inherited the object.
  [[nodiscard]] bool is_own() const noexcept { return ::getpid() == opened_by_; }

 private:
  static observe::Description description(observe::Role role, const RingMemory& memory) noexcept {
    observe::Description end{.kind = observe::Kind::ring, .role = role};
    end.session = memory.inode();
    return end;
  }

  RingMemory memory_;
  UniqueFd lifeline_;
  observe::Entry entry_;
  pid_t opened_by_ = ::getpid();

 public:
  Half ring;
};

// Of the mechanisms' readers: the end, which says that it has finished.
template <class Half>
class EndReader : public Reader {
 public:
  EndReader(RingMemory memory, UniqueFd lifeline, WaitMode mode)
      : end_(observe::Role::reader, std::move(memory), std::move(lifeline), mode) {}
  // A forked child that has inherited the object does not speak for the reader.
  ~EndReader() override {
    if (end_.is_own()) end_.ring.finish();
  }

 protected:
  End<Half> end_;
};

// Throws the error that an outcome other than ok and interrupted means to a reader or a writer.
[[noreturn]] void throw_for_reader(Outcome outcome);
[[noreturn]] void throw_for_writer(Outcome outcome);

std::unique_ptr<Reader> make_reader(RingMemory memory, UniqueFd lifeline, const Options& options);
std::unique_ptr<Writer> make_writer(RingMemory memory, UniqueFd lifeline, const Options& options);

// For memory that has a descriptor: makes `file`, which is empty, a ring. Throws SystemError.
Handles create_in_file(UniqueFd file, const Options& options);
std::unique_ptr<Reader> open_reader_in_file(Handle handle, const Options& options);
std::unique_ptr<Writer> open_writer_in_file(Handle handle, const Options& options);

// For memory that has none: Handle::memory is the ring. Throws SystemError.
std::unique_ptr<Reader> open_reader_in_memory(Handle handle, const Options& options);
std::unique_ptr<Writer> open_writer_in_memory(Handle handle, const Options& options);

}  // namespace farcall::channel::mapped_ring
