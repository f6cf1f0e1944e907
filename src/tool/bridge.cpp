// SPDX-License-Identifier: Apache-2.0
//
// farcall bridge: names of this machine on a NATS cluster, and names of the cluster here.
#include "tool/bridge/bridge.hpp"

#include <memory>

#include "tool/command.hpp"

namespace farcall::tool {

void add_bridge(Command root, int& exit_code) {
  auto options = std::make_shared<bridge::Options>();
  auto asked = std::make_shared<bool>(false);
  const Command command =
      root.subcommand("bridge", "Serve doors and channels of this machine on others, by NATS");
  command.option("--config", options->config, "A file in TOML; what is said here comes on top")
      .suggests("file");
  command.option("--nats", options->servers, "Servers of the cluster: nats://HOST:4222, tls://...");
  command.option("--creds", options->credentials, "A file of credentials").suggests("file");
  command.option("--user", options->user, "Name of the user");
  command.option("--password", options->password, "Seen by all: better --password-file");
  command.option("--password-file", options->password_file, "Whose first line is the password")
      .suggests("file");
  command.option("--tls-ca", options->tls_ca, "Authorities that sign the servers' certificates")
      .suggests("file");
  command.option("--tls-cert", options->tls_certificate, "The certificate of this bridge")
      .suggests("file");
  command.option("--tls-key", options->tls_key, "Its key").suggests("file");
  command.option("--domain", options->domain, "Put before all subjects, with a dot");
  command.option("--export", options->exports, "door:PATH=SUBJECT or channel:NAME=SUBJECT");
  command.option("--import", options->imports, "SUBJECT=door:PATH or SUBJECT=channel:NAME");
  command
      .option("--death-bound", options->death_bound_s,
              "Seconds without a sign of life from the far side, after which a call fails (2)")
      .not_negative();
  command
      .option("--connect-bound", options->connect_bound_s,
              "Seconds for which calls wait for a cluster that is away (2)")
      .not_negative();
  command.option("--status-name", options->status_name,
                 "Channel that tells the status (farcall-bridge)");
  command.flag("--check", options->check, "Only see whether all is right and permitted");

  auto json = std::make_shared<bool>(false);
  auto name = std::make_shared<std::string>();
  const Command status =
      command.subcommand("status", "Names, directions, calls, errors and latencies of a bridge");
  status.flag("--json", *json, "As JSON");
  status.option("--status-name", *name, "Channel of that bridge; somebody else's is UID/NAME");
  status.runs([asked, json, name, &exit_code] {
    *asked = true;
    exit_code = bridge::print_status(*name, *json);
  });
  command.runs([asked, options, &exit_code] {
    if (!*asked) exit_code = bridge::run(*options);
  });
}

}  // namespace farcall::tool
