// SPDX-License-Identifier: Apache-2.0
//
// farcall channel list: every channel with a name tells of itself; those of the module are in
// debugfs.
#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <map>
#include <sstream>
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
  std::istringstream lines(text_of([&](char* buffer, std::size_t size) {
    return farcall_channel_status(name.c_str(), buffer, size);
  }));
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
    } else {
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
  fmt::print("{:<28} {:>7} {:<15} {:<7} {:>5} {:>5} {:>5} {:>9} {:>9} {:>7} {:>5}\n", "NAME",
             "SERVER", "COMMAND", "ENGINE", "RECV", "SEND", "REPLY", "MESSAGES", "REPLIES",
             "PULSES", "CONNS");
  for (std::string name; std::getline(names, name);) {
    try {
      Described channel = describe(name);
      fmt::print("{:<28} {:>7} {:<15} {:<7} {:>5} {:>5} {:>5} {:>9} {:>9} {:>7} {:>5}\n",
                 channel.name, channel.about["server"], watch::program_of(channel.about["server"]),
                 channel.about["engine"], channel.blocked["receive-blocked"],
                 channel.blocked["send-blocked"], channel.blocked["reply-blocked"],
                 channel.counters["messages"], channel.counters["replies"],
                 channel.counters["pulses"], channel.counters["connections"]);
      if (threads) print_threads(channel);
    } catch (const SystemError& error) {
      const int number = error.code().value();
      if (number == ENOENT || number == ECONNRESET) continue;  // it has gone meanwhile
      fmt::print("{:<28} {}\n", watch::printable(name), error.what());
      exit_code = kFailure;
    }
  }
  print_debugfs(threads);
  return exit_code;
}

}  // namespace farcall::tool::channel
