// SPDX-License-Identifier: Apache-2.0
//
// Names of this machine on a NATS cluster, and names of the cluster on this machine. See
// farcall-bridge(1).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace farcall::bridge {

// What stands in the way, with its cause and its cure.
class BridgeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What no other attempt will mend, unlike a cluster that is away.
class ConfigurationError : public BridgeError {
 public:
  using BridgeError::BridgeError;
};

enum class Local { door, channel };
enum class Direction { exported, imported };

// One name, in one direction.
struct Name {
  Direction direction = Direction::exported;
  Local local = Local::door;
  std::string path;     // of the door, or name of the channel
  std::string subject;  // without the domain
  // Imported names:
  mode_t mode = 0600;                         // who may call, by the file or the channel
  bool idempotent = false;                    // a call whose answer is lost is sent again
  unsigned retries = 3;                       // so often, where it is
  double deadline_s = 0;                      // of a call; 0: none but the client's own
  std::optional<std::vector<uid_t>> allowed;  // the users who may; none: all whom the mode lets
};

struct Config {
  std::vector<std::string> servers;
  std::string credentials;
  std::string user;
  std::string password;
  std::string tls_ca;
  std::string tls_certificate;
  std::string tls_key;
  std::string domain;
  std::string inbox = "_INBOX";  // before the subjects that answers come to
  std::vector<Name> names;
  double death_bound_s = 2;         // no sign of life from the far side for so long: ECONNRESET
  double connect_bound_s = 2;       // the cluster is away for so long: ENETDOWN
  unsigned workers = 256;           // local calls in progress at a time, for each exported name
  unsigned waiting = 4096;          // calls in progress of all imported doors
  std::uint64_t memory_mib = 1024;  // of calls that wait, and of what travels in pieces
  std::string status = "farcall-bridge";  // channel that tells the status; empty: none
};

// Of a file in TOML. Throws BridgeError, which names the file, the line, the cause and the cure.
Config read_config(const std::string& path);
// The first line of a file of 16 MiB at most. Throws BridgeError.
std::string read_password(const std::string& path);
// "door:PATH=SUBJECT" and "channel:NAME=SUBJECT". Throws BridgeError.
Name exported_name(const std::string& text);
// "SUBJECT=door:PATH" and "SUBJECT=channel:NAME". Throws BridgeError.
Name imported_name(const std::string& text);
// Throws BridgeError for what cannot be.
void validate(const Config& config);

class Bridge {
 public:
  // Connects, and serves all names. Throws BridgeError; then nothing is left of it. Until it calls
  // `before_names` nothing is on this machine that would be left behind if the process ended.
  explicit Bridge(const Config& config, const std::function<void()>& before_names = {});
  ~Bridge();
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;

  // Takes no new calls, and waits for those in progress, so many seconds at most.
  void drain(double seconds);
  [[nodiscard]] std::string status_json() const;

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

// Whether the cluster can be reached, and lets the bridge have these names. Serves nothing. Throws
// BridgeError.
void check(const Config& config);
// What a bridge that runs on this machine says of itself, as JSON. `channel`: Config::status; the
// own user's, root's, or else that of the only user who has one. Throws BridgeError.
std::string ask_status(const std::string& channel);

}  // namespace farcall::bridge
