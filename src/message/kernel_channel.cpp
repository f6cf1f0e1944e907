// SPDX-License-Identifier: Apache-2.0
#include <sys/ioctl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "farcall/socket.hpp"
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

// How long threads look for what they wait for before they sleep, as the module permits.
constexpr std::uint32_t kSpinUs = 200;

void prepare(ReceiveArguments& receive, const KernelBuffer& into, std::vector<std::int32_t>& files,
             bool wants_files) {
  receive = {};
  receive.buffer = into.get();
  if (!wants_files) return;
  files.resize(FARCALL_DESCRIPTORS);
  receive.files = reinterpret_cast<std::uintptr_t>(files.data());
  receive.file_room = FARCALL_DESCRIPTORS;
}

bool lacks_descriptors(int result) noexcept { return result == -EMFILE || result == -ENFILE; }

}  // namespace

std::atomic<std::uint32_t>& KernelWait::arm(__s64& timeout, Deadline deadline) noexcept {
  if (deadline.is_never())
    timeout = STPLR_ARMED;
  else if (deadline.is_now())
    timeout = 0;
  else
    timeout = std::max<std::int64_t>(deadline.at() - monotonic_ns(), 0);
  return lower_half(timeout);
}

KernelWait::KernelWait(__s64& timeout, Deadline deadline, SignalCount since) noexcept
    : sleeper_(arm(timeout, deadline)) {
  if (SignalCount::now() != since) timeout = STPLR_DISARMED;
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
  for (const iovec& part : buffers) parts_.push_back(::stplr_part(part.iov_base, part.iov_len));
  buffer_ = ::stplr_vector(parts_.data(), static_cast<unsigned>(parts_.size()));
}

KernelChannel::KernelChannel(const char* name, unsigned flags, mode_t mode) : Channel(false) {
  std::uint32_t start = 0;
  (void)!::getrandom(&start, sizeof start, GRND_NONBLOCK);
  // Out of the way of those that the kernel gives to who connects by name.
  next_label_ = (std::int64_t{1} << 62) + (std::int64_t{start} << 24);
  struct ::stplr_channel_create create {};
  create.flags = flags;
  create.mode = name != nullptr ? mode : 0;
  create.spin_us = kSpinUs;
  const std::string_view text = name != nullptr ? name : "";
  if (text.size() >= sizeof create.name) throw SystemError(ENAMETOOLONG, "make a channel");
  std::copy(text.begin(), text.end(), create.name);
  fd_ = process::PrivateFd(
      UniqueFd(static_cast<int>(checked(::stplr_channel_create_full(&create), "make a channel"))));
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
  checked(::stplr_post(fd_.get(), priority, code, value), "pulse");
}

KernelPendingReply& KernelChannel::free_pending() {
  const std::lock_guard guard(lock_);
  if (free_pending_.empty()) {
    all_pending_.push_back(std::make_unique<KernelPendingReply>(*this));
    return *all_pending_.back();
  }
  KernelPendingReply* pending = free_pending_.back();
  free_pending_.pop_back();
  return *pending;
}

void KernelChannel::give_back(KernelPendingReply& pending) noexcept {
  try {
    const std::lock_guard guard(lock_);
    free_pending_.push_back(&pending);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): used no more
  }
}

// The id that the next message gets: the kernel knows it, and tells it, from the time when it hands
// the message out, and another thread may answer by it before this one is back.
class KernelChannel::Expected {
 public:
  explicit Expected(KernelChannel& channel)
      : channel_(channel), pending_(channel.free_pending()), id_(pending_.give_id()) {}
  ~Expected() {
    if (kept_) return;
    if (pending_.take_id()) channel_.give_back(pending_);
  }
  Expected(const Expected&) = delete;
  Expected& operator=(const Expected&) = delete;

  [[nodiscard]] std::uint64_t id() const noexcept { return static_cast<std::uint64_t>(id_); }
  std::int64_t keep() noexcept {
    kept_ = true;
    return id_;
  }

 private:
  KernelChannel& channel_;
  KernelPendingReply& pending_;
  const std::int64_t id_;
  bool kept_ = false;
};

std::int64_t KernelChannel::take(const ReceiveArguments& received, Expected& expected,
                                 const std::vector<std::int32_t>& files, farcall_info* info) {
  ReceivedFds came;
  came.sent_by(received.uid);
  came.reserve(received.file_count);
  for (std::uint32_t i = 0; i < received.file_count; ++i) came.emplace_back(files[i]);
  if (!usable()) throw SystemError(EBADF, "the channel has been closed");
  if (received.pulse != 0) {
    if (info != nullptr) {
      *info = {};
      info->uid = kNoUser;
      info->gid = kNoUser;
      info->code = received.code;
      info->value = received.value;
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
    for (std::size_t i = 0; i < came.size(); ++i) info->descriptors[i] = came[i].release();
  }
  return received.id == 0 ? FARCALL_ONE_WAY : expected.keep();
}

// Who waits when the channel is closed learns of it from the kernel.
void KernelChannel::check_received(int result) const {
  if (result == -ESRCH && !usable()) throw SystemError(EBADF, "the channel has been closed");
  checked(result, "receive");
}

// What brings more descriptors than this process has room for stays the first of all. So it is
// received without them, and its sender told; who waits for no answer is through by then, and its
// message is as good as one without.
std::int64_t KernelChannel::receive(Buffers into, Deadline deadline, farcall_info* info,
                                    SignalCount since) {
  const KernelBuffer buffer(into);
  std::vector<std::int32_t> files;
  for (bool with_files = info != nullptr;;) {
    if (!usable()) throw SystemError(EBADF, "the channel has been closed");
    Expected expected(*this);
    ReceiveArguments received;
    prepare(received, buffer, files, with_files);
    received.wanted_id = expected.id();
    const KernelWait wait(received.timeout_ns, deadline, since);
    const int result = ::stplr_receive_full(fd_.get(), &received);
    if (with_files && lacks_descriptors(result)) {
      with_files = false;
      continue;
    }
    check_received(result);
    if (info != nullptr && !with_files && received.id != 0 && received.value != 0) {
      (void)::stplr_reply_error(fd_.get(), received.id, EMFILE);
      with_files = true;
      continue;
    }
    const std::int64_t id = take(received, expected, files, info);
    if (id != 0 && info != nullptr) info->received = std::min(info->length, size_of(into));
    return id;
  }
}

// Whether this process still owes an answer to that client.
bool KernelChannel::owes(std::int64_t id) const noexcept {
  stplr_access nothing{.id = static_cast<std::uint64_t>(id), .offset = 0, .buffer = {}};
  return ::ioctl(fd_.get(), STPLR_READ, &nothing) >= 0 || errno != ESRCH;
}

// A client whose answer the kernel is given in one call with the wait for the next message, too
// long to hold its id. Nobody can use that meanwhile; where the answer is refused it is good again.
class KernelChannel::Answered {
 public:
  Answered(KernelChannel& channel, PendingReply& pending, std::int64_t id) noexcept
      : channel_(channel), pending_(pending), id_(id) {}
  ~Answered() {
    if (owed_)
      pending_.give_id_again(id_);
    else
      pending_.done();
  }
  Answered(const Answered&) = delete;
  Answered& operator=(const Answered&) = delete;

  // Of the call. A wait that takes too long begins after the answer.
  int result(int result) noexcept {
    owed_ = result < 0 && result != -ETIMEDOUT && channel_.owes(id_);
    return result;
  }

 private:
  KernelChannel& channel_;
  PendingReply& pending_;
  const std::int64_t id_;
  bool owed_ = true;
};

std::int64_t KernelChannel::reply_receive(std::int64_t id, int status, Buffers reply, Buffers into,
                                          Deadline deadline, farcall_info* info,
                                          SignalCount since) {
  if (id == 0) return receive(into, deadline, info, since);
  PendingReply* own = nullptr;
  unless_gone([&] {
    Use use(id);
    if (use->is_of(*this)) {
      own = use.withdraw();
    } else {
      unless_gone([&] { use->reply(status, 0, reply, false); });
      use.end();
    }
  });
  if (own == nullptr) return receive(into, deadline, info, since);
  Answered answered(*this, *own, id);
  const KernelBuffer answer(reply);
  const KernelBuffer buffer(into);
  std::vector<std::int32_t> files;
  if (!usable()) throw SystemError(EBADF, "the channel has been closed");
  Expected expected(*this);
  ReplyReceiveArguments both{};
  both.reply.id = static_cast<std::uint64_t>(id);
  both.reply.status = status;
  both.reply.buffer = answer.get();
  prepare(both.receive, buffer, files, info != nullptr);
  both.receive.wanted_id = expected.id();
  const KernelWait wait(both.receive.timeout_ns, deadline, since);
  const int result = answered.result(::stplr_reply_receive(fd_.get(), &both));
  if (lacks_descriptors(result)) return receive(into, deadline, info, since);
  check_received(result);
  const std::int64_t next = take(both.receive, expected, files, info);
  if (next != 0 && info != nullptr) info->received = std::min(info->length, size_of(into));
  return next;
}

// The descriptor goes with the object, which those who are just receiving hold.
void KernelChannel::close() noexcept {
  (void)::stplr_shutdown(fd_.get());
  std::vector<KernelPendingReply*> waiting;
  try {
    const std::lock_guard guard(lock_);
    for (const auto& pending : all_pending_) waiting.push_back(pending.get());
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the kernel refuses them, too
  }
  for (KernelPendingReply* pending : waiting) (void)pending->take_id();
}

bool KernelPendingReply::is_of(const Channel& that) const noexcept { return &channel == &that; }

void KernelPendingReply::reply(int status, int error, Buffers data, bool) {
  const KernelBuffer buffer(data);
  ReplyArguments reply{};
  reply.id = static_cast<std::uint64_t>(id());
  reply.status = status;
  reply.buffer = buffer.get();
  reply.error = error;
  if (::ioctl(channel.descriptor(), STPLR_REPLY, &reply) < 0) throw_errno("reply");
}

std::size_t KernelPendingReply::read(std::size_t offset, Buffers to) {
  const KernelBuffer buffer(to);
  stplr_access access{
      .id = static_cast<std::uint64_t>(id()), .offset = offset, .buffer = buffer.get()};
  const int count = ::ioctl(channel.descriptor(), STPLR_READ, &access);
  if (count < 0) throw_errno("read");
  return static_cast<std::size_t>(count);
}

std::size_t KernelPendingReply::write(std::size_t offset, Buffers from) {
  const KernelBuffer buffer(from);
  stplr_access access{
      .id = static_cast<std::uint64_t>(id()), .offset = offset, .buffer = buffer.get()};
  const int count = ::ioctl(channel.descriptor(), STPLR_WRITE, &access);
  if (count < 0) throw_errno("write");
  return static_cast<std::size_t>(count);
}

void KernelPendingReply::done() noexcept { channel.give_back(*this); }

}  // namespace farcall::message
