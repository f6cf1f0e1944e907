// SPDX-License-Identifier: Apache-2.0
#include "bridge/reader.hpp"

#include <system_error>

namespace farcall::bridge {
namespace {

// Somebody interrupts it where it has to end before.
constexpr std::chrono::seconds kLook{10};

}  // namespace

Reader::Reader(Connection& connection, Handle handle)
    : connection_(connection), handle_(std::move(handle)) {
  const std::lock_guard guard(lock_);
  call_thread();
}

Reader::~Reader() {
  {
    const std::lock_guard guard(lock_);
    stop_ = true;
  }
  changed_.notify_all();
  connection_.interrupt();
  for (std::thread& thread : threads_) thread.join();
}

// Somebody is to lead. Where there is no thread to be had, the first that has time does. With the
// lock held.
void Reader::call_thread() {
  led_ = false;
  if (stop_) return;
  try {
    if (idle_ == 0) threads_.emplace_back([this] { run(); });
  } catch (const std::system_error&) {
    if (threads_.empty()) throw;
  }
  changed_.notify_one();
}

void Reader::run() {
  Worker::block_signals();
  Worker worker;
  std::unique_lock lock(lock_);
  while (!stop_) {
    if (!led_) {
      led_ = true;
      lock.unlock();
      lead(worker);
      lock.lock();
    } else {
      ++idle_;
      changed_.wait(lock, [this] { return stop_ || !led_; });
      --idle_;
    }
  }
}

// Until it is to stop, or another leads.
void Reader::lead(Worker& worker) {
  connection_.send();  // what the last one has kept
  while (!stop_ && handle_(*this, worker)) connection_.read(kLook);
}

bool Reader::tick() {
  std::uint64_t turn = turn_;
  const bool serves = turn % 2 != 0;
  if (!serves || turn != looked_) {
    looked_ = turn;
    return serves;
  }
  const std::lock_guard guard(lock_);
  if (turn_.compare_exchange_strong(turn, turn + 1)) call_thread();
  return true;
}

}  // namespace farcall::bridge
