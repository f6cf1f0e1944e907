// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "watch/flows.hpp"

namespace farcall::tool::top {

struct Options {
  double interval_s = 1;
  bool once = false;
  bool json = false;
  bool prometheus = false;
  std::string output;  // of Prometheus; "": standard output
  std::string filter;
  std::string sort = "messages";
};

// Live on the terminal, until a key or a signal ends it. Returns an exit code.
int show_live(const Options& options);
// As text, JSON or for Prometheus, once or again and again.
int write_out(const Options& options);

// What the flows are, and what processes have closed, in each of the forms.
std::string json_of(const watch::Flows& flows, const std::vector<watch::Process>& processes,
                    const std::string& filter);
std::string prometheus_of(const watch::Flows& flows, const std::vector<watch::Process>& processes,
                          const std::string& filter);

// Whether any of what a line shows has the text in it; an empty one is in all.
bool matches(const watch::Flow& flow, const std::string& filter);

}  // namespace farcall::tool::top
