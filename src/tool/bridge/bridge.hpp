// SPDX-License-Identifier: Apache-2.0
//
// farcall bridge, what is behind the command line.
#pragma once

#include <string>
#include <vector>

#include "bridge/bridge.hpp"
#include "tool/exit_code.hpp"

namespace farcall::tool::bridge {

// What the command line says, over what the file says.
struct Options {
  std::string config;
  std::vector<std::string> servers;
  std::string credentials;
  std::string user;
  std::string password;
  std::string password_file;
  std::string tls_ca;
  std::string tls_certificate;
  std::string tls_key;
  std::string domain;
  std::vector<std::string> exports;
  std::vector<std::string> imports;
  double death_bound_s = -1;  // below 0: not said
  double connect_bound_s = -1;
  std::string status_name;
  bool check = false;
};

// Serves until a signal ends it.
ExitCode run(const Options& options);
// `name`: of the channel; empty: the usual one.
ExitCode print_status(const std::string& name, bool json);

}  // namespace farcall::tool::bridge
