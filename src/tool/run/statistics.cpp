// SPDX-License-Identifier: Apache-2.0
#include "tool/run/statistics.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "farcall/error.hpp"

namespace farcall::tool::run {
namespace {

using preload::Protocol;
using preload::Reason;
using preload::StatsPage;

std::string to_text(const preload::Endpoint& endpoint) {
  static constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  char text[INET6_ADDRSTRLEN];
  if (std::equal(kMapped.begin(), kMapped.end(), endpoint.address.begin())) {
    ::inet_ntop(AF_INET, endpoint.address.data() + kMapped.size(), text, sizeof text);
    return fmt::format("{}:{}", text, endpoint.port);
  }
  ::inet_ntop(AF_INET6, endpoint.address.data(), text, sizeof text);
  return fmt::format("[{}]:{}", text, endpoint.port);
}

// A copy: the program may write whatever it likes there, and at any time.
std::string to_text(preload::UnixName name) {
  if (name.size == 0) return "(a pair)";
  std::string text;
  const std::size_t size = std::min<std::size_t>(name.size, name.bytes.size());
  for (std::size_t i = 0; i < size; ++i) {
    const char byte = name.bytes[i];
    if (byte > ' ' && byte <= '~' && byte != '\\')
      text += byte;
    else if (i == 0 && byte == '\0')
      text += '@';
    else
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

const char* to_text(Protocol protocol) {
  switch (protocol) {
    case Protocol::tcp: return "tcp";
    case Protocol::udp: return "udp";
    case Protocol::unix_stream: return "unix";
  }
  return "unknown";
}

Way read(const preload::Counters::Way& way) { return {way.bytes.load(), way.messages.load()}; }

std::vector<Line> read(const StatsPage& page) {
  std::vector<Line> lines;
  for (const StatsPage::Slot& slot : page.slots) {
    // acquire: pairs with the release of the slot's maker, for protocol and endpoint.
    if (slot.state.load(std::memory_order_acquire) != StatsPage::Slot::kUsed) continue;
    const preload::Counters& counters = slot.counters;
    Line line{.protocol = to_text(slot.protocol),
              .endpoint = slot.protocol == Protocol::unix_stream ? to_text(slot.name)
                                                                 : to_text(slot.endpoint),
              .connections = counters.connections.load(),
              .accelerated = counters.accelerated.load(),
              .reasons = {},
              .ring = read(counters.ring),
              .kernel = read(counters.kernel),
              .dropped = counters.dropped.load()};
    for (std::size_t i = 0; i < preload::kReasons; ++i)
      line.reasons[i] = counters.reasons[i].load();
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string to_text(const Way& way) {
  return fmt::format("{} messages, {} bytes", way.messages, way.bytes);
}

std::string to_text(const Line& line) {
  std::string text =
      fmt::format("{} {}: {} {}, {} accelerated\n", line.protocol, line.endpoint, line.connections,
                  line.protocol == "udp" ? "sockets" : "connections", line.accelerated);
  text += fmt::format("  through shared memory: {}\n", to_text(line.ring));
  text += fmt::format("  through the kernel: {}\n", to_text(line.kernel));
  if (line.dropped != 0)
    text += fmt::format("  dropped, for the receiver was full: {}\n", line.dropped);
  for (std::size_t i = 0; i < preload::kReasons; ++i)
    if (line.reasons[i] != 0)
      text += fmt::format("  not accelerated: {}: {}\n", preload::to_string(static_cast<Reason>(i)),
                          line.reasons[i]);
  return text;
}

}  // namespace

Statistics::Statistics() : memory_(SharedMemory::create(sizeof(StatsPage), "farcall-stats")) {
  void* const address =
      ::mmap(nullptr, memory_.size(), PROT_READ | PROT_WRITE, MAP_SHARED, memory_.fd(), 0);
  if (address == MAP_FAILED) throw_errno("map the statistics");
  mapping_ = Mapping(address, memory_.size());
  page_ = reinterpret_cast<StatsPage*>(mapping_.data());
  page_->magic = StatsPage::kMagic;
}

std::string Statistics::name() const {
  return fmt::format("/proc/{}/fd/{}", ::getpid(), memory_.fd());
}

std::vector<Line> Statistics::lines() const { return read(*page_); }
std::uint64_t Statistics::not_listed() const { return page_->overflow.load(); }

std::string Statistics::text(const std::string& program) const {
  const std::vector<Line> lines = read(*page_);
  if (lines.empty()) return fmt::format("farcall: {} used no local connection\n", program);
  std::string text = fmt::format("farcall: connections of {} on this machine\n", program);
  for (const Line& line : lines) text += to_text(line);
  if (const std::uint64_t more = page_->overflow.load(); more != 0)
    text += fmt::format("and {} connections to endpoints that are too many to list\n", more);
  return text;
}

std::string Statistics::json() const {
  using nlohmann::json;
  json endpoints = json::array();
  for (const Line& line : read(*page_)) {
    json reasons = json::object();
    for (std::size_t i = 0; i < preload::kReasons; ++i)
      if (line.reasons[i] != 0)
        reasons[preload::to_string(static_cast<Reason>(i))] = line.reasons[i];
    const auto way = [](const Way& one) {
      return json{{"bytes", one.bytes}, {"messages", one.messages}};
    };
    endpoints.push_back({{"protocol", line.protocol},
                         {"endpoint", line.endpoint},
                         {"connections", line.connections},
                         {"accelerated", line.accelerated},
                         {"reasons", reasons},
                         {"ring", way(line.ring)},
                         {"kernel", way(line.kernel)},
                         {"dropped", line.dropped}});
  }
  return json{{"endpoints", endpoints}, {"not_listed", page_->overflow.load()}}.dump(2) + "\n";
}

}  // namespace farcall::tool::run
