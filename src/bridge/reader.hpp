// SPDX-License-Identifier: Apache-2.0
//
// Who takes in what comes from the cluster, and handles it: one thread at a time, the leader. It
// serves quick calls itself, since to wake another thread would take longer. Where one turns out
// not to be quick, another thread becomes the leader meanwhile (the leader/followers pattern).
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

#include "bridge/local_server.hpp"
#include "bridge/nats.hpp"

namespace farcall::bridge {

class Reader {
 public:
  // Handles what has been taken in. Whether this thread is still the leader: where serve() has said
  // that it is not, nothing more may be handled.
  using Handle = std::function<bool(Reader& reader, Worker& worker)>;

  Reader(Connection& connection, Handle handle);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // By the leader: does what is likely to be quick. Whether it is still the leader afterwards.
  template <class Work>
  bool serve(Work&& work) {
    std::uint64_t turn = ++turn_;
    work();
    return turn_.compare_exchange_strong(turn, turn + 1);
  }
  [[nodiscard]] bool stops() const noexcept { return stop_; }
  // A leader that serves the same as the last time gives its place up. Whether one serves.
  bool tick();

 private:
  void run();
  void lead(Worker& worker);
  void call_thread();

  Connection& connection_;
  const Handle handle_;
  std::atomic<bool> stop_{false};
  // Twice the number of what the leader has served; and one where it serves.
  std::atomic<std::uint64_t> turn_{0};
  std::uint64_t looked_ = 0;  // of tick()

  std::mutex lock_;  // protects what follows
  std::condition_variable changed_;
  bool led_ = false;
  unsigned idle_ = 0;  // threads that wait to lead
  std::list<std::thread> threads_;
};

}  // namespace farcall::bridge
