// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/posix_mq.hpp"

#include <mqueue.h>
#include <poll.h>
#include <sys/random.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "channel/counted.hpp"
#include "channel/descriptor.hpp"
#include "channel/kernel_limit.hpp"
#include "farcall/error.hpp"

namespace farcall::channel {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kCheckReader = 50'000'000;  // ns

// Queues count on the clock that may be set; what depends on it here is only when we look again.
timespec wall_clock() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return now;
}
timespec in_milliseconds(timespec from, int milliseconds) {
  const std::int64_t ns = from.tv_nsec + std::int64_t{milliseconds} * 1'000'000;
  return {.tv_sec = from.tv_sec + ns / kSecond, .tv_nsec = ns % kSecond};
}

class QueueReader final : public CountedReader {
 public:
  QueueReader(std::size_t longest, UniqueFd queue, Lifeline lifeline)
      : CountedReader(longest, queue.get(), std::move(lifeline)), queue_(std::move(queue)) {}

 protected:
  std::optional<std::size_t> attempt(std::span<std::byte> into, std::span<std::byte> spill,
                                     Wait wait) override {
    // The queue refuses a buffer that is too small for its longest message.
    const bool direct = into.size() >= longest();
    if (!direct && buffer_.empty()) buffer_.resize(longest());
    const std::span<std::byte> room = direct ? into : std::span(buffer_);
    // A time long past: do not wait.
    const timespec until = wait == Wait::no ? timespec{} : in_milliseconds(wall_clock(), kBriefly);
    const ssize_t got = uninterrupted([&] {
      return ::mq_timedreceive(queue_.get(), reinterpret_cast<char*>(room.data()), room.size(),
                               nullptr, &until);
    });
    if (got < 0 && errno == ETIMEDOUT) return std::nullopt;
    if (got < 0) throw_errno("mq_receive");
    const std::size_t size = static_cast<std::size_t>(got);
    if (!direct) {
      const std::size_t head = std::min(size, into.size());
      std::copy_n(buffer_.data(), head, into.data());
      std::copy_n(buffer_.data() + head, std::min(size - head, spill.size()), spill.data());
    }
    return size;
  }

 private:
  UniqueFd queue_;
  std::vector<std::byte> buffer_;
};

class QueueWriter final : public CountedWriter {
 public:
  QueueWriter(std::size_t longest, UniqueFd queue, Lifeline lifeline)
      : CountedWriter(longest, longest, std::move(lifeline)), queue_(std::move(queue)) {}
  ~QueueWriter() override { finish_quietly(); }

 protected:
  void post(std::span<const std::byte> message) override {
    const timespec now = wall_clock();
    // A queue takes messages until it is full, whether anybody reads them or not.
    if (is_time_to_check(now)) require_reader();
    if (offer(message, in_milliseconds(now, kBriefly))) return;
    for (;;) {
      require_reader();
      sleep_on(queue_.get(), POLLOUT, lifeline());
      if (offer(message, timespec{})) return;
    }
  }
  void post_mark() noexcept override {
    const timespec until = in_milliseconds(wall_clock(), kPatienceForMark);
    ::mq_timedsend(queue_.get(), "", 0, 0, &until);
  }
  void close_mechanism() noexcept override { queue_.reset(); }
  std::string limit_advice() const override {
    return "; /proc/sys/fs/mqueue/msgsize_max sets it, all queues of a user share RLIMIT_MSGQUEUE, "
           "and write() splits what is longer";
  }

 private:
  bool is_time_to_check(timespec now) {
    const std::int64_t at = now.tv_sec * kSecond + now.tv_nsec;
    if (at >= checked_at_ && at - checked_at_ < kCheckReader) return false;
    checked_at_ = at;
    return true;
  }
  void require_reader() {
    if (!lifeline().is_alive()) throw SystemError(EPIPE, "mq_send: the reader has gone");
  }
  // False if the queue stayed full.
  bool offer(std::span<const std::byte> message, timespec until) {
    // An empty span may have no address, but the C library wants one.
    const char* data = message.empty() ? "" : reinterpret_cast<const char*>(message.data());
    const int result = uninterrupted(
        [&] { return ::mq_timedsend(queue_.get(), data, message.size(), 0, &until); });
    if (result < 0 && errno != ETIMEDOUT) throw_errno("mq_send");
    return result == 0;
  }

  UniqueFd queue_;
  std::int64_t checked_at_ = 0;
};

struct Queue {
  UniqueFd reader;
  UniqueFd writer;
};

std::string random_name() {
  std::array<std::uint64_t, 2> bits{};
  if (::getrandom(bits.data(), sizeof bits, 0) != sizeof bits) throw_errno("getrandom");
  std::array<char, 48> name{};
  // clean.cpp knows this name.
  std::snprintf(name.data(), name.size(), "/farcall-mq-%016llx%016llx",
                static_cast<unsigned long long>(bits[0]), static_cast<unsigned long long>(bits[1]));
  return name.data();
}

// Makes a queue whose name is gone again; no reader if the limits do not allow it.
Queue make_queue(mq_attr attributes) {
  const std::string name = random_name();
  Queue queue;
  queue.reader = UniqueFd(::mq_open(name.c_str(), O_RDONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                                    S_IRUSR | S_IWUSR, &attributes));
  if (!queue.reader) {
    if (errno == EMFILE || errno == ENOSPC || errno == ENOMEM) return queue;
    throw_errno("mq_open");
  }
  queue.writer = UniqueFd(::mq_open(name.c_str(), O_WRONLY | O_CLOEXEC));
  const int error = errno;
  ::mq_unlink(name.c_str());
  if (!queue.writer) throw SystemError(error, "mq_open");
  return queue;
}

}  // namespace

const Properties& PosixMq::properties() {
  static constexpr Properties kProperties{.name = "posix_mq",
                                          .title = "POSIX message queue",
                                          .boundaries = true,
                                          .by_name = true,
                                          .notices_death = true,
                                          .waits = false};
  return kProperties;
}

Handles PosixMq::create(const Options& options) {
  const std::size_t longest = kernel_limit("/proc/sys/fs/mqueue/msgsize_max", 8192);
  const std::size_t most = kernel_limit("/proc/sys/fs/mqueue/msg_max", 10);
  std::size_t count = options.buffer_bytes == 0 ? 10 : options.buffer_bytes / longest;
  count = std::clamp<std::size_t>(count, 1, most);
  mq_attr attributes{};
  attributes.mq_msgsize = static_cast<long>(longest);
  Queue queue;
  for (; !queue.reader && count > 0; count /= 2) {
    attributes.mq_maxmsg = static_cast<long>(count);
    queue = make_queue(attributes);
  }
  if (!queue.reader)
    throw_errno(
        "mq_open; the queues of a user may hold RLIMIT_MSGQUEUE bytes (ulimit -q) and the system "
        "/proc/sys/fs/mqueue/queues_max queues");
  auto [reader_life, writer_life] = Lifeline::make();
  Handles handles{.reader = handle_of(std::move(queue.reader), std::move(reader_life)),
                  .writer = handle_of(std::move(queue.writer), std::move(writer_life))};
  put_value(handles.reader, std::uint64_t{longest});
  put_value(handles.writer, std::uint64_t{longest});
  return handles;
}

std::unique_ptr<Reader> PosixMq::open_reader(Handle handle, const Options&) {
  const auto longest = get_value<std::uint64_t>(handle);
  auto fds = take_descriptors(handle, 2);
  return std::make_unique<QueueReader>(longest, std::move(fds[0]), Lifeline(std::move(fds[1])));
}

std::unique_ptr<Writer> PosixMq::open_writer(Handle handle, const Options&) {
  const auto longest = get_value<std::uint64_t>(handle);
  auto fds = take_descriptors(handle, 2);
  return std::make_unique<QueueWriter>(longest, std::move(fds[0]), Lifeline(std::move(fds[1])));
}

}  // namespace farcall::channel
