// SPDX-License-Identifier: Apache-2.0
//
// A thread's place in a pool of the kernel.
#pragma once

#include <pthread.h>
#include <stplr_doors.h>

#include <mutex>
#include <span>
#include <vector>

#include "door/engine.hpp"
#include "door/kernel_pool.hpp"
#include "farcall/memory.hpp"

namespace farcall::door::kernel {

class KernelServer final : public Server {
 public:
  explicit KernelServer(std::shared_ptr<KernelPool> pool);
  ~KernelServer() override;

  bool receive(Dispatch& call, bool cancellable) override;
  int answer(const char* data, std::size_t size, const door_desc_t* descriptors, std::size_t count,
             bool stays) override;
  int refuse(int error) noexcept override;
  int defer(std::unique_ptr<Deferred>& call) override;
  int identify(CallerIdentity& caller) override;
  void drop() noexcept override;

  // The client of a call has left: cancels this thread if it still has that call. On any thread.
  void client_left(std::uint64_t call) noexcept;

 private:
  int wait(bool cancellable);
  int fetch_long();
  int send_answer(bool stays);
  [[nodiscard]] bool is_notice() const noexcept { return call_ == 0; }
  void begin(std::uint64_t call) noexcept;
  void set_idle(bool idle) noexcept;
  void end() noexcept;

  const std::shared_ptr<KernelPool> pool_;
  const pthread_t self_ = ::pthread_self();
  const pid_t thread_;
  const std::unique_ptr<std::byte[]> room_;
  Mapping large_;  // what there was no room for
  const std::unique_ptr<::stplr_door_desc[]> received_;
  std::vector<door_desc_t> shown_;
  ::stplr_door_return arguments_{};
  std::uint64_t call_ = 0;  // that is being served
  bool bare_ = false;       // its client takes no result
  bool ready_ = false;      // a call has come with the last answer
  bool idle_ = false;       // counted as such

  std::mutex lock_;            // protects the rest
  std::uint64_t current_ = 0;  // call_, until it is answered
  std::uint64_t left_ = 0;     // the last call whose client has left
};

// A call that was taken away from its thread.
class KernelDeferred final : public Deferred {
 public:
  // `data`: of a short request. Throws std::bad_alloc.
  KernelDeferred(std::shared_ptr<KernelPool> pool, std::uint64_t call, bool bare,
                 std::vector<std::byte> data);
  ~KernelDeferred() override;
  // Of a long one.
  void take(Mapping data, std::size_t size) noexcept;

  int answer(const char* data, std::size_t size, const door_desc_t* descriptors,
             std::size_t count) override;
  void refuse(int error) noexcept override;

  // Its client has. On any thread.
  void client_left() noexcept;

 private:
  void show(std::span<std::byte> data) noexcept {
    data_ptr = data.empty() ? nullptr : reinterpret_cast<char*>(data.data());
    data_size = data.size();
  }
  void register_watch(void (*gone)(void* cookie), void* cookie) noexcept override;

  const std::shared_ptr<KernelPool> pool_;
  const std::uint64_t id_;
  const bool bare_;
  std::vector<std::byte> short_;
  Mapping long_;

  std::mutex lock_;  // protects the rest
  bool left_ = false;
};

}  // namespace farcall::door::kernel
