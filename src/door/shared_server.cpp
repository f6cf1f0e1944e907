// SPDX-License-Identifier: Apache-2.0
//
// A thread's place in a pool over shared memory.
#include <pthread.h>

#include <cerrno>
#include <cstring>

#include "door/door.hpp"
#include "door/pages.hpp"
#include "door/server.hpp"
#include "farcall/error.hpp"

namespace farcall::door {
namespace {

using Data = std::span<const std::byte>;
using Descriptors = std::span<const int>;

// `outgoing`: the descriptors, or null where there are none. `user`: who gets them. `pass` throws
// SystemError.
template <class Pass>
int pass_on(Data data, Outgoing* outgoing, uid_t user, Pass pass) {
  try {
    if (outgoing != nullptr) outgoing->prepare(user);
    // A client that has gone takes nothing, and wants nothing more.
    pass(data, outgoing != nullptr ? Descriptors(outgoing->descriptors()) : Descriptors());
  } catch (const SystemError& error) {
    const int code = error.code().value();
    return code == EBADF ? EINVAL : code;
  }
  if (outgoing != nullptr) outgoing->release();
  return 0;
}

template <class Pass>
[[gnu::always_inline]] inline int try_to_answer(const Incoming& incoming, const char* data,
                                                std::size_t size, const door_desc_t* descriptors,
                                                std::size_t count, Pass pass) {
  if (incoming.notice()) {
    if (count != 0) (void)release_all(descriptors, count);
    return 0;
  }
  if ((incoming.word() & kNoArguments) != 0 && (size != 0 || count != 0)) return E2BIG;
  if (count > kMostDescriptors) return E2BIG;
  if (!readable(data, size)) return EFAULT;
  const Data bytes = std::as_bytes(std::span(data, size));
  if (count == 0) [[likely]]
    return pass_on(bytes, nullptr, incoming.caller().uid, pass);
  Outgoing outgoing;
  if (const int error = outgoing.add(descriptors, count); error != 0) return error;
  return pass_on(bytes, &outgoing, incoming.caller().uid, pass);
}

// Nobody cares any more what is wrong with an answer if the client has gone.
int drop_answer(const Incoming& incoming, int error, const door_desc_t* descriptors,
                std::size_t count) {
  const bool gone = incoming.abandoned();
  if ((gone || error == EINVAL) && release_all(descriptors, count) == EFAULT) return EFAULT;
  return gone ? 0 : error;
}

class SharedDeferred final : public Deferred, public ClientDeathObserver {
 public:
  SharedDeferred(std::shared_ptr<SharedPool> pool, Incoming&& incoming, Door::ActiveCall&& active)
      : pool_(std::move(pool)), active_(std::move(active)), incoming_(std::move(incoming)) {
    incoming_.observe(nullptr);
    data_size = incoming_.data().size();
    if (data_size != 0) data_ptr = reinterpret_cast<char*>(incoming_.data().data());
  }
  int answer(const char* data, std::size_t size, const door_desc_t* descriptors,
             std::size_t count) override {
    const auto pass = [this](Data bytes, Descriptors fds) {
      incoming_.reply(bytes, fds, watched() ? this : nullptr);
    };
    const int error = try_to_answer(incoming_, data, size, descriptors, count, pass);
    return error == 0 ? 0 : drop_answer(incoming_, error, descriptors, count);
  }
  void refuse(int error) noexcept override { incoming_.refuse(error); }
  void register_watch(void (*gone)(void* cookie), void* cookie) noexcept override {
    incoming_.observe(nullptr);
    set_watch(gone, cookie);
    if (gone != nullptr) incoming_.observe(this);
  }
  void client_gone(const Endpoint&) noexcept override { tell(); }

 private:
  const std::shared_ptr<SharedPool> pool_;  // lasts as long as its calls
  Door::ActiveCall active_;                 // goes after what it has received
  Incoming incoming_;
};

class SharedServer final : public Server, public ClientDeathObserver {
 public:
  explicit SharedServer(std::shared_ptr<SharedPool> pool)
      : pool_(std::move(pool)), thread_(pool_->port, Process::here().mode, this) {
    thread_.set_restartable(true);
    thread_.set_reservable(sleeps_);
  }

  bool receive(Dispatch& call, bool cancellable) override;
  int answer(const char* data, std::size_t size, const door_desc_t* descriptors, std::size_t count,
             bool stays) override {
    // To wake a client may cost this thread the processor, for long where many want it. It needs no
    // replacement meanwhile.
    const bool soon_back = sleeps_ && stays && count == 0 && size <= kInlineBytes;
    if (soon_back) thread_.set_about_to_receive(true);
    const auto pass = [this](Data bytes, Descriptors fds) { thread_.reply(incoming_, bytes, fds); };
    int error = try_to_answer(incoming_, data, size, descriptors, count, pass);
    if (error != 0) error = drop_answer(incoming_, error, descriptors, count);
    if (error != 0 && soon_back) thread_.set_about_to_receive(false);
    if (error == 0) active_.end();
    return error;
  }
  int refuse(int error) noexcept override {
    if (!incoming_.notice()) incoming_.refuse(error);
    active_.end();
    return 0;
  }
  int defer(std::unique_ptr<Deferred>& call) override {
    if (incoming_.notice()) return EINVAL;
    call = std::make_unique<SharedDeferred>(pool_, std::move(incoming_), std::move(active_));
    serving = false;
    left();
    return 0;
  }
  int identify(CallerIdentity& caller) override;
  void drop() noexcept override {
    serving = false;
    incoming_ = Incoming();
    active_.end();
  }

  void client_gone(const Endpoint& endpoint) noexcept override {
    const auto owner = endpoint.owner();
    if (!owner) return;
    const auto& door = static_cast<const Door&>(*owner);
    if ((door.attributes & DOOR_NO_CANCEL) == 0) ::pthread_cancel(self_);
  }
  void left() noexcept override {
    if (serving) return;
    door_endpoint_ = nullptr;
    door_ = nullptr;
  }
  // Somebody else is to serve the next client meanwhile.
  void busy(const Endpoint& endpoint) override {
    if (const auto owner = endpoint.owner()) make_spare(static_cast<Door&>(*owner));
  }

 private:
  int refusal(const Door& door) noexcept;
  void make_spare(Door& door);

  const pthread_t self_ = ::pthread_self();
  // Of the last call. Mostly the next comes through the same, and a look is cheaper than to count.
  std::shared_ptr<Door> door_;
  const Endpoint* door_endpoint_ = nullptr;
  const std::shared_ptr<SharedPool> pool_;
  // Clients and servers that spin do so in pairs, as long as the kernel lets them: there a thread
  // for each is quicker by far, and who does not run at the moment waits the longer.
  const bool sleeps_ = Process::here().mode == WaitMode::block;
  Door::ActiveCall active_;
  Incoming incoming_;
  ServerThread thread_;  // goes before what it has received
  std::vector<door_desc_t> received_;
};

// Called when this thread is about to serve.
[[gnu::always_inline]] inline void SharedServer::make_spare(Door& door) {
  const bool last = !pool_->port.has_sleeping_thread();
  if (!last && !incoming_.crowded()) [[likely]]
    return;
  ask_for_thread(*pool_, door.is_private() ? door.shared_from_this() : nullptr,
                 {.last = last,
                  .crowd = incoming_.crowded() ? pool_->port.processors() : 0,
                  .receiving = !serving});
}

// Which errno a request is to fail with that should not have been made; or 0.
[[gnu::always_inline]] inline int SharedServer::refusal(const Door& door) noexcept {
  const std::span<const std::byte> data = incoming_.data();
  const std::size_t count = incoming_.descriptors().size();
  if (incoming_.word() != 0) [[unlikely]] {
    if ((incoming_.word() & kBadArguments) != 0) {
      std::uint64_t bytes = 0;
      if (data.size() == sizeof bytes) std::memcpy(&bytes, data.data(), sizeof bytes);
      return bytes > kMostRequestBytes ? E2BIG : EFAULT;
    }
    if (!data.empty() || count != 0) return EINVAL;  // it says it has none
  }
  if (incoming_.notice()) [[unlikely]]
    return door.revoked() ? EBADF : 0;
  return door.admit(data.size(), count);
}

[[gnu::hot]] bool SharedServer::receive(Dispatch& call, bool cancellable) {
  thread_.set_cancellable(cancellable);
  if (thread_.receive(incoming_, Deadline::never()) != Outcome::ok) return false;
  if (incoming_.endpoint() != door_endpoint_) [[unlikely]] {
    door_ = std::static_pointer_cast<Door>(incoming_.endpoint()->owner());
    door_endpoint_ = door_ ? incoming_.endpoint() : nullptr;
  }
  if (!door_) {  // nobody can call it any more
    incoming_.refuse(EBADF);
    return false;
  }
  Door& door = *door_;
  serving = true;
  if (incoming_.notice()) [[unlikely]]
    door.notice_taken();
  if (const int error = refusal(door); error != 0) [[unlikely]] {
    incoming_.refuse(error);
    serving = false;
    return false;
  }
  make_spare(door);
  call.procedure = door.procedure;
  call.cookie = door.cookie;
  if (door.counts_references() && !incoming_.notice()) [[unlikely]]
    active_ = Door::ActiveCall(door_);
  if (incoming_.notice()) {
    call.data = static_cast<char*>(DOOR_UNREF_DATA);
  } else if (!incoming_.data().empty()) {
    call.data = reinterpret_cast<char*>(incoming_.data().data());
    call.size = incoming_.data().size();
  }
  if (const std::size_t count = incoming_.descriptors().size(); count != 0) {
    received_.resize(count);
    hand_out(incoming_.descriptors(), received_.data());
    incoming_.descriptors().clear();
    call.descriptors = received_.data();
    call.count = static_cast<uint_t>(count);
  }
  return true;
}

int SharedServer::identify(CallerIdentity& caller) {
  if (incoming_.notice() || incoming_.abandoned()) return EINVAL;
  const CallerIdentity* const known = incoming_.identity();
  if (known == nullptr) return EINVAL;
  caller = *known;
  return 0;
}

}  // namespace

std::unique_ptr<Server> SharedPool::enter() {
  return std::make_unique<SharedServer>(shared_from_this());
}

}  // namespace farcall::door
