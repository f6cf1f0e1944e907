// SPDX-License-Identifier: Apache-2.0
#include "capture/filter.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "memory/to_number.hpp"

namespace farcall::capture {
namespace {

using observe::Kind;

constexpr std::pair<std::string_view, std::uint32_t> kKinds[] = {
    {"tcp", 1U << static_cast<unsigned>(Kind::tcp)},
    {"udp", 1U << static_cast<unsigned>(Kind::udp)},
    {"unix", 1U << static_cast<unsigned>(Kind::unix_stream) |
                 1U << static_cast<unsigned>(Kind::unix_packets)},
    {"ring", 1U << static_cast<unsigned>(Kind::ring)},
    {"call", 1U << static_cast<unsigned>(Kind::call)},
    {"door", 1U << static_cast<unsigned>(Kind::door)},
    {"channel", 1U << static_cast<unsigned>(Kind::channel)},
    {"broadcast", 1U << static_cast<unsigned>(Kind::broadcast)},
};

bool read_address(const std::string& text, observe::Address& into) {
  into.known = 1;
  static constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  std::memcpy(into.bytes.data(), kMapped, sizeof kMapped);
  return ::inet_pton(AF_INET, text.c_str(), into.bytes.data() + sizeof kMapped) == 1 ||
         ::inet_pton(AF_INET6, text.c_str(), into.bytes.data()) == 1;
}

}  // namespace

class FilterParser {
 public:
  FilterParser(std::string_view text, std::vector<Filter::Step>& steps)
      : rest_(text), steps_(steps) {}

  void parse() {
    next();
    if (word_.empty()) return;
    any();
    if (!word_.empty()) fail("after a complete filter comes \"" + word_ + "\"");
  }

 private:
  using Op = Filter::Op;
  static constexpr unsigned kDeepest = 64;

  [[noreturn]] static void fail(const std::string& why) {
    throw std::invalid_argument("the filter cannot be read: " + why);
  }

  void next() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\n"), rest_.size()));
    std::size_t size = 0;
    if (rest_.starts_with("&&") || rest_.starts_with("||"))
      size = 2;
    else if (!rest_.empty() && std::strchr("()!&|", rest_[0]) != nullptr)
      size = 1;
    else
      size = std::min(rest_.find_first_of(" \t\n()!&|"), rest_.size());
    word_ = rest_.substr(0, size);
    rest_.remove_prefix(size);
  }
  bool take(std::string_view one, std::string_view other) {
    if (word_ != one && word_ != other) return false;
    next();
    return true;
  }

  void any() {
    if (++depth_ > kDeepest) fail("it is nested too deeply");
    all();
    while (take("or", "||")) {
      all();
      steps_.push_back({.op = Op::either});
    }
    --depth_;
  }
  void all() {
    term();
    while (take("and", "&&")) {
      term();
      steps_.push_back({.op = Op::both});
    }
  }
  void term() {
    bool inverted = false;
    while (take("not", "!")) inverted = !inverted;
    if (take("(", "(")) {
      any();
      if (!take(")", ")")) fail("a \")\" is missing");
    } else {
      primitive();
    }
    if (inverted) steps_.push_back({.op = Op::invert});
  }
  void primitive() {
    for (const auto& [name, kinds] : kKinds)
      if (word_ == name) {
        steps_.push_back({.op = Op::kind, .number = kinds});
        return next();
      }
    if (take("host", "host")) {
      Filter::Step step{.op = Op::host};
      if (!read_address(word_, step.address))
        fail("\"" + word_ + "\" is not an address such as 127.0.0.1 or ::1");
      steps_.push_back(step);
      return next();
    }
    if (take("port", "port")) return number(Op::port, 65'535);
    if (take("pid", "pid")) return number(Op::pid, 4'194'304);
    fail(word_.empty()
             ? "it ends where a condition is needed"
             : "\"" + word_ +
                   "\" is none of host, port, pid, tcp, udp, unix, ring, call, door, channel, "
                   "broadcast");
  }
  void number(Op op, std::uint32_t most) {
    const std::uint32_t value = to_number<std::uint32_t>(word_).value_or(0);
    if (value > most || value == 0)
      fail("\"" + word_ + "\" is not a number from 1 to " + std::to_string(most));
    steps_.push_back({.op = op, .number = value});
    next();
  }

  std::string_view rest_;
  std::string word_;
  std::vector<Filter::Step>& steps_;
  unsigned depth_ = 0;
};

Filter::Filter(std::string_view text) { FilterParser(text, steps_).parse(); }

bool Filter::matches(const Subject& subject) const {
  if (steps_.empty()) return true;
  std::vector<bool> results;
  const auto pop = [&] {
    const bool value = results.back();
    results.pop_back();
    return value;
  };
  const auto one_of = [&](const observe::Address& address, const Step& step) {
    if (address.known == 0) return false;
    return step.op == Op::port ? address.port == step.number : address.bytes == step.address.bytes;
  };
  for (const Step& step : steps_) {
    switch (step.op) {
      case Op::kind:
        results.push_back((step.number >> static_cast<unsigned>(subject.kind) & 1) != 0);
        break;
      case Op::host:
      case Op::port:
        results.push_back(one_of(subject.local, step) || one_of(subject.remote, step));
        break;
      case Op::pid: {
        const auto pid = static_cast<pid_t>(step.number);
        results.push_back(subject.pid == pid || subject.peer == pid);
        break;
      }
      case Op::invert: results.back() = !results.back(); break;
      case Op::both: {
        const bool last = pop();
        results.back() = results.back() && last;
        break;
      }
      case Op::either: {
        const bool last = pop();
        results.back() = results.back() || last;
        break;
      }
    }
  }
  return results.back();
}

}  // namespace farcall::capture
