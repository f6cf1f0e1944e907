// SPDX-License-Identifier: Apache-2.0
//
// farcall capture: what goes through memory, for Wireshark.
#include "capture/capture.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "observe/clock.hpp"
#include "tool/child_signal.hpp"
#include "tool/command.hpp"
#include "tool/end_signals.hpp"
#include "tool/say.hpp"

namespace farcall::tool {
namespace {

std::atomic<bool> stop{false};
std::atomic<int> stopped_by{0};
std::atomic<std::int64_t> stopped_at{0};

// Another one that comes later than with the first, as timeout(1) sends them, ends the command at
// once.
void stop_or_end(int signal) {
  constexpr std::int64_t kTogether = 1'000'000'000;
  const std::int64_t now = observe::monotonic_ns();
  std::int64_t first = 0;
  int none = 0;
  stopped_by.compare_exchange_strong(none, signal, std::memory_order_relaxed);
  stop.store(true, std::memory_order_relaxed);
  if (stopped_at.compare_exchange_strong(first, now) || now - first < kTogether) return;
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void stop_at_signals() {
  struct sigaction action {};
  action.sa_handler = stop_or_end;
  for (const int signal : end_signals()) ::sigaction(signal, &action, nullptr);
  // Who reads what is written may have enough; then writing fails.
  ::signal(SIGPIPE, SIG_IGN);
}

void tell(const capture::Summary& summary, const std::string& file) {
  say("{}: {} packets with {} bytes, of {} processes\n", file, summary.packets, summary.bytes,
      summary.processes);
  say("lost: {} messages that were written over before they were read; {} bytes of "
      "TCP are missing between others\n",
      summary.lost, summary.missing);
  if (summary.ended != 0)
    say("{} processes ended meanwhile: what they sent at the very last may be "
        "missing where its receiver was not captured\n",
        summary.ended);
  if (summary.stopped_itself) say("lost: what passed while this command was stopped for seconds\n");
}

void tell_programs(const capture::Summary& summary, const std::string& file) {
  const nlohmann::json text{{"file", file},
                            {"packets", summary.packets},
                            {"bytes", summary.bytes},
                            {"processes", summary.processes},
                            {"lost_messages", summary.lost},
                            {"missing_bytes", summary.missing},
                            {"ended_processes", summary.ended},
                            {"was_stopped", summary.stopped_itself}};
  say("{}\n", text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

int run_capture(capture::Options& options, bool as_json) {
  stop_at_signals();
  options.before_command = restore_child_signal;
  try {
    const capture::Summary summary = capture::capture(options, stop);
    const auto how = as_json ? &tell_programs : &tell;
    how(summary, options.file == "-" ? "standard output" : options.file);
    if (summary.left_command) return 128 + stopped_by;
    return exit_code_of(summary.command_status);
  } catch (const std::invalid_argument& wrong) {
    say("farcall: {}\n", wrong.what());
    return kUsage;
  }
}

}  // namespace

void add_capture(Command root, int& exit_code) {
  struct Asked {
    capture::Options options;
    std::vector<std::string> words;
    bool as_json = false;
  };
  auto asked = std::make_shared<Asked>();
  const Command command = root.subcommand(
      "capture", "Write what processes send each other through memory to a file for Wireshark");
  command.option("-w,--write", asked->options.file, "The file, in pcapng; - is standard output")
      .required()
      .suggests("file");
  command.option("-p,--pid", asked->options.pids, "Only these processes (all of your user)")
      .separated_by_commas();
  command.flag("-a,--all-users", asked->options.all_users,
               "Also other users' processes that you may trace: all, as root");
  command.option("-c,--count", asked->options.packets, "End after so many packets; 0: do not")
      .between(0, INT32_MAX);
  command
      .option("-x,--execute", asked->options.command,
              "Start this command of the shell, capture it from its beginning, end with it")
      .not_empty()
      .suggests("program");
  command.flag("--json", asked->as_json, "Tell at the end as JSON what was captured and lost");
  command.option("FILTER", asked->words,
                 "Such as: tcp and port 6379, host ::1, pid 42, not (udp or unix)");
  command.runs([asked, &exit_code] {
    for (const std::string& word : asked->words) asked->options.filter += word + " ";
    exit_code = run_capture(asked->options, asked->as_json);
  });
}

}  // namespace farcall::tool
