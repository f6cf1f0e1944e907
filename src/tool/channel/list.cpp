// SPDX-License-Identifier: Apache-2.0
//
// farcall channel list: every channel with a name tells of itself; those of the module are in
// debugfs.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "farcall/error.hpp"
#include "farcall/message.h"
#include "tool/channel/channel.hpp"
#include "tool/exit_code.hpp"
#include "watch/text.hpp"

namespace farcall::tool::channel {
namespace {

// The text that a call fills in, as long as it may be.
template <class Call>
std::string text_of(Call call) {
  std::string text(4096, 0);
  for (;;) {
    const ssize_t size = call(text.data(), text.size());
    if (size < 0) throw_errno("ask about channels");
    const bool whole = static_cast<std::size_t>(size) <= text.size();
    text.resize(static_cast<std::size_t>(size));
    if (whole) return text;
  }
}

// As much as one channel is believed to have to say.
constexpr std::size_t kMostOfStatus = std::size_t{1} << 20;

// Anybody may take names, as many as there is memory for, and be slow to answer for each. What
// asking takes is counted, for each user by whose number names begin, and for all that are neither
// the caller nor root: who has taken too long is not asked again.
class Patience {
 public:
  // Whether to ask; then it is counted until done().
  bool begin(const std::string& name) {
    user_ = 0;  // as the library reads it
    std::from_chars(name.data(), name.data() + name.size(), user_);
    if (taken_[user_] >= kOfUser || (is_stranger() && all_ >= kOfAll)) {
      ++left_out_[user_];
      return false;
    }
    begun_ = Clock::now();
    return true;
  }
  void done() {
    const Clock::duration took = Clock::now() - begun_;
    taken_[user_] += took;
    if (is_stranger()) all_ += took;
  }
  // How many names of each user nobody was asked about.
  [[nodiscard]] const std::map<uid_t, std::size_t>& left_out() const { return left_out_; }

 private:
  using Clock = std::chrono::steady_clock;
  // A server that has stopped takes five.
  static constexpr std::chrono::seconds kOfUser{8};
  static constexpr std::chrono::seconds kOfAll{20};

  [[nodiscard]] bool is_stranger() const noexcept { return user_ != 0 && user_ != ::geteuid(); }

  uid_t user_ = 0;
  Clock::time_point begun_;
  std::map<uid_t, Clock::duration> taken_;
  Clock::duration all_{};
  std::map<uid_t, std::size_t> left_out_;
};

bool is_state(const std::string& word) {
  return word == "receive-blocked" || word == "send-blocked" || word == "reply-blocked";
}

// "word value word value ..." after the first word.
std::map<std::string, std::string> pairs(std::istringstream& line) {
  std::map<std::string, std::string> all;
  std::string key;
  std::string value;
  while (line >> key >> value) all[key] = value;
  return all;
}

struct Described {
  std::string name;
  std::map<std::string, std::string> about;
  std::map<std::string, std::string> counters;
  std::map<std::string, int> blocked;  // by state
  std::vector<std::string> threads;
};

// What is said is the word of whoever serves that name.
Described describe(const std::string& name) {
  Described channel{
      .name = watch::printable(name), .about = {}, .counters = {}, .blocked = {}, .threads = {}};
  std::string status(kMostOfStatus, 0);  // in one go: the next time it may say something else
  const ssize_t size = farcall_channel_status(name.c_str(), status.data(), status.size());
  if (size < 0) throw_errno("ask about channels");
  status.resize(std::min(static_cast<std::size_t>(size), status.size()));
  std::istringstream lines(std::move(status));
  for (std::string text; std::getline(lines, text);) {
    text = watch::printable(text);
    std::istringstream line(text);
    std::string kind;
    line >> kind;
    if (kind == "channel") {
      std::string own;
      line >> own;
      channel.about = pairs(line);
    } else if (kind == "counters") {
      channel.counters = pairs(line);
    } else if (is_state(kind)) {
      ++channel.blocked[kind];
      channel.threads.push_back(text);
    }
  }
  return channel;
}

void print_threads(Described& channel) {
  for (const std::string& text : channel.threads) {
    std::istringstream line(text);
    std::string state;
    std::string pid;
    std::string tid;
    line >> state >> pid >> tid;
    const auto rest = pairs(line);
    const std::string on = state == "receive-blocked" ? "" : " on " + channel.about["server"];
    const auto priority = rest.find("priority");
    fmt::print("  {:<15} {} {} ({}){}{}\n", state, pid, tid, watch::program_of(pid), on,
               priority == rest.end() ? "" : ", priority " + priority->second);
  }
}

// What the module tells of itself, where this user may read it.
void print_debugfs(bool threads) {
  for (const char* file : {"channels", "blocked"}) {
    if (file == std::string("blocked") && !threads) continue;
    std::ifstream text(std::string("/sys/kernel/debug/stplr/") + file);
    if (!text) continue;
    fmt::print("\nof the module ({}):\n", file);
    for (std::string line; std::getline(text, line);) fmt::print("  {}\n", line);
  }
}

}  // namespace

int list(bool threads) {
  std::istringstream names(
      text_of([](char* buffer, std::size_t size) { return farcall_channel_names(buffer, size); }));
  int exit_code = kSuccess;
  Patience patience;
  fmt::print("{:<28} {:>7} {:<15} {:<7} {:>5} {:>5} {:>5} {:>9} {:>9} {:>7} {:>5}\n", "NAME",
             "SERVER", "COMMAND", "ENGINE", "RECV", "SEND", "REPLY", "MESSAGES", "REPLIES",
             "PULSES", "CONNS");
  for (std::string name; std::getline(names, name);) {
    if (!patience.begin(name)) continue;
    try {
      Described channel = describe(name);
      patience.done();
      fmt::print("{:<28} {:>7} {:<15} {:<7} {:>5} {:>5} {:>5} {:>9} {:>9} {:>7} {:>5}\n",
                 channel.name, channel.about["server"], watch::program_of(channel.about["server"]),
                 channel.about["engine"], channel.blocked["receive-blocked"],
                 channel.blocked["send-blocked"], channel.blocked["reply-blocked"],
                 channel.counters["messages"], channel.counters["replies"],
                 channel.counters["pulses"], channel.counters["connections"]);
      if (threads) print_threads(channel);
    } catch (const SystemError& error) {
      patience.done();
      const int number = error.code().value();
      if (number == ENOENT || number == ECONNRESET) continue;  // it has gone meanwhile
      fmt::print("{:<28} {}\n", watch::printable(name), error.what());
      exit_code = kFailure;
    }
  }
  for (const auto& [user, count] : patience.left_out()) {
    fmt::print("{:<28} {} more, not asked: too long in answering\n", std::to_string(user) + "/",
               count);
    exit_code = kFailure;
  }
  print_debugfs(threads);
  return exit_code;
}

}  // namespace farcall::tool::channel
