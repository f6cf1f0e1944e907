// SPDX-License-Identifier: Apache-2.0
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <cerrno>

#include "door/kernel_device.hpp"
#include "door/kernel_door.hpp"
#include "door/kernel_pool.hpp"
#include "door/kernel_server.hpp"
#include "farcall/error.hpp"
#include "process/per_process.hpp"

namespace farcall::door {
namespace kernel {
namespace {

// Of one process. A child makes its own, for its own doors.
struct Served {
  std::mutex lock;  // protects the rest
  std::shared_ptr<KernelPool> shared;
  std::unordered_map<std::uint64_t, std::shared_ptr<KernelDoor>> private_doors;
};

Served& served() { return process::PerProcess<Served>::here(); }

UniqueFd open_pool() {
  ::stplr_pool_create arguments{};
  UniqueFd fd(on_device(STPLR_POOL_CREATE, &arguments));
  if (!fd) throw_errno("/dev/door");
  return fd;
}

// Keeps no pool: it would never end.
class Listener final : public process::Watch {
 public:
  explicit Listener(std::weak_ptr<KernelPool> pool) noexcept : pool_(std::move(pool)) {}
  void on_readable(std::uint32_t events) noexcept override {
    if (const auto pool = pool_.lock()) pool->on_events(events);
  }

 private:
  const std::weak_ptr<KernelPool> pool_;
};

std::shared_ptr<KernelPool> make_pool(std::uint32_t events) {
  auto pool = std::make_shared<KernelPool>();
  pool->listen(events);
  return pool;
}

std::shared_ptr<KernelPool> shared_kernel_pool() {
  Served& all = served();
  const std::lock_guard guard(all.lock);
  if (!all.shared) all.shared = make_pool(EPOLLIN);
  return all.shared;
}

UniqueFd make_door(const KernelPool& pool, const OwnDoor::Order& order) {
  ::stplr_door_create arguments{
      .procedure = reinterpret_cast<std::uintptr_t>(order.procedure),
      .cookie = reinterpret_cast<std::uintptr_t>(order.cookie),
      .attributes = order.attributes,
      .reserved = 0,
  };
  UniqueFd fd(::ioctl(pool.fd(), STPLR_DOOR_CREATE, &arguments));
  if (!fd) throw_errno("a door of the kernel");
  return fd;
}

class KernelEngine final : public Engine {
 public:
  int create(const OwnDoor::Order& order, std::shared_ptr<OwnDoor>& door) override {
    if ((order.attributes & DOOR_PRIVATE) == 0)
      return make_door(*shared_kernel_pool(), order).release();
    const auto pool = std::make_shared<KernelPool>();
    UniqueFd fd = make_door(*pool, order);
    const auto made = info(fd.get());
    if (!made) throw SystemError(EBADF, "a door of the kernel");
    const auto own = std::make_shared<KernelDoor>(order, pool, *made);
    pool->only_door = own;
    // From now on: it has a door, and as long as that is here nobody hears of its end.
    pool->listen(EPOLLIN | EPOLLRDHUP);
    {
      Served& all = served();
      const std::lock_guard guard(all.lock);
      all.private_doors.emplace(made->di_uniquifier, own);
    }
    door = own;
    return fd.release();
  }
  std::shared_ptr<Pool> shared_pool() override { return shared_kernel_pool(); }
};

constinit KernelEngine the_engine;

}  // namespace

KernelPool::KernelPool() : fd_(open_pool()) {}

KernelPool::~KernelPool() { registration_.stop(); }

void KernelPool::listen(std::uint32_t events) {
  registration_.start(fd(), events, std::make_shared<Listener>(weak_from_this()));
}

void KernelPool::on_events(std::uint32_t events) noexcept {
  // More are told of by the next event.
  constexpr int kAtOnce = 64;
  for (int told = 0; told < kAtOnce; ++told) {
    ::stplr_door_notice notice{};
    if (::ioctl(fd(), STPLR_POOL_NOTICE, &notice) != 0) break;
    const std::lock_guard guard(lock_);
    if (const auto found = servers_.find(notice.tid); found != servers_.end())
      found->second->client_left(notice.id);
    if (const auto found = deferred_.find(notice.id); found != deferred_.end())
      found->second->client_left();
  }
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) == 0) return;
  registration_.stop();
  if (const auto door = only_door.lock()) forget_own_door(door->info().di_uniquifier);
}

void KernelPool::add(pid_t thread, KernelServer& server) {
  const std::lock_guard guard(lock_);
  servers_.emplace(thread, &server);
}

void KernelPool::remove(pid_t thread) noexcept {
  const std::lock_guard guard(lock_);
  servers_.erase(thread);
}

void KernelPool::add(std::uint64_t call, KernelDeferred& deferred) {
  const std::lock_guard guard(lock_);
  deferred_.emplace(call, &deferred);
}

void KernelPool::remove_deferred(std::uint64_t call) noexcept {
  const std::lock_guard guard(lock_);
  deferred_.erase(call);
}

std::unique_ptr<Server> KernelPool::enter() {
  return std::make_unique<KernelServer>(shared_from_this());
}

std::shared_ptr<KernelDoor> own_door(std::uint64_t id) {
  Served& all = served();
  const std::lock_guard guard(all.lock);
  const auto found = all.private_doors.find(id);
  return found == all.private_doors.end() ? nullptr : found->second;
}

void forget_own_door(std::uint64_t id) noexcept {
  std::shared_ptr<KernelDoor> last;  // outlives the lock
  Served& all = served();
  const std::lock_guard guard(all.lock);
  const auto found = all.private_doors.find(id);
  if (found == all.private_doors.end()) return;
  last = std::move(found->second);
  all.private_doors.erase(found);
}

}  // namespace kernel

Engine& kernel_engine() {
  // Whether there is one.
  (void)kernel::shared_kernel_pool();
  return kernel::the_engine;
}

}  // namespace farcall::door
