// SPDX-License-Identifier: Apache-2.0
//
// What a mechanism is, and a channel made with one.
//
// A mechanism makes a channel as two handles, one per end. A handle is inert: descriptors, a few
// bytes, perhaps memory that only forked children inherit. It becomes a Reader or Writer where it
// is opened, in this process, in a child forked meanwhile, or in an unrelated process that it was
// sent to. Opening one end closes the other handle here.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "farcall/channel/end.hpp"
#include "farcall/memory.hpp"
#include "farcall/socket.hpp"
#include "farcall/wait.hpp"

namespace farcall::channel {

struct Properties {
  std::string_view name;    // as `farcall compare` calls it: "pipe", "unix_stream", ...
  std::string_view title;   // "Pipe"
  bool boundaries;          // keeps messages apart: send() and receive() work
  bool by_name;             // can be opened by unrelated processes
  bool notices_death;       // tells a dead writer (ECONNRESET) from one that has finished
  bool waits;               // Options::wait has an effect
  bool rendezvous = false;  // a write waits until the reader has taken it, so the two need threads
};

struct Options {
  // How much the channel holds, roughly; 0: the mechanism's own default. In bytes.
  std::size_t buffer_bytes = 0;
  WaitMode wait = WaitMode::adaptive;
};

struct Handle {
  FdMessage message;
  Mapping memory;  // where the mechanism's memory has no descriptor
};

struct Handles {
  Handle reader;
  Handle writer;
};

template <class M>
concept Mechanism = requires(const Options& options, Handle handle) {
  { M::properties() } -> std::same_as<const Properties&>;
  { M::create(options) } -> std::same_as<Handles>;
  { M::open_reader(std::move(handle), options) } -> std::same_as<std::unique_ptr<Reader>>;
  { M::open_writer(std::move(handle), options) } -> std::same_as<std::unique_ptr<Writer>>;
};

// A mechanism chosen at run time.
struct AnyMechanism {
  const Properties& (*properties)();
  Handles (*create)(const Options&);
  std::unique_ptr<Reader> (*open_reader)(Handle, const Options&);
  std::unique_ptr<Writer> (*open_writer)(Handle, const Options&);

  template <Mechanism M>
  static constexpr AnyMechanism of() {
    return {M::properties, M::create, M::open_reader, M::open_writer};
  }
};

// Every mechanism there is; src/channel/all.cpp is the one place that lists them.
std::span<const AnyMechanism> all_mechanisms();
// nullptr if there is none of that name.
const AnyMechanism* find_mechanism(std::string_view name);

// One direction. Make it, fork, take one end in each process; or send an end to another process.
class AnyChannel {
 public:
  AnyChannel(const AnyMechanism& mechanism, const Options& options);
  AnyChannel(AnyChannel&&) noexcept = default;
  AnyChannel& operator=(AnyChannel&&) noexcept = default;

  // Opens this end and closes the other one in this process. Throws MisuseError if an end was
  // taken here before; SystemError.
  std::unique_ptr<Reader> take_reader();
  std::unique_ptr<Writer> take_writer();
  // Both ends in this process (for threads).
  std::pair<std::unique_ptr<Reader>, std::unique_ptr<Writer>> take_both();

  // Serves one end to the first process of this user that opens `name` with open_writer or
  // open_reader, and returns the other. Nothing is left behind: the name is gone with this call.
  // Throws MisuseError where the mechanism cannot leave its family of processes; SystemError:
  // EADDRINUSE, ETIMEDOUT.
  static std::unique_ptr<Reader> serve_reader(const AnyMechanism& mechanism, std::string_view name,
                                              const Options& options, Deadline deadline);
  static std::unique_ptr<Writer> serve_writer(const AnyMechanism& mechanism, std::string_view name,
                                              const Options& options, Deadline deadline);
  // Opens what another process serves. Throws SystemError: ECONNREFUSED if nobody serves `name` by
  // the deadline, EPROTO if it serves another mechanism or the same end, EPERM if another user
  // does.
  static std::unique_ptr<Reader> open_reader(const AnyMechanism& mechanism, std::string_view name,
                                             const Options& options, Deadline deadline);
  static std::unique_ptr<Writer> open_writer(const AnyMechanism& mechanism, std::string_view name,
                                             const Options& options, Deadline deadline);

 private:
  Handles take_handles();

  const AnyMechanism* mechanism_;
  Options options_;
  std::optional<Handles> handles_;
};

// The same, with the mechanism in the type.
template <Mechanism M>
class Channel : public AnyChannel {
 public:
  explicit Channel(const Options& options = {}) : AnyChannel(kMechanism, options) {}

  static std::unique_ptr<Reader> serve_reader(std::string_view name, const Options& options = {},
                                              Deadline deadline = Deadline::never()) {
    return AnyChannel::serve_reader(kMechanism, name, options, deadline);
  }
  static std::unique_ptr<Writer> serve_writer(std::string_view name, const Options& options = {},
                                              Deadline deadline = Deadline::never()) {
    return AnyChannel::serve_writer(kMechanism, name, options, deadline);
  }
  static std::unique_ptr<Reader> open_reader(std::string_view name, const Options& options = {},
                                             Deadline deadline = Deadline::never()) {
    return AnyChannel::open_reader(kMechanism, name, options, deadline);
  }
  static std::unique_ptr<Writer> open_writer(std::string_view name, const Options& options = {},
                                             Deadline deadline = Deadline::never()) {
    return AnyChannel::open_writer(kMechanism, name, options, deadline);
  }

 private:
  static constexpr AnyMechanism kMechanism = AnyMechanism::of<M>();
};

// Both directions at once: two channels of one mechanism.
struct DuplexEnd {
  std::unique_ptr<Reader> reader;
  std::unique_ptr<Writer> writer;
};
class AnyDuplex {
 public:
  AnyDuplex(const AnyMechanism& mechanism, const Options& options);
  // The two ends are alike; what one writes the other reads. Throws as AnyChannel's.
  DuplexEnd take_first();
  DuplexEnd take_second();
  // Both ends in this process (for threads).
  std::pair<DuplexEnd, DuplexEnd> take_both();

  static DuplexEnd serve(const AnyMechanism& mechanism, std::string_view name,
                         const Options& options, Deadline deadline);
  static DuplexEnd open(const AnyMechanism& mechanism, std::string_view name,
                        const Options& options, Deadline deadline);

 private:
  AnyChannel forth_;
  AnyChannel back_;
};
template <Mechanism M>
class Duplex : public AnyDuplex {
 public:
  explicit Duplex(const Options& options = {}) : AnyDuplex(kMechanism, options) {}

 private:
  static constexpr AnyMechanism kMechanism = AnyMechanism::of<M>();
};

}  // namespace farcall::channel
