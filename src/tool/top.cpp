// SPDX-License-Identifier: Apache-2.0
//
// farcall top: who talks to whom through farcall, and how fast.
#include "tool/top/top.hpp"

#include <memory>

#include "tool/command.hpp"
#include "tool/top/table.hpp"

namespace farcall::tool {

void add_top(Command root, int& exit_code) {
  auto chosen = std::make_shared<top::Options>();
  const Command command = root.subcommand("top", "Who talks to whom, and how fast, live");
  command.option("--interval", chosen->interval_s, "Seconds between two looks")
      .shows_default()
      .between(0.05, 3600.0);
  command.flag("--once", chosen->once, "Print once and end");
  const Option json = command.flag("--json", chosen->json, "Print a line of JSON for each look");
  const Option prometheus =
      command.flag("--prometheus", chosen->prometheus, "Print metrics for Prometheus")
          .excludes(json);
  command.option("--output", chosen->output, "Write them to this file, whole each time")
      .needs(prometheus)
      .suggests("file");
  command.option("--filter", chosen->filter, "Show lines that hold this text");
  command.option("--sort", chosen->sort, "messages, bytes, kernel, latency, spin, wait, kind, name")
      .shows_default()
      .suggests("messages bytes kernel latency spin wait kind name")
      .checked([](const std::string& text) {
        return top::sort_of(text) == top::Sort::count_ ? "cannot sort by " + text : std::string();
      });
  command.runs([chosen, &exit_code] {
    const bool live = !chosen->once && !chosen->json && !chosen->prometheus;
    exit_code = live ? top::show_live(*chosen) : top::write_out(*chosen);
  });
}

}  // namespace farcall::tool
