// SPDX-License-Identifier: Apache-2.0
//
// What the server of an attached door has of it, and those who visit it there.
#include "door/attach.hpp"

#include <fcntl.h>
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
#include <map>
#include <set>
#include <vector>

#include "door/real.hpp"
#include "farcall/error.hpp"
#include "farcall/socket.hpp"
#include "process/background.hpp"
#include "process/identity.hpp"
#include "process/ledger.hpp"
#include "process/per_process.hpp"
#include "socket/acceptor.hpp"
#include "socket/answers.hpp"
#include "socket/strangers.hpp"

namespace farcall::door {
namespace {

constexpr std::size_t kMostVisitors = 256;

bool is_named(int socket, const AbstractAddress& name) noexcept {
  const auto other = AbstractAddress::of(socket);
  return other && other->name() == name.name();
}

}  // namespace

AbstractAddress address_of(const struct stat& status) noexcept {
  std::array<char, 80> name;
  const int length = std::snprintf(name.data(), name.size(), "farcall/attach/%" PRIx64 "/%" PRIx64,
                                   static_cast<std::uint64_t>(status.st_dev),
                                   static_cast<std::uint64_t>(status.st_ino));
  return AbstractAddress({name.data(), static_cast<std::size_t>(length)});
}

bool may_attach(uid_t user, uid_t owner_of_file) noexcept {
  // Whose such a file is cannot be known. Only root of the whole system may do as it likes with it.
  if (process::is_overflow_id(owner_of_file)) return user == 0 && process::knows_all_users();
  return user == 0 || process::same_user(user, owner_of_file);
}

// What a file is said to be by what the kernel has of it, without asking whoever serves it: that
// may be another process, which need not answer.
bool known_status(int file, struct statx& status) noexcept {
  return real::statx(file, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &status) == 0;
}

// Tells attachments when the last name of their file goes. The kernel lets a user have few
// instances of inotify and many watches, and each who attaches takes one: so one instance is for
// all.
class NameWatches {
 public:
  static NameWatches& here() { return process::PerProcess<NameWatches>::here(); }

  // Returns the number of a watch; -1 where no more of that is to be had, or the file may not be
  // read here. May wait for whoever serves the file.
  int add(int file, const std::weak_ptr<Attachment>& attachment);
  void remove(int watch) noexcept {
    const std::lock_guard guard(lock_);
    if (all_.erase(watch) != 0) ::inotify_rm_watch(events_.get(), watch);
  }

 private:
  class Reader;
  int instance();
  void read() noexcept;
  std::vector<std::weak_ptr<Attachment>> take_events();

  std::mutex lock_;  // protects what follows; not held while anybody is told
  process::PrivateFd events_;
  process::Registration registration_;
  std::map<int, std::weak_ptr<Attachment>> all_;
};

class Attachment final : public process::Watch, public std::enable_shared_from_this<Attachment> {
 public:
  Attachment(std::shared_ptr<Door> door, UniqueFd listener, UniqueFd file, uid_t maker,
             process::Charge held)
      : door_(std::move(door)),
        acceptor_(std::move(listener)),
        file_(process::PrivateFd::of_peer(std::move(file))),
        maker_(maker),
        charge_(std::move(held)) {}
  ~Attachment() override {
    stop();
    process::close_later(maker_, std::move(file_), std::move(charge_));
  }

  // The kernel tells when the last name of the file goes. May wait for whoever serves the file.
  void start() {
    std::array<char, 512> name;
    const std::string link = "/proc/self/fd/" + std::to_string(file_.get());
    if (const ssize_t size = ::readlink(link.c_str(), name.data(), name.size()); size > 0)
      door_->set_label({name.data(), static_cast<std::size_t>(size)});
    acceptor_.start(shared_from_this());
    // Without a watch it is noticed when somebody attaches the next file.
    const int watch = NameWatches::here().add(file_.get(), weak_from_this());
    if (watch < 0) return;
    watch_.store(watch);
    if (detached_) forget_names();
    detach_if_nameless();  // it may have lost its last name before it was watched
  }

  void detach() noexcept {
    const auto keep = shared_from_this();
    if (detached_.exchange(true)) return;
    stop();
    door_->remove_attachment(*this);
  }

  // Somebody connects.
  void on_readable(std::uint32_t) noexcept override {
    if (process::is_own(maker_)) {
      if (!acceptor_.accept_waiting(visitor_maker())) detach();
      return;
    }
    // Who made the listener can have it wait: its flags are its maker's as well.
    try {
      process::run_later(maker_, [self = shared_from_this()] {
        if (!self->acceptor_.accept_shared(self->visitor_maker())) self->detach();
      });
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): its visitors wait
    }
  }

  [[nodiscard]] Door& door() const noexcept { return *door_; }
  [[nodiscard]] bool covers(int file) const noexcept {
    struct statx mine {};
    struct statx other {};
    return known_status(file_.get(), mine) && known_status(file, other) &&
           mine.stx_ino == other.stx_ino && mine.stx_dev_major == other.stx_dev_major &&
           mine.stx_dev_minor == other.stx_dev_minor;
  }
  [[nodiscard]] std::optional<mode_t> mode() const noexcept {
    struct statx mine {};
    if (!known_status(file_.get(), mine)) return {};
    return mine.stx_mode & mode_t{07777};
  }
  [[nodiscard]] uid_t owner() const noexcept {
    struct statx mine {};
    return known_status(file_.get(), mine) ? mine.stx_uid : 0;
  }

  void detach_if_nameless() noexcept {
    struct statx mine {};
    if (!known_status(file_.get(), mine) || mine.stx_nlink == 0) detach();
  }

 private:
  void stop() noexcept {
    // First: whoever attaches the file again gets the same watch of it for as long as this is
    // there.
    forget_names();
    acceptor_.close();
  }
  void forget_names() noexcept {
    const int watch = watch_.exchange(-1);
    if (watch >= 0 && generation_ == process::generation()) NameWatches::here().remove(watch);
  }
  process::Acceptor::Take visitor_maker();

  const std::shared_ptr<Door> door_;  // which lives as long as it is attached
  process::Acceptor acceptor_;
  process::PrivateFd file_;
  const uid_t maker_;
  process::Charge charge_;
  const std::uint64_t generation_ = process::generation();
  std::atomic<int> watch_{-1};
  std::atomic<bool> detached_{false};
};

class NameWatches::Reader final : public process::Watch {
  void on_readable(std::uint32_t) noexcept override { here().read(); }
};

int NameWatches::instance() {
  const std::lock_guard guard(lock_);
  if (!events_) {
    process::PrivateFd made(UniqueFd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)));
    if (!made) return -1;
    registration_.start(made.get(), EPOLLIN, std::make_shared<Reader>());
    events_ = std::move(made);
  }
  return events_.get();
}

int NameWatches::add(int file, const std::weak_ptr<Attachment>& attachment) {
  const int events = instance();
  if (events < 0) return -1;
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  const int watch = ::inotify_add_watch(events, path.c_str(), IN_ATTRIB | IN_DELETE_SELF);
  if (watch < 0) return -1;
  const std::lock_guard guard(lock_);
  all_[watch] = attachment;
  return watch;
}

// Those of whom something has come, each once, though it may be much; all, where the kernel has
// lost some. What there is beyond one read the reactor tells of again: it has others to serve.
std::vector<std::weak_ptr<Attachment>> NameWatches::take_events() {
  const std::lock_guard guard(lock_);
  alignas(inotify_event) std::array<char, 4096> bytes;
  const ssize_t size = ::read(events_.get(), bytes.data(), bytes.size());
  std::set<int> watches;
  bool lost = false;
  for (ssize_t at = 0; at < size;) {
    inotify_event event{};
    std::memcpy(&event, bytes.data() + at, sizeof event);
    at += static_cast<ssize_t>(sizeof event + event.len);
    watches.insert(event.wd);
    lost |= (event.mask & IN_Q_OVERFLOW) != 0;
  }
  std::vector<std::weak_ptr<Attachment>> told;
  for (const auto& [watch, attachment] : all_)
    if (lost || watches.contains(watch)) told.push_back(attachment);
  return told;
}

void NameWatches::read() noexcept {
  try {
    for (const auto& told : take_events())
      if (const auto attachment = told.lock()) attachment->detach_if_nameless();
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the next who attaches sees it
  }
}

namespace {

void refuse(int answers, int error) noexcept {
  try {
    send_descriptors(answers, {}, static_cast<std::uint8_t>(error), Deadline::now());
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it does not want to know
  }
}

Packet take_visitors_packet(int socket, uid_t user) {
  if (process::is_own(user)) return take_packet(socket);
  return take_strangers_packet(socket);
}

// Who has connected to an attachment, until it has said what it wants.
class Visitor final : public process::Watch, public std::enable_shared_from_this<Visitor> {
 public:
  Visitor(std::weak_ptr<Attachment> attachment, UniqueFd socket, const Credentials& who,
          process::Charge held)
      : attachment_(std::move(attachment)),
        socket_(std::move(socket)),
        who_(who),
        charge_(std::move(held)) {}
  ~Visitor() override { process::close_later(who_.uid, std::move(socket_), std::move(charge_)); }

  void start() { registration_.start(socket_.get(), EPOLLIN | EPOLLRDHUP, shared_from_this()); }
  void dismiss() noexcept {
    registration_.stop();
    ::shutdown(socket_.get(), SHUT_RDWR);
  }

  void on_readable(std::uint32_t) noexcept override {
    const auto keep = shared_from_this();
    (void)serve();
  }
  // Does what it wants; false: it has not said so yet. It is told where there is no room for that;
  // of those who send faster than that can be thrown away nothing is taken.
  bool serve() noexcept {
    if (process::is_flooding(who_.uid)) return turn_away();
    Packet packet;
    try {
      packet = take_visitors_packet(socket_.get(), who_.uid);
      if (packet.kind == Packet::Kind::nothing) return false;
      if (packet.kind == Packet::Kind::overflow) refuse(socket_.get(), EAGAIN);
      if (const auto attachment = attachment_.lock();
          attachment && packet.kind == Packet::Kind::descriptors) {
        if (packet.purpose == kPurposeOpen) open(*attachment, packet.descriptors);
        if (packet.purpose == kPurposeDetach) detach(*attachment);
      }
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it gets no answer
    }
    process::close_later(who_.uid, std::move(packet.descriptors));
    dismiss();
    return true;
  }

 private:
  bool turn_away() noexcept {
    refuse(socket_.get(), EAGAIN);
    dismiss();
    return true;
  }
  void open(const Attachment& attachment, const ReceivedFds& proof) {
    if (!(proof.empty() && who_.uid == 0) && !may_open(attachment, proof)) return;
    UniqueFd branch;
    try {
      branch = attachment.door().branch(who_.uid, attachment.mode());
    } catch (const std::exception&) {
      return refuse(socket_.get(), EAGAIN);
    }
    send_descriptors(socket_.get(), std::array{branch.get()}, 0, Deadline::now());
  }

  // Whoever may not open the file has no more than its name.
  static bool may_open(const Attachment& attachment, const ReceivedFds& proof) noexcept {
    if (proof.size() != 1) return false;
    const int flags = ::fcntl(proof[0].get(), F_GETFL);
    return flags >= 0 && (flags & O_PATH) == 0 && attachment.covers(proof[0].get());
  }

  void detach(Attachment& attachment) {
    if (!may_attach(who_.uid, attachment.owner())) return;
    attachment.detach();
    send_descriptors(socket_.get(), {}, 0, Deadline::now());
  }

  const std::weak_ptr<Attachment> attachment_;
  process::PrivateFd socket_;
  const Credentials who_;
  process::Charge charge_;  // until the socket is closed
  process::Registration registration_;
};

// Those that say nothing make room for others: of whoever has most of them here the oldest, so that
// nobody can crowd out another user who has only just come.
struct Visitors {
  struct Entry {
    std::weak_ptr<Visitor> visitor;
    uid_t user;
  };
  std::mutex lock;  // protects the rest
  std::deque<Entry> all;

  void add(const std::shared_ptr<Visitor>& visitor, uid_t user) {
    std::shared_ptr<Visitor> dismissed;  // without the lock
    {
      const std::lock_guard guard(lock);
      if (all.size() >= kMostVisitors)
        std::erase_if(all, [](const Entry& entry) { return entry.visitor.expired(); });
      if (all.size() >= kMostVisitors) {
        const auto oldest = oldest_of_busiest();
        dismissed = oldest->visitor.lock();
        all.erase(oldest);
      }
      all.push_back({visitor, user});
    }
    if (dismissed) dismissed->dismiss();
  }

 private:
  std::deque<Entry>::iterator oldest_of_busiest() {
    std::map<uid_t, std::size_t> count;
    for (const Entry& entry : all) ++count[entry.user];
    const uid_t busiest =
        std::ranges::max_element(count, {}, [](const auto& user) { return user.second; })->first;
    return std::ranges::find(all, busiest, &Entry::user);
  }
};

}  // namespace

process::Acceptor::Take Attachment::visitor_maker() {
  return [this](UniqueFd& socket, const Credentials& who, bool full) {
    process::Charge held(process::Resource::descriptors, who.uid, 1, door_->descriptors_per_user());
    if (full || !held) {
      // What is unread hides what is answered.
      if (!process::is_flooding(who.uid))
        take_visitors_packet(socket.get(), who.uid).descriptors.sent_by(who.uid);
      return refuse(socket.get(), EAGAIN);
    }
    auto visitor =
        std::make_shared<Visitor>(weak_from_this(), std::move(socket), who, std::move(held));
    // Mostly it has said already what it wants.
    if (visitor->serve()) return;
    visitor->start();
    process::PerProcess<Visitors>::here().add(visitor, who.uid);
  };
}

namespace {

// What fattach() has sent, until a thread has time for it. No child has the sockets: the name is
// taken for as long as one has the listener. The file may be any, and its server silent: a child
// that closed it would wait, and so it has it.
struct Request {
  Request(ReceivedFds&& descriptors, const Credentials& who) noexcept
      : listener(process::PrivateFd::of_peer(std::move(descriptors[0]))),
        file(std::move(descriptors[1])),
        answers(process::PrivateFd::of_peer(std::move(descriptors[2]))),
        sender(who) {}
  ~Request() {
    process::close_later(sender.uid, std::move(listener));
    process::close_later(sender.uid, std::move(file));
    process::close_later(sender.uid, std::move(answers));
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  // They are ordinary ones again.
  void give_back(ReceivedFds& descriptors) noexcept {
    descriptors[0] = listener.release();
    descriptors[1] = std::move(file);
    descriptors[2] = answers.release();
  }

  process::PrivateFd listener;
  UniqueFd file;
  process::PrivateFd answers;
  const Credentials sender;
};

// None where there is no descriptor for it.
std::shared_ptr<Attachment> make_attachment(const std::shared_ptr<Door>& door, Request& request,
                                            process::Charge&& held) {
  const process::NoFork guard;
  // The kernel closes the highest descriptors of a process that ends first. The name must go
  // before the file: else another file could get its number, and not the name that is made of it.
  UniqueFd listener(::fcntl(request.listener.get(), F_DUPFD_CLOEXEC, request.file.get() + 1));
  if (!listener) return nullptr;
  return std::make_shared<Attachment>(door, std::move(listener), std::move(request.file),
                                      request.sender.uid, std::move(held));
}

// On a thread that may wait for whoever serves the file.
void attach_now(const std::shared_ptr<Door>& door, Request& request) {
  const Credentials& sender = request.sender;
  for (const auto& other : door->attachments()) other->detach_if_nameless();
  // No more than a name of the file: to close anything else may last as long as its server likes.
  if ((::fcntl(request.file.get(), F_GETFL) & O_PATH) == 0) return;
  struct stat status {};
  if (real::fstat(request.file.get(), &status) != 0) return;
  int accepts = 0;
  socklen_t size = sizeof accepts;
  if (!made_by_sender(request.answers.get(), sender) || !may_attach(sender.uid, status.st_uid) ||
      !is_named(request.listener.get(), address_of(status)) ||
      ::getsockopt(request.listener.get(), SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size) != 0 ||
      accepts == 0)
    return;
  const int answers = request.answers.get();
  constexpr std::size_t kHeld = 4;  // the listener, its spare, the file, the watch of its names
  process::Charge held(process::Resource::descriptors, sender.uid, kHeld,
                       door->descriptors_per_user());
  if (!held) return refuse(answers, process::is_own(sender.uid) ? EMFILE : EAGAIN);
  const auto attachment = make_attachment(door, request, std::move(held));
  if (!attachment) return refuse(answers, EMFILE);
  request.listener.reset();
  // First of all: whoever has connected meanwhile may detach it at once.
  door->add_attachment(attachment);
  try {
    attachment->start();
  } catch (...) {
    attachment->detach();
    throw;
  }
  send_descriptors(answers, {}, 0, Deadline::now());
}

}  // namespace

void attach(const std::shared_ptr<Door>& door, ReceivedFds& descriptors,
            const Credentials& sender) noexcept {
  // Children close what is private, and would wait for the server of a file as well.
  if (!is_packet_socket(descriptors[0].get()) || !is_packet_socket(descriptors[2].get())) return;
  std::shared_ptr<Request> request;
  try {
    request = std::make_shared<Request>(std::move(descriptors), sender);
    process::run_later(sender.uid, [door, request] { attach_now(door, *request); });
  } catch (const std::exception&) {  // who attaches gets no answer
    if (request) request->give_back(descriptors);
  }
}

}  // namespace farcall::door
