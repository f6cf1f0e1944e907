// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/sysv_mq.hpp"

#include <sys/ipc.h>
#include <sys/msg.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "channel/descriptor.hpp"
#include "channel/lifeline.hpp"
#include "channel/record.hpp"
#include "channel/sysv_queue.hpp"
#include "channel/watcher.hpp"
#include "farcall/error.hpp"

namespace farcall::channel {
namespace {

// The type of a message says what it is and carries nothing else.
enum Type : long { kMessage = 1, kFinished, kDied };

// msgsnd and msgrcv want the type in front of the bytes.
class Envelope {
 public:
  explicit Envelope(std::size_t longest) : memory_(sizeof(long) + longest) {}

  void set_type(long type) noexcept { std::memcpy(memory_.data(), &type, sizeof type); }
  [[nodiscard]] long type() const noexcept {
    long type = 0;
    std::memcpy(&type, memory_.data(), sizeof type);
    return type;
  }
  std::byte* bytes() noexcept { return memory_.data() + sizeof(long); }
  std::byte* data() noexcept { return memory_.data(); }

 private:
  std::vector<std::byte> memory_;  // operator new aligns it well enough for a long
};

// Runs on the watcher's thread: puts a mark behind the last message. Waits while the queue is full,
// until the reader takes something or removes the queue.
void post_mark(int queue, Watcher::News news) {
  const long mark = news == Watcher::News::finished ? kFinished : kDied;
  uninterrupted([&] { return ::msgsnd(queue, &mark, 0, 0); });
}

class SysvReader final : public RecordReader {
 public:
  SysvReader(std::size_t longest, int queue, UniqueFd hold, Lifeline lifeline)
      : RecordReader(longest),
        hold_(std::move(hold)),
        queue_(queue),
        envelope_(longest),
        watcher_(std::move(lifeline), [queue](Watcher::News news) { post_mark(queue, news); }) {}
  ~SysvReader() override {
    // Also ends the watcher's wait for a place in the queue.
    if (watcher_.is_owner()) sysv_queue::remove(queue_);
    watcher_.stop();
  }

 protected:
  std::optional<std::size_t> take(std::span<std::byte> into, std::span<std::byte> spill) override {
    if (end_ == kMessage) {
      watcher_.start();
      const ssize_t got =
          uninterrupted([&] { return ::msgrcv(queue_, envelope_.data(), longest(), 0, 0); });
      if (got < 0) throw_errno("msgrcv");
      end_ = envelope_.type();
      if (end_ == kMessage) return unpack(static_cast<std::size_t>(got), into, spill);
    }
    if (end_ == kFinished) return std::nullopt;
    throw SystemError(ECONNRESET, "the writer has died without finishing");
  }

 private:
  std::size_t unpack(std::size_t size, std::span<std::byte> into, std::span<std::byte> spill) {
    const std::size_t head = std::min(size, into.size());
    std::copy_n(envelope_.bytes(), head, into.data());
    std::copy_n(envelope_.bytes() + head, std::min(size - head, spill.size()), spill.data());
    return size;
  }

  UniqueFd hold_;
  int queue_;
  Envelope envelope_;
  long end_ = kMessage;  // or the mark that was found
  Watcher watcher_;
};

class SysvWriter final : public RecordWriter {
 public:
  SysvWriter(std::size_t longest, int queue, UniqueFd hold, Lifeline lifeline)
      : RecordWriter(longest, longest),
        hold_(std::move(hold)),
        queue_(queue),
        envelope_(longest),
        watcher_(std::move(lifeline), [queue](Watcher::News) { sysv_queue::remove(queue); }) {
    envelope_.set_type(kMessage);
  }
  ~SysvWriter() override {
    finish_quietly();
    // The reader removes the queue when it has read all, unless there is none any more.
    if (watcher_.is_owner() && !watcher_.other_exists()) sysv_queue::remove(queue_);
    watcher_.stop();
  }

 protected:
  void write_message(std::span<const std::byte> message) override {
    watcher_.start();
    std::copy(message.begin(), message.end(), envelope_.bytes());
    const int result =
        uninterrupted([&] { return ::msgsnd(queue_, envelope_.data(), message.size(), 0); });
    // The reader has removed the queue, or our watcher has when the reader died.
    if (result < 0 && errno == EINVAL) errno = EIDRM;
    if (result < 0) throw_write_error("msgsnd");
  }
  void write_end() override { watcher_.say_finished(); }
  std::string limit_advice() const override {
    return "; /proc/sys/kernel/msgmax sets it, and write() splits what is longer";
  }

 private:
  UniqueFd hold_;
  int queue_;
  Envelope envelope_;
  Watcher watcher_;
};

struct Attributes {
  std::int64_t key;
  std::uint64_t longest;
  std::uint64_t bytes;
};

}  // namespace

const Properties& SysvMq::properties() {
  static constexpr Properties kProperties{.name = "sysv_mq",
                                          .title = "System V message queue",
                                          .boundaries = true,
                                          .by_name = true,
                                          .notices_death = true,
                                          .waits = false};
  return kProperties;
}

Handles SysvMq::create(const Options& options) {
  sysv_queue::Name name = sysv_queue::reserve();
  auto [reader_life, writer_life] = Lifeline::make();
  UniqueFd second_hold = name.hold.duplicate();
  Handles handles{.reader = handle_of(std::move(name.hold), std::move(reader_life)),
                  .writer = handle_of(std::move(second_hold), std::move(writer_life))};
  const Attributes attributes{
      .key = name.key, .longest = sysv_queue::longest_message(), .bytes = options.buffer_bytes};
  put_value(handles.reader, attributes);
  put_value(handles.writer, attributes);
  return handles;
}

std::unique_ptr<Reader> SysvMq::open_reader(Handle handle, const Options&) {
  const auto attributes = get_value<Attributes>(handle);
  auto fds = take_descriptors(handle, 2);
  const int queue = sysv_queue::open(static_cast<key_t>(attributes.key), attributes.bytes);
  return std::make_unique<SysvReader>(attributes.longest, queue, std::move(fds[0]),
                                      Lifeline(std::move(fds[1])));
}

std::unique_ptr<Writer> SysvMq::open_writer(Handle handle, const Options&) {
  const auto attributes = get_value<Attributes>(handle);
  auto fds = take_descriptors(handle, 2);
  const int queue = sysv_queue::open(static_cast<key_t>(attributes.key), attributes.bytes);
  return std::make_unique<SysvWriter>(attributes.longest, queue, std::move(fds[0]),
                                      Lifeline(std::move(fds[1])));
}

}  // namespace farcall::channel
