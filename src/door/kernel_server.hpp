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
  int identify(CallerIdentity& caller) override;
  void drop() noexcept override;

  // The client of a call has left: cancels this thread if it still has that call. On any thread.
  void client_left(std::uint64_t call) noexcept;

 private:
  int wait(bool cancellable);
  bool fetch_long();
  int give_refusal(int error) noexcept;
  int try_to_answer(const char* data, std::size_t size, const door_desc_t* descriptors,
                    std::size_t count, bool stays);
  int send_answer(bool stays);
  int drop_answer(int error, const door_desc_t* descriptors, std::size_t count);
  [[nodiscard]] bool is_notice() const noexcept { return call_ == 0; }
  [[nodiscard]] bool abandoned() noexcept;
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

}  // namespace farcall::door::kernel
