// SPDX-License-Identifier: Apache-2.0
//
// One process whose messages are captured: renews what it was asked for, and reads its taps.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "capture/filter.hpp"
#include "capture/tap_reader.hpp"
#include "watch/process.hpp"

namespace farcall::capture {

class WatchedProcess {
 public:
  // Nothing is lost as long as it is renewed in time.
  static constexpr std::chrono::seconds kLease{3};

  // `is_new`: all that it has in its rings is of this capture's time. `waits`: it waits to be read
  // when it ends.
  WatchedProcess(const watch::Process& process, bool is_new, bool waits)
      : owner_(watch::owner_of(process)),
        started_(process.started),
        new_(is_new),
        waits_(waits),
        program_(process.command) {}

  [[nodiscard]] bool is(const watch::Process& process) const noexcept {
    return was(process) && process.user == owner_.user && process.group == owner_.group;
  }
  // It may be another user's now.
  [[nodiscard]] bool was(const watch::Process& process) const noexcept {
    return process.pid == owner_.pid && process.started == started_;
  }
  // Asks for the ends that are wanted, and for those that it makes from now on.
  void renew(const watch::Process& process, const Filter& filter);
  // What has come; false: the process has gone.
  bool read(std::vector<std::unique_ptr<Batch>>& into);

  [[nodiscard]] pid_t pid() const noexcept { return owner_.pid; }
  [[nodiscard]] std::uint64_t started() const noexcept { return started_; }
  [[nodiscard]] const std::string& program() const noexcept { return program_; }
  [[nodiscard]] std::uint64_t lost() const noexcept;

 private:
  void add_table(std::uint64_t table);
  // Of the tables of a copy of the library the first one has rings, once there is something in
  // them. False: nothing can be read.
  bool find_rings();

  watch::Owner owner_;
  std::uint64_t started_;
  bool new_;
  bool waits_;
  bool same_pids_ = false;
  std::string program_;
  std::vector<TapReader> readers_;
  std::vector<std::uint64_t> without_rings_;  // what tables say of the process stands there
};

}  // namespace farcall::capture
