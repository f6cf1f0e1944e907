// SPDX-License-Identifier: Apache-2.0
//
// What two copies of a message cost, and nothing else: one process copies it into shared memory in
// chunks, another out of there, and neither ever sleeps. How large the chunks are and how many fit
// between the two decides through which caches the bytes go, and differs with the processor; so the
// two try a number of both when they open, and keep the quickest.
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <vector>

#include "compare/rows/rows.hpp"
#include "farcall/memory.hpp"
#include "farcall/wait.hpp"

namespace farcall::compare {
namespace {

constexpr std::size_t kRoom = std::size_t{4} << 20;
constexpr std::size_t kLeastBytes = 4096;

struct Shape {
  std::size_t chunk_bytes;
  std::uint64_t chunks;  // at most so many are ahead of the reader
};
constexpr std::array<Shape, 14> kShapes{{{4096, 2},
                                         {4096, 4},
                                         {4096, 16},
                                         {16384, 2},
                                         {16384, 4},
                                         {16384, 16},
                                         {65536, 2},
                                         {65536, 4},
                                         {65536, 16},
                                         {262144, 2},
                                         {262144, 4},
                                         {262144, 16},
                                         {1048576, 2},
                                         {1048576, 4}}};

struct Shared {
  alignas(kFalseSharing) std::atomic<std::uint64_t> written;  // chunks
  alignas(kFalseSharing) std::atomic<std::uint64_t> read;
  // Into kShapes. Changed by the writer where there is nothing to read.
  alignas(kFalseSharing) std::atomic<std::size_t> shape;
  std::atomic<bool> tried;  // the writer has chosen; likewise
  alignas(4096) std::byte bytes[kRoom];
};

// How often one looks before the other side has to be let on a processor.
unsigned looks_between_yields() {
  cpu_set_t processors;
  const bool alone =
      ::sched_getaffinity(0, sizeof processors, &processors) == 0 && CPU_COUNT(&processors) == 1;
  return alone ? 1 : 4096;
}

template <class Condition>
void until(Condition condition) {
  static thread_local const unsigned between = looks_between_yields();
  for (unsigned looks = 1; !condition(); ++looks) {
    relax();
    if (looks % between == 0) ::sched_yield();
  }
}

class Writer {
 public:
  explicit Writer(Shared& shared) : shared_(shared) {}
  void write(std::span<const std::byte> message) {
    const Shape& shape = kShapes[shape_];
    for (; !message.empty(); ++written_) {
      if (written_ - read_ >= shape.chunks)
        until([&] {
          read_ = shared_.read.load(std::memory_order_acquire);
          return written_ - read_ < shape.chunks;
        });
      const std::size_t size = std::min(message.size(), shape.chunk_bytes);
      std::memcpy(shared_.bytes + written_ % shape.chunks * shape.chunk_bytes, message.data(),
                  size);
      shared_.written.store(written_ + 1, std::memory_order_release);
      message = message.subspan(size);
    }
  }
  void await_reader() {
    until([&] { return shared_.read.load(std::memory_order_acquire) == written_; });
    read_ = written_;
  }
  // Where the reader has read everything.
  void take_shape(std::size_t shape) {
    shape_ = shape;
    shared_.shape.store(shape, std::memory_order_relaxed);  // released by the next chunk
  }
  void say_that_it_has_tried() { shared_.tried.store(true, std::memory_order_release); }

 private:
  Shared& shared_;
  std::size_t shape_ = 0;
  std::uint64_t written_ = 0;
  std::uint64_t read_ = 0;
};

class Reader {
 public:
  explicit Reader(Shared& shared) : shared_(shared) {}
  void read(std::span<std::byte> message) {
    for (; !message.empty(); ++read_) {
      if (written_ == read_)
        until([&] {
          written_ = shared_.written.load(std::memory_order_acquire);
          return written_ != read_;
        });
      const Shape& shape = kShapes[shared_.shape.load(std::memory_order_relaxed)];
      const std::size_t size = std::min(message.size(), shape.chunk_bytes);
      std::memcpy(message.data(), shared_.bytes + read_ % shape.chunks * shape.chunk_bytes, size);
      shared_.read.store(read_ + 1, std::memory_order_release);
      message = message.subspan(size);
    }
  }
  // False once the writer has tried all shapes, and all that it wrote for that has been read.
  bool has_more_trials() {
    until([&] {
      written_ = shared_.written.load(std::memory_order_acquire);
      return written_ != read_ || shared_.tried.load(std::memory_order_acquire);
    });
    // Behind the trials comes what is measured.
    return !shared_.tried.load(std::memory_order_relaxed);
  }

 private:
  Shared& shared_;
  std::uint64_t written_ = 0;
  std::uint64_t read_ = 0;
};

class CopyPairEnd final : public Endpoint {
 public:
  CopyPairEnd(Shared& out, Shared& in) : writer_(out), reader_(in) {}

  void send(std::span<const std::byte> message) override { writer_.write(message); }
  void receive(std::span<std::byte> message) override { reader_.read(message); }

  // The other side reads, or writes, meanwhile. Where others keep the processors busy a chunk may
  // take milliseconds, so no trial is longer than that many, and none is begun after
  // kLongestTrials.
  void try_shapes(std::span<const std::byte> message) {
    std::array<double, kShapes.size()> least;  // ns for a message
    least.fill(std::numeric_limits<double>::infinity());
    const std::int64_t end = monotonic_ns() + kLongestTrials;
    for (unsigned round = 0; round < kRounds; ++round)
      for (std::size_t shape = 0; shape < kShapes.size() && monotonic_ns() < end; ++shape)
        least[shape] = std::min(least[shape], try_shape(shape, message));
    writer_.take_shape(static_cast<std::size_t>(std::ranges::min_element(least) - least.begin()));
    writer_.say_that_it_has_tried();
  }
  void help_trying(std::span<std::byte> message) {
    while (reader_.has_more_trials()) reader_.read(message);
  }

 private:
  static constexpr unsigned kRounds = 3;
  static constexpr std::int64_t kLongestTrial = 20'000'000;
  static constexpr std::int64_t kLongestTrials = 500'000'000;

  double try_shape(std::size_t shape, std::span<const std::byte> message) {
    writer_.take_shape(shape);
    const std::size_t most = std::max<std::size_t>(kRoom / message.size(), 1);
    const std::int64_t begin = monotonic_ns();
    std::size_t count = 0;
    do {
      writer_.write(message);
    } while (++count < most && monotonic_ns() - begin < kLongestTrial);
    writer_.await_reader();
    return static_cast<double>(monotonic_ns() - begin) / static_cast<double>(count);
  }

  Writer writer_;
  Reader reader_;
};

class CopyPairConnection final : public Connection {
 public:
  explicit CopyPairConnection(const Conditions& conditions)
      : message_bytes_(conditions.message_bytes) {}
  std::unique_ptr<Endpoint> open(Role role) override {
    auto* const directions = reinterpret_cast<Shared*>(memory_.data());
    const std::size_t mine = role == Role::client ? 0 : 1;
    auto end = std::make_unique<CopyPairEnd>(directions[mine], directions[1 - mine]);
    std::vector<std::byte> message(message_bytes_, std::byte{1});
    for (const Role writes : {Role::client, Role::server}) {
      if (role == writes)
        end->try_shapes(message);
      else
        end->help_trying(message);
    }
    return end;
  }

 private:
  Mapping memory_ = Mapping::anonymous_shared(2 * sizeof(Shared));
  const std::size_t message_bytes_;
};

}  // namespace

void add_copy_pair(RowList& list) {
  list.add({.mechanism = "copy_pair",
            .engine = "control",
            .wait = "spin",
            .description = "two bare copies, in the chunks and at the distance that are"
                           " quickest here"},
           makes<CopyPairConnection>(), [](const Conditions& conditions) {
             return conditions.message_bytes < kLeastBytes ? "for messages of a page and more" : "";
           });
}

}  // namespace farcall::compare
