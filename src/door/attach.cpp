// SPDX-License-Identifier: Apache-2.0
#include "door/attach.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <deque>

#include "call/identity.hpp"
#include "door/listener.hpp"
#include "door/real.hpp"
#include "farcall/doors.h"
#include "farcall/error.hpp"
#include "farcall/peer.hpp"

namespace farcall::door {
namespace {

// What is sent over a connection to an attachment's socket.
constexpr std::uint8_t kPurposeOpen = 17;    // a descriptor of the file; answered with a door
constexpr std::uint8_t kPurposeDetach = 18;  // answered with a packet of no descriptors

constexpr auto kPatience = std::chrono::seconds(5);
constexpr auto kBacklogPatience = std::chrono::seconds(1);
constexpr std::size_t kMostAttachments = 1024;  // of one process
constexpr std::size_t kMostVisitors = 256;
// What the warden answers goes at once or not at all.
constexpr auto kNoPatience = std::chrono::nanoseconds::zero();

AbstractAddress address_of(const struct stat& status) noexcept {
  std::array<char, 80> name;
  const int length = std::snprintf(name.data(), name.size(), "farcall/attach/%" PRIx64 "/%" PRIx64,
                                   static_cast<std::uint64_t>(status.st_dev),
                                   static_cast<std::uint64_t>(status.st_ino));
  return AbstractAddress({name.data(), static_cast<std::size_t>(length)});
}

bool is_named(int socket, const AbstractAddress& name) noexcept {
  const auto other = AbstractAddress::of(socket);
  return other && other->name() == name.name();
}

bool may_attach(uid_t user, const struct stat& status) noexcept {
  // Whose such a file is cannot be known. Only root of the whole system may do as it likes with it.
  if (call::is_overflow_id(status.st_uid)) return user == 0 && call::knows_all_users();
  return user == 0 || call::same_user(user, status.st_uid);
}

// A connection to the attachment of a file; none where there is none that counts.
UniqueFd connect_to(const struct stat& status) noexcept {
  const NoCancel guard;
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return {};
  const AbstractAddress address = address_of(status);
  int result = ::connect(fd.get(), address.get(), address.size());
  if (result != 0 && errno == EAGAIN) {
    // Too many are there before us. Anybody may take the name and let nobody in: only for those who
    // may attach is it worth to wait, and not for ever.
    const auto owner = owner_of_listener(address.name());
    if (!owner || !may_attach(*owner, status)) return {};
    const Deadline deadline = Deadline::after(kBacklogPatience);
    ::fcntl(fd.get(), F_SETFL, O_RDWR);
    do {
      const std::int64_t left = (deadline.at() - monotonic_ns()) / 1000;
      if (left <= 0) return {};
      const timeval longest{.tv_sec = left / 1'000'000, .tv_usec = left % 1'000'000};
      ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof longest);
      result = ::connect(fd.get(), address.get(), address.size());
    } while (result != 0 && errno == EINTR);
  }
  if (result != 0) return {};
  ucred server{};
  socklen_t size = sizeof server;
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &server, &size) != 0 ||
      !may_attach(server.uid, status))
    return {};
  return fd;
}

// The answer to what was sent; its kind is `closed` where none comes in time.
Arrival await_answer(int socket) {
  const Deadline deadline = Deadline::after(kPatience);
  for (;;) {
    Arrival arrival = take_arrival(socket);
    if (arrival.kind != Arrival::Kind::nothing) return arrival;
    const std::int64_t left = (deadline.at() - monotonic_ns()) / 1'000'000;
    pollfd entry{.fd = socket, .events = POLLIN, .revents = 0};
    if (left <= 0 || (::poll(&entry, 1, static_cast<int>(left)) < 0 && errno != EINTR)) {
      arrival.kind = Arrival::Kind::closed;
      return arrival;
    }
  }
}

std::atomic<std::size_t> attachments{0};

// Which errno describes that a path cannot be covered by this process; 0 if it can.
int refusal(int file, const struct stat& status) noexcept {
  if (!may_attach(::geteuid(), status)) return EPERM;
  if (!S_ISREG(status.st_mode)) return EINVAL;
  if (::faccessat(file, "", W_OK, AT_EACCESS | AT_EMPTY_PATH) != 0 && errno == EACCES)
    return EACCES;
  return 0;
}

}  // namespace

class Attachment final : public call::Watch, public std::enable_shared_from_this<Attachment> {
 public:
  Attachment(std::weak_ptr<Door> door, UniqueFd listener, UniqueFd file)
      : door_(std::move(door)), listener_(std::move(listener)), file_(std::move(file)) {
    ++attachments;
  }
  ~Attachment() override {
    stop();
    --attachments;
  }

  // The kernel tells when the last name of the file goes.
  void start() {
    const int flags = ::fcntl(listener_.get(), F_GETFL);
    ::fcntl(listener_.get(), F_SETFL, flags | O_NONBLOCK);
    number_ = call::Warden::here().watch(listener_.get(), EPOLLIN, shared_from_this());
    class Names final : public call::Watch {
     public:
      explicit Names(std::weak_ptr<Attachment> attachment) : attachment_(std::move(attachment)) {}
      void heard(std::uint32_t) noexcept override {
        if (const auto attachment = attachment_.lock()) attachment->look_for_names();
      }

     private:
      const std::weak_ptr<Attachment> attachment_;
    };
    // Where there is no more of that to be had, it is noticed at the next visit.
    names_ = call::PrivateFd(UniqueFd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)));
    if (!names_) return;
    const std::string path = "/proc/self/fd/" + std::to_string(file_.get());
    if (::inotify_add_watch(names_.get(), path.c_str(), IN_ATTRIB | IN_DELETE_SELF) < 0) return;
    names_number_ = call::Warden::here().watch(names_.get(), EPOLLIN,
                                               std::make_shared<Names>(weak_from_this()));
  }

  void detach() noexcept {
    const auto keep = shared_from_this();
    stop();
    if (const auto door = door_.lock()) door->remove_attachment(*this);
  }

  // Somebody connects.
  void heard(std::uint32_t) noexcept override;

  [[nodiscard]] std::shared_ptr<Door> door() const noexcept { return door_.lock(); }
  [[nodiscard]] bool covers(const struct stat& status) const noexcept {
    struct stat mine {};
    return real::fstat(file_.get(), &mine) == 0 && mine.st_dev == status.st_dev &&
           mine.st_ino == status.st_ino;
  }
  [[nodiscard]] uid_t owner() const noexcept {
    struct stat mine {};
    return real::fstat(file_.get(), &mine) == 0 ? mine.st_uid : 0;
  }

 private:
  void stop() noexcept {
    // A child's copy leaves what is watched in the parent.
    if (listener_ && number_ != 0) call::Warden::here().forget(listener_.get(), number_);
    if (names_ && names_number_ != 0) call::Warden::here().forget(names_.get(), names_number_);
    number_ = names_number_ = 0;
    listener_.reset();
    names_.reset();
  }
  void look_for_names() noexcept {
    alignas(inotify_event) std::array<char, 4096> events;
    while (::read(names_.get(), events.data(), events.size()) > 0) {
    }
    struct stat mine {};
    if (real::fstat(file_.get(), &mine) != 0 || mine.st_nlink == 0) detach();
  }

  const std::weak_ptr<Door> door_;
  call::PrivateFd listener_;
  call::PrivateFd file_;
  call::PrivateFd names_;
  std::uint64_t number_ = 0;
  std::uint64_t names_number_ = 0;
};

namespace {

// Who has connected to an attachment, until it has said what it wants.
class Visitor final : public call::Watch, public std::enable_shared_from_this<Visitor> {
 public:
  Visitor(std::weak_ptr<Attachment> attachment, UniqueFd socket)
      : attachment_(std::move(attachment)), socket_(std::move(socket)) {}

  void start() {
    number_ = call::Warden::here().watch(socket_.get(), EPOLLIN | EPOLLRDHUP, shared_from_this());
  }
  void dismiss() noexcept {
    call::Warden::here().forget(socket_.get(), number_);
    ::shutdown(socket_.get(), SHUT_RDWR);
  }

  void heard(std::uint32_t) noexcept override {
    const auto keep = shared_from_this();
    try {
      Arrival arrival = take_arrival(socket_.get());
      if (arrival.kind == Arrival::Kind::nothing) return;
      if (const auto attachment = attachment_.lock();
          attachment && arrival.kind == Arrival::Kind::descriptors) {
        if (arrival.purpose == kPurposeOpen) open(*attachment, arrival.descriptors);
        if (arrival.purpose == kPurposeDetach) detach(*attachment);
      }
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it gets no answer
    }
    dismiss();
  }

 private:
  void open(const Attachment& attachment, const std::vector<UniqueFd>& proof) {
    struct stat status {};
    if (proof.size() != 1 || real::fstat(proof[0].get(), &status) != 0) return;
    // Whoever may not open the file has no more than its name.
    const int flags = ::fcntl(proof[0].get(), F_GETFL);
    if (flags < 0 || (flags & O_PATH) != 0 || !attachment.covers(status)) return;
    const auto door = attachment.door();
    if (!door) return;
    const UniqueFd branch = door->branch(status.st_mode & 07777);
    send_descriptors(socket_.get(), std::array{branch.get()}, 0, kNoPatience);
  }

  void detach(Attachment& attachment) {
    const Credentials who = peer_credentials(socket_.get());
    if (who.uid != attachment.owner() && who.uid != 0) return;
    attachment.detach();
    send_descriptors(socket_.get(), {}, 0, kNoPatience);
  }

  const std::weak_ptr<Attachment> attachment_;
  call::PrivateFd socket_;
  std::uint64_t number_ = 0;
};

}  // namespace

namespace {

// Those that say nothing make room for others. Only ever touched by the warden's thread, which
// outlives main(), and so does this.
std::uint64_t visited_in = 0;
auto& visitors = *new std::deque<std::weak_ptr<Visitor>>;  // NOLINT(*-unhandled-exception-at-new)

}  // namespace

void Attachment::heard(std::uint32_t) noexcept {
  UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return;
  try {
    if (std::exchange(visited_in, call::generation()) != call::generation()) visitors.clear();
    while (!visitors.empty() && (visitors.front().expired() || visitors.size() >= kMostVisitors)) {
      if (const auto oldest = visitors.front().lock()) oldest->dismiss();
      visitors.pop_front();
    }
    auto visitor = std::make_shared<Visitor>(weak_from_this(), std::move(socket));
    visitor->start();
    visitors.push_back(visitor);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it gets no answer
  }
}

void attach(const std::shared_ptr<Door>& door, std::vector<UniqueFd> descriptors,
            const Credentials& sender) noexcept {
  if (descriptors.size() != 3) return;
  struct stat status {};
  if (real::fstat(descriptors[1].get(), &status) != 0) return;
  int accepts = 0;
  socklen_t size = sizeof accepts;
  if (!may_attach(sender.uid, status) || attachments.load() >= kMostAttachments ||
      !is_named(descriptors[0].get(), address_of(status)) ||
      ::getsockopt(descriptors[0].get(), SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size) != 0 ||
      accepts == 0)
    return;
  try {
    // The kernel closes the highest descriptors of a process that ends first. The name must go
    // before the file: else another file could get its number, and not the name that is made of it.
    UniqueFd listener(::fcntl(descriptors[0].get(), F_DUPFD_CLOEXEC, descriptors[1].get() + 1));
    if (!listener) return;
    descriptors[0].reset();
    auto attachment =
        std::make_shared<Attachment>(door, std::move(listener), std::move(descriptors[1]));
    attachment->start();
    door->add_attachment(attachment);
    send_descriptors(descriptors[2].get(), {}, 0, kNoPatience);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): who attaches gets no answer
  }
}

bool is_attached(const struct stat& status) noexcept {
  const NoCancel guard;  // stat() is no point of cancellation
  return static_cast<bool>(connect_to(status));
}

UniqueFd open_attached(int fd, const struct stat& status) noexcept {
  UniqueFd socket = connect_to(status);
  if (!socket) return {};
  try {
    send_descriptors(socket.get(), std::array{fd}, kPurposeOpen);
    Arrival arrival = await_answer(socket.get());
    if (arrival.kind == Arrival::Kind::descriptors && arrival.descriptors.size() == 1 &&
        read_name(arrival.descriptors[0].get()))
      return std::move(arrival.descriptors[0]);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): its server has just died
  }
  return {};
}

namespace {

int attach_to(int d, const char* path) {
  if (::fcntl(d, F_GETFD) < 0) return fail(EBADF);
  const auto handle = Process::here().find(d);
  if (!handle) return fail(EINVAL);
  const UniqueFd file(real::openat(AT_FDCWD, path, O_PATH | O_CLOEXEC, 0));
  struct stat status {};
  if (!file || real::fstat(file.get(), &status) != 0) return -1;
  if (const int error = refusal(file.get(), status); error != 0) return fail(error);
  UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!listener) return -1;
  const AbstractAddress address = address_of(status);
  if (::bind(listener.get(), address.get(), address.size()) != 0)
    return fail(errno == EADDRINUSE ? EBUSY : errno);
  if (::listen(listener.get(), SOMAXCONN) != 0) return -1;
  const auto [mine, theirs] = packet_socket_pair();
  try {
    send_descriptors(d, std::array{listener.get(), file.get(), theirs.get()}, kPurposeAttach);
  } catch (const SystemError& error) {
    // A door whose server is dead, or which is revoked, is one that nobody can call.
    if (error.code().value() == EPIPE || error.code().value() == ECONNRESET) return fail(EBADF);
    throw;
  }
  const_cast<UniqueFd&>(theirs).reset();
  const Arrival arrival = await_answer(mine.get());
  return arrival.kind == Arrival::Kind::descriptors ? 0 : fail(EBADF);
}

int open_door(const char* path, int flags) {
  constexpr int kTaken = O_ACCMODE | O_CLOEXEC | O_NOFOLLOW;
  if ((flags & ~kTaken) != 0) return fail(EINVAL);
  struct stat status {};
  // What is no regular file may do something when it is opened.
  if (real::fstatat(AT_FDCWD, path, &status, (flags & O_NOFOLLOW) != 0 ? AT_SYMLINK_NOFOLLOW : 0) !=
      0)
    return -1;
  if (!S_ISREG(status.st_mode)) return fail(EINVAL);
  const UniqueFd file(real::openat(AT_FDCWD, path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0));
  if (!file || real::fstat(file.get(), &status) != 0) return -1;
  if (!S_ISREG(status.st_mode)) return fail(EINVAL);
  UniqueFd door = open_attached(file.get(), status);
  if (!door) return fail(EINVAL);
  if ((flags & O_CLOEXEC) == 0) ::fcntl(door.get(), F_SETFD, 0);
  if (descriptors_are_ours()) set_known(door.get(), true);
  return door.release();
}

int detach_from(const char* path) {
  const UniqueFd file(real::openat(AT_FDCWD, path, O_PATH | O_CLOEXEC, 0));
  struct stat status {};
  if (!file || real::fstat(file.get(), &status) != 0) return -1;
  if (!may_attach(::geteuid(), status)) return fail(EPERM);
  const UniqueFd socket = connect_to(status);
  if (!socket) return fail(EINVAL);
  try {
    send_descriptors(socket.get(), {}, kPurposeDetach);
    if (await_answer(socket.get()).kind == Arrival::Kind::descriptors) return 0;
  } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): its server has just died
  }
  return fail(EINVAL);
}

}  // namespace
}  // namespace farcall::door

extern "C" {

int fattach(int d, const char* path) {
  using namespace farcall::door;  // NOLINT(google-build-using-namespace): for one function of C's
  const NoCancel guard;
  return guarded([&] { return attach_to(d, path); });
}

int fdetach(const char* path) {
  using namespace farcall::door;  // NOLINT(google-build-using-namespace): for one function of C's
  const NoCancel guard;
  return guarded([&] { return detach_from(path); });
}

int door_open(const char* path, int flags) {
  using namespace farcall::door;  // NOLINT(google-build-using-namespace): for one function of C's
  const NoCancel guard;
  return guarded([&] { return open_door(path, flags); });
}

}  // extern "C"
