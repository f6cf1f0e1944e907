// SPDX-License-Identifier: Apache-2.0
//
// farcall channel: looks at channels and sends to them.
#include "tool/channel/channel.hpp"

#include <memory>

#include "tool/command.hpp"

namespace farcall::tool {

void add_channel(CLI::App& app, int& exit_code) {
  CLI::App* group = app.add_subcommand("channel", "Look at channels of messages, send to them");
  group->require_subcommand(1);

  auto threads = std::make_shared<bool>(false);
  CLI::App* list = group->add_subcommand("list", "Names, their servers, states and counters");
  list->add_flag("--threads", *threads, "Tell of each thread that waits, and for whom");
  list->callback([threads, &exit_code] { exit_code = channel::list(*threads); });

  auto send = std::make_shared<channel::Send>();
  CLI::App* command = group->add_subcommand("send", "Send a message and print its reply");
  command->add_option("NAME", send->name, "Of the channel; somebody else's is UID/NAME")
      ->required();
  command->add_option("DATA", send->data, "The message; without it, all of standard input");
  CLI::Option* one_way =
      command->add_flag("--one-way", send->one_way, "Wait until it is received, for no reply");
  command->add_option("--timeout", send->timeout_s, "Give up after so many seconds (10)")
      ->check(CLI::NonNegativeNumber);
  CLI::Option* pulse = command->add_option("--pulse", send->pulse, "A pulse of this code instead")
                           ->check(CLI::NonNegativeNumber)
                           ->excludes(one_way);
  command->add_option("--value", send->value, "Of the pulse")->needs(pulse);
  command->callback([send, &exit_code] { exit_code = channel::send(*send); });
}

}  // namespace farcall::tool
