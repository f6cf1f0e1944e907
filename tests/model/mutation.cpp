// SPDX-License-Identifier: Apache-2.0
#include "model/mutation.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>

namespace farcall::model {
namespace {

using Order = std::memory_order;

const char* name_of(Order order) {
  switch (order) {
    case Order::relaxed: return "relaxed";
    case Order::consume: return "consume";
    case Order::acquire: return "acquire";
    case Order::release: return "release";
    case Order::acq_rel: return "acq_rel";
    case Order::seq_cst: return "seq_cst";
  }
  return "?";
}

std::vector<Order> weaker(const Site& site) {
  if (site.kind == Kind::fence) {
    if (site.order == Order::seq_cst) return {Order::acq_rel, Order::relaxed};
    return {Order::relaxed};
  }
  switch (site.order) {
    case Order::acquire:
    case Order::release: return {Order::relaxed};
    case Order::acq_rel: return {Order::acquire, Order::release};
    case Order::seq_cst:
      if (site.kind == Kind::update) return {Order::acq_rel};
      return {site.kind == Kind::store ? Order::release : Order::acquire};
    default: return {};
  }
}

std::string text_of(const Place& place) {
  std::ifstream in(std::string(FARCALL_SOURCE_DIR) + "/" + place.file);
  std::string text;
  for (unsigned i = 0; i < place.line; ++i)
    if (!std::getline(in, text)) return "(not found)";
  return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}

// Without what it returns and takes, and where in it a lambda stands.
std::string function_of(const Place& place) {
  std::string name;
  int depth = 0;
  for (const char one : place.function) {
    if (one == '(' && depth == 0) break;
    if (one == '<') ++depth;
    if (one == '>') --depth;
    if (one == ' ' && depth == 0)
      name.clear();
    else
      name += one;
  }
  return name;
}

// What is weakened, for people and for excuses.
struct Weakening {
  Mutation mutation;
  std::string place;
  std::string function;
  std::string line;
  std::string change;

  Weakening(const Site& site, Order to) : mutation{.site = site, .to = to} {
    const bool fence = site.kind == Kind::fence;
    const Place& at = fence && site.behind.line != 0 ? site.behind : site.at;
    place = at.file + ":" + std::to_string(at.line);
    function = function_of(at);
    line = text_of(at);
    change = std::string(fence                                ? "fence behind it: "
                         : site.kind == Kind::exchange_failed ? "where it fails: "
                                                              : "") +
             name_of(site.order) + " to " + (fence && to == Order::relaxed ? "none" : name_of(to));
  }
  [[nodiscard]] bool is_excused_by(const Excuse& excuse) const {
    return ("::" + function).ends_with("::" + std::string(excuse.function)) &&
           line.find(excuse.line) != std::string::npos && change == excuse.weaker;
  }
};

bool is_in(const std::string& file, std::initializer_list<std::string_view> files) {
  return std::any_of(files.begin(), files.end(),
                     [&](std::string_view name) { return file.ends_with(name); });
}

}  // namespace

bool soaking() {
  const char* const set = std::getenv("FARCALL_MODEL_SOAK");
  return set != nullptr && *set != '\0' && *set != '0';
}

Result expect_right(const Check& check) {
  Result result = explore(check.make, check.options);
  EXPECT_EQ(result.failure, "") << check.name;
  result.complete |= check.options.may_be_part && result.failure.empty();
  EXPECT_TRUE(result.complete || !result.failure.empty())
      << check.name << ": more than " << check.options.most_states << " states";
  std::cout << check.name << ": " << result.states << " states, " << result.executions
            << " executions\n";
  return result;
}

void expect_heavy_fences_matter(const std::vector<Check>& checks) {
  EXPECT_TRUE(std::any_of(checks.begin(), checks.end(), [](const Check& check) {
    Options options = check.options;
    options.heavy_fences_are_none = true;
    return options.fences_reach_all && !explore(check.make, options).failure.empty();
  }));
}

void expect_every_order_matters(const std::vector<Check>& checks,
                                std::initializer_list<std::string_view> files,
                                const std::vector<Excuse>& excuses) {
  std::map<Site, std::vector<const Check*>> passed;
  for (const Check& check : checks) {
    std::set<Site> sites;
    Check collecting = check;
    collecting.options.sites = &sites;
    if (!expect_right(collecting).complete) return;
    for (const Site& site : sites)
      if (is_in(site.at.file, files)) passed[site].push_back(&check);
  }
  std::vector<bool> used(excuses.size());
  unsigned weakened = 0;
  unsigned excused = 0;
  for (const auto& [site, users] : passed) {
    for (const Order to : weaker(site)) {
      const Weakening change(site, to);
      ++weakened;
      bool is_excused = false;
      for (std::size_t i = 0; i < excuses.size(); ++i)
        if (change.is_excused_by(excuses[i])) used[i] = is_excused = true;
      const bool found = std::any_of(users.begin(), users.end(), [&](const Check* check) {
        Options options = check->options;
        options.mutation = &change.mutation;
        return !(is_excused && check->large && !soaking()) &&
               !explore(check->make, options).failure.empty();
      });
      excused += is_excused ? 1 : 0;
      EXPECT_NE(found, is_excused)
          << (found ? "excused, but needed: " : "not needed: ") << change.place << ": "
          << change.function << ": " << change.change << "\n  " << change.line;
    }
  }
  for (std::size_t i = 0; i < excuses.size(); ++i)
    EXPECT_TRUE(used[i]) << "an excuse for nothing: " << excuses[i].function << ": "
                         << excuses[i].weaker;
  std::cout << weakened << " orders weakened, " << excused << " of them excused\n";
}

}  // namespace farcall::model
