// SPDX-License-Identifier: Apache-2.0
#include <sys/ioctl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "message/kernel.hpp"

namespace farcall::message {
namespace {

static_assert(FARCALL_UNBLOCK == STPLR_CHANNEL_UNBLOCK &&
              FARCALL_DISCONNECT == STPLR_CHANNEL_DISCONNECT &&
              FARCALL_INHERIT == STPLR_CHANNEL_INHERIT);
static_assert(FARCALL_PULSE_DISCONNECT == STPLR_PULSE_DISCONNECT &&
              FARCALL_PULSE_UNBLOCK == STPLR_PULSE_UNBLOCK &&
              FARCALL_PULSE_DEATH == STPLR_PULSE_DEATH);
static_assert(FARCALL_DESCRIPTORS == STPLR_FILES_MAX);

// To threads that receive from a channel of this process that is being closed.
constexpr int kClosed = INT_MAX;

void prepare(ReceiveArguments& receive, const KernelBuffer& into, Deadline deadline,
             std::vector<std::int32_t>& files, bool wants_files) {
  receive = {};
  receive.buffer = into.get();
  receive.timeout_ns = time_left(deadline);
  if (!wants_files) return;
  files.resize(FARCALL_DESCRIPTORS);
  receive.files = reinterpret_cast<std::uintptr_t>(files.data());
  receive.file_room = FARCALL_DESCRIPTORS;
}

class Counted {
 public:
  explicit Counted(std::atomic<int>& count) noexcept : count_(count) {
    count_.fetch_add(1, std::memory_order_seq_cst);
  }
  ~Counted() { count_.fetch_sub(1, std::memory_order_seq_cst); }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<int>& count_;
};

}  // namespace

std::int64_t time_left(Deadline deadline) noexcept {
  if (deadline.is_never()) return STPLR_FOREVER;
  if (deadline.is_now()) return 0;
  return std::max<std::int64_t>(deadline.at() - monotonic_ns(), 0);
}

ssize_t checked(ssize_t result, const char* what) {
  if (result < 0) throw SystemError(static_cast<int>(-result), what);
  return result;
}

KernelBuffer::KernelBuffer(Buffers buffers) {
  if (buffers.size() <= 1) {
    if (!buffers.empty()) buffer_ = ::stplr_bytes(buffers[0].iov_base, buffers[0].iov_len);
    return;
  }
  parts_.reserve(buffers.size());
  for (const iovec& part : buffers)
    parts_.push_back(::stplr_part(part.iov_base, part.iov_len));
  buffer_ = ::stplr_vector(parts_.data(), static_cast<unsigned>(parts_.size()));
}

KernelChannel::KernelChannel(const char* name, unsigned flags, mode_t mode) : Channel(false) {
  std::uint32_t start = 0;
  (void)!::getrandom(&start, sizeof start, GRND_NONBLOCK);
  // Out of the way of those that the kernel gives to who connects by name.
  next_label_ = (std::int64_t{1} << 62) + (std::int64_t{start} << 24);
  fd_ = process::PrivateFd(UniqueFd(static_cast<int>(
      checked(::stplr_channel_create(name, name != nullptr ? mode : 0, flags), "make a channel"))));
}

KernelChannel::~KernelChannel() {
  if (of_this_process() && shut()) close();
}

UniqueFd KernelChannel::connect() {
  const auto label =
      static_cast<std::uint64_t>(next_label_.fetch_add(1, std::memory_order_relaxed));
  return UniqueFd(static_cast<int>(checked(::stplr_channel_connect(fd_.get(), label), "connect")));
}

void KernelChannel::post(int priority, int code, std::int64_t value) {
  const UniqueFd connection = connect();
  const PulseArguments pulse{.code = code, .priority = priority, .value = value};
  if (::ioctl(connection.get(), STPLR_PULSE, &pulse) != 0) throw_errno("pulse");
}

KernelPendingReply& KernelChannel::pending_for(std::uint64_t kernel_id) {
  KernelPendingReply* pending = nullptr;
  const std::lock_guard guard(lock_);
  if (free_pending_.empty()) {
    all_pending_.push_back(std::make_unique<KernelPendingReply>(*this));
    pending = all_pending_.back().get();
  } else {
    pending = free_pending_.back();
    free_pending_.pop_back();
  }
  pending->kernel_id.store(kernel_id, std::memory_order_relaxed);
  return *pending;
}

void KernelChannel::give_back(KernelPendingReply& pending) noexcept {
  try {
    const std::lock_guard guard(lock_);
    free_pending_.push_back(&pending);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): used no more
  }
}

std::int64_t KernelChannel::id_of(std::uint64_t kernel_id) const noexcept {
  const std::lock_guard guard(lock_);
  for (const auto& pending : all_pending_) {
    const std::int64_t id = pending->id();
    if (id != 0 && pending->kernel_id.load(std::memory_order_relaxed) == kernel_id) return id;
  }
  return 0;
}

// Another thread may have it from the kernel, and not have given it an id yet.
std::int64_t KernelChannel::wait_for_id_of(std::uint64_t kernel_id) const noexcept {
  constexpr int kMostLooks = 100;
  const process::NoCancel guard;
  for (int i = 0; i < kMostLooks; ++i) {
    if (const std::int64_t id = id_of(kernel_id); id != 0) return id;
    ::usleep(100);
  }
  return 0;
}

// -1: a pulse that is nobody's any more; receive again.
std::int64_t KernelChannel::take(const ReceiveArguments& received,
                                 const std::vector<std::int32_t>& files, farcall_info* info) {
  if (!usable()) throw SystemError(EBADF, "the channel has been closed");
  if (received.pulse != 0) {
    std::int64_t value = received.value;
    if (received.code == FARCALL_PULSE_UNBLOCK) {
      // The kernel tells its own id, which programs do not know.
      value = wait_for_id_of(static_cast<std::uint64_t>(value));
      if (value == 0) return -1;
    }
    if (info != nullptr) {
      *info = {};
      info->code = received.code;
      info->value = value;
      info->priority = received.priority;
    }
    return 0;
  }
  if (info != nullptr) {
    *info = {};
    info->connection = static_cast<std::int64_t>(received.label);
    info->pid = received.pid;
    info->tid = received.tid;
    info->uid = received.uid;
    info->gid = received.gid;
    info->priority = received.priority;
    info->length = received.length;
    info->room = received.room;
    info->descriptor_count = received.file_count;
    std::copy_n(files.begin(), received.file_count, info->descriptors);
  }
  return received.id == 0 ? FARCALL_ONE_WAY : pending_for(received.id).give_id();
}

// Each wait is one system call, which the kernel interrupts.
std::int64_t KernelChannel::receive(Buffers into, Deadline deadline, farcall_info* info,
                                    SignalCount) {
  const KernelBuffer buffer(into);
  std::vector<std::int32_t> files;
  const Counted counted(receiving_);
  for (;;) {
    if (!usable()) throw SystemError(EBADF, "the channel has been closed");
    ReceiveArguments received;
    prepare(received, buffer, deadline, files, info != nullptr);
    checked(::stplr_receive_full(fd_.get(), &received), "receive");
    const std::int64_t id = take(received, files, info);
    if (id < 0) continue;
    if (id != 0 && info != nullptr) info->received = std::min(info->length, size_of(into));
    return id;
  }
}

std::int64_t KernelChannel::reply_receive(std::int64_t id, int status, Buffers reply, Buffers into,
                                          Deadline deadline, farcall_info* info,
                                          SignalCount since) {
  if (id == 0) return receive(into, deadline, info, since);
  ReplyReceiveArguments both{};
  const KernelBuffer answer(reply);
  const KernelBuffer buffer(into);
  std::vector<std::int32_t> files;
  {
    Use use(id);
    auto* pending = dynamic_cast<KernelPendingReply*>(use.get());
    if (pending == nullptr || &pending->channel != this) {
      use->reply(status, 0, reply, false);
      use.end();
      both.reply.id = 0;
    } else {
      both.reply = {.id = pending->kernel_id.load(std::memory_order_relaxed),
                    .status = status,
                    .buffer = answer.get(),
                    .error = 0,
                    .reserved = 0};
      // From here on the kernel has it; what fails there fails for good.
      use.end();
    }
  }
  if (both.reply.id == 0) return receive(into, deadline, info, since);
  std::int64_t next = -1;
  {
    const Counted counted(receiving_);
    if (!usable()) throw SystemError(EBADF, "the channel has been closed");
    prepare(both.receive, buffer, deadline, files, info != nullptr);
    checked(::stplr_reply_receive(fd_.get(), &both), "reply and receive");
    next = take(both.receive, files, info);
  }
  if (next < 0) return receive(into, deadline, info, since);
  if (next != 0 && info != nullptr) info->received = std::min(info->length, size_of(into));
  return next;
}

void KernelChannel::close() noexcept {
  // Threads that receive hold the channel open; they are told.
  constexpr int kMostRounds = 1000;
  try {
    for (int round = 0; receiving_.load(std::memory_order_seq_cst) > 0 && round < kMostRounds;
         ++round) {
      post(0, kClosed, 0);
      ::usleep(1000);
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): they notice with the next
  }
  std::vector<KernelPendingReply*> waiting;
  {
    const std::lock_guard guard(lock_);
    for (const auto& pending : all_pending_) waiting.push_back(pending.get());
  }
  for (KernelPendingReply* pending : waiting) (void)pending->take_id();
  // Its last descriptor, unless a child has one: clients get ESRCH.
  fd_.reset();
}

void KernelPendingReply::reply(int status, int error, Buffers data, bool) {
  const KernelBuffer buffer(data);
  const ReplyArguments reply{.id = kernel_id.load(std::memory_order_relaxed),
                             .status = status,
                             .buffer = buffer.get(),
                             .error = error,
                             .reserved = 0};
  if (::ioctl(channel.descriptor(), STPLR_REPLY, &reply) < 0) throw_errno("reply");
}

std::size_t KernelPendingReply::read(std::size_t offset, Buffers to) {
  const KernelBuffer buffer(to);
  stplr_access access{
      .id = kernel_id.load(std::memory_order_relaxed), .offset = offset, .buffer = buffer.get()};
  const int count = ::ioctl(channel.descriptor(), STPLR_READ, &access);
  if (count < 0) throw_errno("read");
  return static_cast<std::size_t>(count);
}

std::size_t KernelPendingReply::write(std::size_t offset, Buffers from) {
  const KernelBuffer buffer(from);
  stplr_access access{
      .id = kernel_id.load(std::memory_order_relaxed), .offset = offset, .buffer = buffer.get()};
  const int count = ::ioctl(channel.descriptor(), STPLR_WRITE, &access);
  if (count < 0) throw_errno("write");
  return static_cast<std::size_t>(count);
}

void KernelPendingReply::done() noexcept { channel.give_back(*this); }

}  // namespace farcall::message
