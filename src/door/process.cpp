// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "call/client_session.hpp"
#include "door/door.hpp"
#include "door/references.hpp"
#include "door/server.hpp"
#include "farcall/error.hpp"
#include "process/per_thread.hpp"

namespace farcall::door {
namespace {

constexpr int kMostKnown = 1 << 20;
// So many copies of a door's descriptor are noted without a new allocation: handlers make some.
constexpr std::size_t kRoomForCopies = 8;
std::atomic<std::uint64_t> known_bits[kMostKnown / 64];

std::atomic<Process*> instance{nullptr};
std::mutex instance_lock;

// Descriptors of one door in the parent, and the one that takes their place in the child.
struct Inheritance {
  std::uint64_t socket;  // theirs
  std::vector<int> descriptors;
  int branch;
};
std::vector<Inheritance>& inheritances = *new std::vector<Inheritance>;  // threads outlive main()

// A child's copies of its parent's descriptors would look like the parent's own; where references
// are counted they are exchanged for others.
void before_fork() {
  instance_lock.lock();
  Process* process = instance.load(std::memory_order_acquire);
  if (process == nullptr) return;
  try {
    const auto doors = process->counting();
    if (doors.empty()) return;
    const OwnSockets sockets;
    for (const auto& door : doors) {
      std::vector<int> descriptors;
      for (const auto& entry : sockets.of(door->primary())) descriptors.push_back(entry.fd);
      if (descriptors.empty()) continue;
      inheritances.push_back({.socket = door->primary(),
                              .descriptors = std::move(descriptors),
                              .branch = door->branch().release()});
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the child is not counted then
  }
}

// The process that this memory is of; 0 before the library's initialisers have run.
constinit std::atomic<pid_t> owner{0};

void close_branches() {
  for (const Inheritance& inheritance : inheritances) ::close(inheritance.branch);
  inheritances.clear();
}

void in_parent() {
  close_branches();
  instance_lock.unlock();
}

void in_child() {
  owner.store(::getpid(), std::memory_order_relaxed);
  instance.store(nullptr, std::memory_order_release);
  epoch.fetch_add(1, std::memory_order_relaxed);
  for (auto& bits : known_bits)
    if (bits.load(std::memory_order_relaxed) != 0) bits.store(0, std::memory_order_relaxed);
  for (const Inheritance& inheritance : inheritances)
    for (const int fd : inheritance.descriptors)
      // Another thread may have given the number away before the fork.
      if (socket_cookie(fd) == inheritance.socket)
        ::dup3(inheritance.branch, fd, (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0);
  close_branches();
  process::free_in_child(instance_lock);
}

[[maybe_unused]] const bool kRegistered = [] {
  owner.store(::getpid(), std::memory_order_relaxed);
  process::around_fork(process::ForkOrder::above_call, before_fork, in_parent, in_child);
  return true;
}();

}  // namespace

constinit std::atomic<std::uint64_t> epoch{1};

bool known(int fd) noexcept {
  return fd >= 0 && fd < kMostKnown &&
         (known_bits[fd / 64].load(std::memory_order_relaxed) >> fd % 64 & 1) != 0;
}

bool descriptors_are_ours() noexcept {
  const pid_t process = owner.load(std::memory_order_relaxed);
  return process == 0 || process == ::getpid();
}

void set_known(int fd, bool is_known) noexcept {
  if (fd < 0 || fd >= kMostKnown) return;
  const std::uint64_t bit = std::uint64_t{1} << fd % 64;
  if (is_known)
    known_bits[fd / 64].fetch_or(bit, std::memory_order_relaxed);
  else
    known_bits[fd / 64].fetch_and(~bit, std::memory_order_relaxed);
}

bool Recent::verify() noexcept {
  if (socket_cookie(fd) != handle->cookie) return false;
  process::notice_changed_credentials();
  verified = ticks();
  return true;
}

Handle::Handle(const Name& called, std::uint64_t socket, const std::shared_ptr<Door>& served)
    : name(called),
      cookie(socket),
      local(served),
      is_local(served != nullptr),
      client(-1, Process::here().mode) {
  client.set_label(label_of(name));
  client.set_socket(cookie);
}

constinit std::atomic<door_server_func_t*> Process::create_thread{create_default_thread};

Process::Process() : mode(wait_mode_from_environment()) {}

[[gnu::hot]] Process& Process::here() {
  if (Process* now = instance.load(std::memory_order_acquire)) [[likely]]
    return *now;
  const QuietGuard guard(instance_lock);
  Process* now = instance.load(std::memory_order_acquire);
  if (now == nullptr) {
    now = new Process;  // outlives main(), as threads do
    instance.store(now, std::memory_order_release);
  }
  return *now;
}

Process* Process::made() noexcept { return instance.load(std::memory_order_acquire); }

std::shared_ptr<Handle> Process::find(int fd) {
  if (fd < 0) return nullptr;
  Recent& place = process::PerThread<RecentOnes>::get()[static_cast<std::size_t>(fd) % kRecent];
  if (!place.claim()) return find_anew(fd);
  const struct Claim {
    Recent& claimed;
    ~Claim() { claimed.release(); }
  } claim{place};
  // Read before the look: whatever changes meanwhile makes it out of date.
  const std::uint64_t now = epoch.load(std::memory_order_acquire);
  if (place.fd == fd && place.epoch == now && place.holds()) [[likely]]
    return place.handle;
  auto found = find_anew(fd);
  if (found) {
    place.fd = fd;
    place.epoch = now;
    place.handle = found;
    place.verified = ticks();
    process::notice_changed_credentials();
  }
  return found;
}

std::shared_ptr<Handle> Process::find_anew(int fd) {
  const std::uint64_t socket = socket_cookie(fd);
  std::shared_ptr<Door> served;
  {
    const QuietGuard guard(lock_);
    if (const auto entry = doors_.find(socket); entry != doors_.end()) {
      if (entry->second.handle && std::ranges::count(entry->second.descriptors, fd) != 0)
        return entry->second.handle;
      served = entry->second.served;
    }
  }
  // Somebody may have closed it behind our back.
  if (known(fd)) {
    const HeldSignals held;
    after_close({.handle = forget(fd), .door = nullptr});
  }
  const auto name = read_name(fd);
  // By now the number may be another door's, for whoever closes it while others use it.
  if (!name || socket_cookie(fd) != socket) return nullptr;
  const QuietGuard guard(lock_);
  Entry& entry = doors_[socket];
  if (entry.served) served = entry.served;
  if (!entry.handle) entry.handle = std::make_shared<Handle>(*name, socket, served);
  entry.descriptors.reserve(kRoomForCopies);
  if (std::ranges::count(entry.descriptors, fd) == 0) entry.descriptors.push_back(fd);
  set_known(fd, true);
  return entry.handle;
}

void Borrowed::let_go() noexcept {
  if (!counted_) return;
  const NoCancel guard;  // it may be the last that refers to it
  counted_ = nullptr;
}

Borrowed look_up(int fd) {
  const NoCancel guard;
  return Borrowed(Process::here().find(fd));
}

std::shared_ptr<Handle> Process::forget(int fd) noexcept {
  set_known(fd, false);
  std::shared_ptr<Handle> handle;
  std::shared_ptr<Door> ended;  // outlives the lock
  bool last = false;
  {
    const QuietGuard guard(lock_);
    const auto entry = std::ranges::find_if(doors_, [fd](const auto& door) {
      return std::ranges::count(door.second.descriptors, fd) != 0;
    });
    if (entry == doors_.end()) return nullptr;
    handle = entry->second.handle;
    std::erase(entry->second.descriptors, fd);
    last = entry->second.descriptors.empty();
    if (last) entry->second.handle = nullptr;
    if (last && entry->second.ended) ended = std::move(entry->second.served);
    if (last && !entry->second.served) doors_.erase(entry);
  }
  epoch.fetch_add(1, std::memory_order_acq_rel);
  if (last && handle) handle->client.retire();
  return handle;
}

Closed Process::closes(int fd) noexcept {
  Closed closed;
  const std::uint64_t socket = socket_cookie(fd);
  {
    const QuietGuard guard(lock_);
    if (const auto entry = doors_.find(socket); entry != doors_.end())
      closed.door = entry->second.served;
  }
  closed.handle = forget(fd);
  return closed;
}

void Process::stays(int fd) noexcept {
  if (::fcntl(fd, F_GETFD) < 0) return;
  try {
    (void)copied(fd);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): found when it is called
  }
  set_known(fd, true);
}

std::shared_ptr<Door> Process::copied(int copy) {
  const std::uint64_t socket = socket_cookie(copy);
  const QuietGuard guard(lock_);
  const auto entry = doors_.find(socket);
  if (entry == doors_.end()) return nullptr;
  auto& descriptors = entry->second.descriptors;
  if (std::ranges::count(descriptors, copy) == 0) descriptors.push_back(copy);
  return entry->second.served;
}

namespace {

void count_references(const std::shared_ptr<Door>& door) noexcept {
  if (!door || !door->counts_references() || !descriptors_are_ours()) return;
  try {
    door->check_references(OwnSockets().of(door->primary()).size());
    ReferenceChecks::add_again(door);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): told at the next occasion
  }
}

}  // namespace

void after_close(const Closed& closed) noexcept {
  count_references(closed.door);
  // The number may have been another door's before, that somebody has closed behind our back.
  if (const auto known_for = closed.handle ? closed.handle->local.lock() : nullptr;
      known_for != closed.door)
    count_references(known_for);
}

std::shared_ptr<SharedPool> Process::shared_pool() {
  const QuietGuard guard(lock_);
  if (!shared_pool_) shared_pool_ = std::make_shared<SharedPool>(mode);
  return shared_pool_;
}

bool Process::first_shared_door() {
  const QuietGuard guard(lock_);
  return !std::exchange(shared_door_made_, true);
}

void Process::forget_first_shared_door() {
  const QuietGuard guard(lock_);
  shared_door_made_ = false;
}

void Process::add_branch(std::uint64_t socket, const std::shared_ptr<Door>& door) {
  std::shared_ptr<Handle> foreign;
  {
    const QuietGuard guard(lock_);
    Entry& entry = doors_[socket];
    entry.served = door;
    // Who uses a number that was closed may have looked at what has it now before it was known for
    // this process's own.
    if (!entry.handle || entry.handle->is_local) return;
    foreign =
        std::exchange(entry.handle, std::make_shared<Handle>(entry.handle->name, socket, door));
  }
  epoch.fetch_add(1, std::memory_order_acq_rel);
  foreign->client.retire();
}

void Process::remove_branch(std::uint64_t socket) noexcept {
  std::shared_ptr<Door> last;  // outlives the lock
  const QuietGuard guard(lock_);
  const auto entry = doors_.find(socket);
  if (entry == doors_.end()) return;
  // Whoever shares it can have shut it down. Who made the door can revoke it while holding it.
  const auto is_there = [socket](int fd) { return socket_cookie(fd) == socket; };
  entry->second.ended = std::ranges::any_of(entry->second.descriptors, is_there);
  if (entry->second.ended) return;
  last = std::move(entry->second.served);
  if (entry->second.descriptors.empty()) doors_.erase(entry);
}

std::vector<std::shared_ptr<Door>> Process::counting() {
  std::vector<std::shared_ptr<Door>> all;
  const QuietGuard guard(lock_);
  for (const auto& [socket, entry] : doors_)
    if (entry.served && entry.served->counts_references() && entry.served->primary() == socket)
      all.push_back(entry.served);
  return all;
}

int fail(int error) noexcept {
  errno = error;
  return -1;
}

int set_errno_from_exception() noexcept {
  try {
    throw;
  } catch (const call::RefusedRequest& refusal) {
    return fail(refusal.code().value());  // whatever the server says
  } catch (const std::system_error& error) {
    // A number that was a door's a moment ago.
    return fail(error.code() == std::errc::not_a_socket ? EBADF : error.code().value());
  } catch (const std::bad_alloc&) {
    return fail(ENOMEM);
  } catch (...) {
    return fail(EINVAL);
  }
}

}  // namespace farcall::door
