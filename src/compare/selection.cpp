// SPDX-License-Identifier: Apache-2.0
#include "compare/selection.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "compare/units.hpp"
#include "farcall/channel/mechanism.hpp"
#include "memory/to_number.hpp"

namespace farcall::compare {
namespace {

// What shows most in little time: the controls, the rings, and what people use instead.
constexpr std::array<std::string_view, 20> kMain{
    "null_call",      "memcpy",    "cacheline_pingpong",
    "lines_pingpong", "copy_pair", "futex_pingpong",
    "ring",           "door_call", "pipe",
    "unix_stream",    "tcp",       "posix_mq",
    "eventfd",        "zeromq",    "nng",
    "boost_mq",       "broadcast", "broadcast_overwrite",
    "iceoryx",        "iceoryx2"};
constexpr std::array<std::string_view, 8> kGroups{"all",    "main",  "controls", "channels",
                                                  "shared", "linux", "kernel",   "peers"};
// Others' libraries that go over ours.
constexpr std::array<std::string_view, 2> kOverOurs{"thrift_farcall", "bridge"};

bool in_group(std::string_view group, std::string_view mechanism, std::string_view engine) {
  if (group == "all") return true;
  if (group == "main") return std::find(kMain.begin(), kMain.end(), mechanism) != kMain.end();
  if (group == "controls") return engine == "control";
  if (group == "channels") return channel::find_mechanism(mechanism) != nullptr;
  const bool peer = engine == "library" ||
                    std::find(kOverOurs.begin(), kOverOurs.end(), mechanism) != kOverOurs.end();
  return group == "peers" ? peer : group == engine && !peer;
}

std::set<std::string, std::less<>> known_mechanisms(const RowList& list) {
  std::set<std::string, std::less<>> names;
  for (const auto& row : list.rows) names.insert(row->info().mechanism);
  for (const AbsentRow& row : list.absent) names.insert(row.mechanism);
  return names;
}

}  // namespace

Selection select_rows(const RowList& list, const std::vector<std::string>& names,
                      const std::vector<std::string>& waits) {
  const auto known = known_mechanisms(list);
  for (const std::string& name : names)
    if (!known.contains(name) && std::find(kGroups.begin(), kGroups.end(), name) == kGroups.end())
      throw UsageError(fmt::format("there is no row \"{}\"; there are: {}; and the groups: {}",
                                   name, fmt::join(known, ", "), fmt::join(kGroups, ", ")));
  for (const std::string& wait : waits)
    if (wait != "spin" && wait != "adaptive" && wait != "block")
      throw UsageError(
          fmt::format("there is no way of waiting \"{}\"; there are: spin, adaptive, block", wait));

  const auto wanted = [&](std::string_view mechanism, std::string_view engine) {
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return name == mechanism || (!known.contains(name) && in_group(name, mechanism, engine));
    });
  };
  Selection selection;
  for (const auto& row : list.rows) {
    const RowInfo& info = row->info();
    const bool this_wait = !info.waits || waits.empty() ||
                           std::find(waits.begin(), waits.end(), info.wait) != waits.end();
    if (this_wait && wanted(info.mechanism, info.engine)) selection.rows.push_back(row.get());
  }
  for (const AbsentRow& row : list.absent)
    if (wanted(row.mechanism, row.engine)) selection.absent.push_back(row);
  return selection;
}

std::vector<std::size_t> parse_sizes(const std::vector<std::string>& texts) {
  std::set<std::size_t> sizes;
  for (const std::string& text : texts) {
    const auto size = parse_size(text);
    if (!size)
      throw UsageError(fmt::format("invalid size \"{}\"; sizes are like 64, 1K, 64K, 16M", text));
    if (*size > std::size_t{1} << 30)
      throw UsageError(fmt::format("messages of more than 1 GiB cannot be measured; {} is", text));
    sizes.insert(*size);
  }
  return {sizes.begin(), sizes.end()};
}

std::vector<Placement> parse_placements(const std::vector<std::string>& texts) {
  std::vector<Placement> placements;
  for (const std::string& text : texts) {
    const auto placement = parse_placement(text);
    if (!placement)
      throw UsageError(
          fmt::format("there is no placement \"{}\"; there are: two-cpus, one-cpu, free", text));
    if (std::find(placements.begin(), placements.end(), *placement) == placements.end())
      placements.push_back(*placement);
  }
  return placements;
}

namespace {
std::set<unsigned> parse_counts(const std::vector<std::string>& texts, unsigned most,
                                std::string_view what) {
  std::set<unsigned> counts;
  for (const std::string& text : texts) {
    const unsigned count = to_number<unsigned>(text).value_or(0);
    if (count == 0 || count > most)
      throw UsageError(
          fmt::format("\"{}\" is no number of {}; there are 1 to {}", text, what, most));
    counts.insert(count);
  }
  return counts;
}
}  // namespace

std::vector<unsigned> parse_readers(const std::vector<std::string>& texts) {
  const auto counts = parse_counts(texts, kMostReaders, "readers");
  return {counts.begin(), counts.end()};
}

std::vector<Crowd> parse_crowds(const std::vector<std::string>& clients,
                                const std::vector<std::string>& pairs) {
  std::vector<Crowd> crowds;
  for (const unsigned count : parse_counts(clients, kMostClients, "clients"))
    crowds.push_back({.clients = count, .servers = 1});
  for (const unsigned count : parse_counts(pairs, kMostClients, "pairs"))
    if (const Crowd pair{.clients = count, .servers = count};
        std::find(crowds.begin(), crowds.end(), pair) == crowds.end())
      crowds.push_back(pair);
  return crowds;
}

Workload parse_workload(const std::string& text) {
  if (text == "pair") return Workload::pair;
  if (text == "broadcast") return Workload::broadcast;
  if (text == "scaling") return Workload::scaling;
  if (text == "dead-peer") return Workload::dead_peer;
  throw UsageError(fmt::format(
      "there is no workload \"{}\"; there are: pair, broadcast, scaling, dead-peer", text));
}

}  // namespace farcall::compare
