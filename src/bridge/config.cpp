// SPDX-License-Identifier: Apache-2.0
//
// The configuration: a file in TOML, or what the command line says.
#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <set>
#include <string_view>

#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

#include "bridge/bridge.hpp"
#include "farcall/message.h"
#include "memory/to_number.hpp"

namespace farcall::bridge {
namespace {

constexpr std::size_t kLongestSubject = 200;

bool is_time(double seconds) { return seconds > 0 && seconds <= 86400; }

// All of a file. What is none, such as a folder, must not pass for an empty one.
std::string text_of(const std::string& path) {
  constexpr std::size_t kMost = std::size_t{16} << 20;
  const auto cannot = [&](int error) {
    return BridgeError(fmt::format("cannot read {}: {}", path, ::strerrorname_np(error)));
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"),
                                                             &std::fclose);
  if (!file) throw cannot(errno);
  std::string text;
  char some[65536];
  while (const std::size_t size = std::fread(some, 1, sizeof some, file.get())) {
    text.append(some, size);
    if (text.size() > kMost) throw cannot(EFBIG);
  }
  if (std::ferror(file.get()) != 0) throw cannot(errno);
  return text;
}

// What is wrong, and where.
class File {
 public:
  explicit File(std::string path) : path_(std::move(path)) {}

  [[noreturn]] void wrong(const toml::source_region& where, const std::string& what) const {
    throw BridgeError(fmt::format("{}:{}: {}", path_, where.begin.line, what));
  }
  void only(const toml::table& table, std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : table) {
      bool found = false;
      std::string all;
      for (const std::string_view each : known) {
        found = found || each == key.str();
        all += (all.empty() ? "" : ", ") + std::string(each);
      }
      if (!found)
        wrong(key.source(), fmt::format("'{}' is not known here; there are: {}", key.str(), all));
    }
  }
  template <class T>
  void read(const toml::table& table, const char* key, T& into, const char* kind) const {
    const toml::node* const node = table.get(key);
    if (node == nullptr) return;
    const auto value = node->value<T>();
    if (!value) wrong(node->source(), fmt::format("'{}' is to be {}", key, kind));
    into = *value;
  }
  void read_text(const toml::table& table, const char* key, std::string& into) const {
    read(table, key, into, "a string in quotes");
  }
  void read_seconds(const toml::table& table, const char* key, double& into) const {
    read(table, key, into, "a number of seconds");
    if (table.contains(key) && !is_time(into))
      wrong(table.get(key)->source(),
            fmt::format("'{}' is to be more than 0 and at most 86400 seconds", key));
  }
  template <class T>
  void read_count(const toml::table& table, const char* key, T& into, std::int64_t least,
                  std::int64_t most) const {
    auto value = static_cast<std::int64_t>(into);
    read(table, key, value, "a whole number");
    if (value < least || value > most)
      wrong(table.get(key)->source(),
            fmt::format("'{}' is to be between {} and {}", key, least, most));
    into = static_cast<T>(value);
  }
  [[nodiscard]] const toml::table& section(const toml::node& node, const std::string& what) const {
    if (const toml::table* const table = node.as_table()) return *table;
    wrong(node.source(), fmt::format("{} is to be a table: [{}]", what, what));
  }

 private:
  const std::string path_;
};

void read_nats(const File& file, const toml::table& table, Config& config) {
  file.only(table, {"servers", "creds", "user", "password", "password_file", "tls_ca", "tls_cert",
                    "tls_key", "domain", "inbox"});
  if (const toml::node* const servers = table.get("servers")) {
    const toml::array* const all = servers->as_array();
    if (all == nullptr)
      file.wrong(servers->source(), "'servers' is to be a list: [\"nats://...\"]");
    for (const toml::node& each : *all) {
      const auto url = each.value<std::string>();
      if (!url) file.wrong(each.source(), "a server is to be a string: \"nats://host:4222\"");
      config.servers.push_back(*url);
    }
  }
  file.read_text(table, "creds", config.credentials);
  file.read_text(table, "user", config.user);
  file.read_text(table, "password", config.password);
  std::string password_file;
  file.read_text(table, "password_file", password_file);
  if (!password_file.empty()) {
    try {
      config.password = read_password(password_file);
    } catch (const BridgeError& error) {
      file.wrong(table.get("password_file")->source(), error.what());
    }
  }
  file.read_text(table, "tls_ca", config.tls_ca);
  file.read_text(table, "tls_cert", config.tls_certificate);
  file.read_text(table, "tls_key", config.tls_key);
  file.read_text(table, "domain", config.domain);
  file.read_text(table, "inbox", config.inbox);
}

void read_bridge(const File& file, const toml::table& table, Config& config) {
  file.only(table, {"death_bound", "connect_bound", "workers", "waiting", "memory_mib", "status"});
  file.read_seconds(table, "death_bound", config.death_bound_s);
  file.read_seconds(table, "connect_bound", config.connect_bound_s);
  file.read_count(table, "workers", config.workers, 1, 65536);
  file.read_count(table, "waiting", config.waiting, 1, 65536);
  file.read_count(table, "memory_mib", config.memory_mib, 1, std::int64_t{1} << 20);
  file.read_text(table, "status", config.status);
}

uid_t user_number(const File& file, const toml::node& node) {
  if (const auto number = node.value<std::int64_t>();
      number && *number >= 0 && *number < std::int64_t{0xffffffff})
    return static_cast<uid_t>(*number);
  const auto name = node.value<std::string>();
  if (!name) file.wrong(node.source(), "a user is to be a name in quotes, or a number");
  const passwd* const found = ::getpwnam(name->c_str());
  if (found == nullptr)
    file.wrong(node.source(), fmt::format("there is no user '{}' on this machine", *name));
  return found->pw_uid;
}

void read_import(const File& file, const toml::table& table, Name& name) {
  std::int64_t mode = name.mode;
  file.read(table, "mode", mode, "a number, such as 0o660");
  if (mode < 0 || mode > 0777) file.wrong(table.get("mode")->source(), "'mode' is no mode");
  name.mode = static_cast<mode_t>(mode);
  file.read(table, "idempotent", name.idempotent, "true or false");
  file.read_count(table, "retries", name.retries, 0, 100);
  if (table.contains("deadline")) file.read_seconds(table, "deadline", name.deadline_s);
  const toml::node* const allow = table.get("allow");
  if (allow == nullptr) return;
  const toml::array* const users = allow->as_array();
  if (users == nullptr) file.wrong(allow->source(), "'allow' is to be a list of users");
  name.allowed.emplace();
  for (const toml::node& each : *users) name.allowed->push_back(user_number(file, each));
}

void read_name(const File& file, const toml::table& table, Direction direction, Config& config) {
  Name name;
  name.direction = direction;
  if (direction == Direction::exported) {
    file.only(table, {"door", "channel", "subject"});
  } else {
    file.only(table,
              {"door", "channel", "subject", "mode", "idempotent", "retries", "deadline", "allow"});
  }
  file.read_text(table, "subject", name.subject);
  if (name.subject.empty())
    file.wrong(table.source(), "a name needs a 'subject', such as \"quote.v1\"");
  if (table.contains("door") == table.contains("channel"))
    file.wrong(table.source(), "a name needs either a 'door', a path, or a 'channel', a name");
  name.local = table.contains("door") ? Local::door : Local::channel;
  file.read_text(table, name.local == Local::door ? "door" : "channel", name.path);
  if (direction == Direction::imported) read_import(file, table, name);
  Config alone;
  alone.servers = {"nats://any"};
  alone.status.clear();  // whatever that is called
  alone.names.push_back(name);
  try {
    validate(alone);
  } catch (const BridgeError& error) {
    file.wrong(table.source(), error.what());
  }
  config.names.push_back(std::move(name));
}

void read_names(const File& file, const toml::table& root, const char* key, Direction direction,
                Config& config) {
  const toml::node* const node = root.get(key);
  if (node == nullptr) return;
  const toml::array* const all = node->as_array();
  if (all == nullptr)
    file.wrong(node->source(), fmt::format("each name has its own table: [[{}]]", key));
  for (const toml::node& each : *all) read_name(file, file.section(each, key), direction, config);
}

Name local_part(std::string_view text, const std::string& whole) {
  Name name;
  if (text.starts_with("door:")) {
    name.local = Local::door;
    name.path = text.substr(5);
  } else if (text.starts_with("channel:")) {
    name.local = Local::channel;
    name.path = text.substr(8);
  } else {
    throw BridgeError(fmt::format("'{}': on this machine it is door:PATH or channel:NAME", whole));
  }
  return name;
}

bool is_words(const std::string& subject) {
  if (subject.empty() || subject.size() > kLongestSubject) return false;
  if (subject.front() == '.' || subject.back() == '.' || subject.find("..") != std::string::npos ||
      subject.front() == '$')
    return false;
  for (const char c : subject)
    if (c <= ' ' || c == '*' || c == '>' || c == 0x7f || static_cast<unsigned char>(c) >= 0x80)
      return false;
  return true;
}

bool is_subject(const std::string& subject) {
  return is_words(subject) && !subject.starts_with("_INBOX");
}

// As farcall_name_attach() takes it.
void validate_own_channel(const std::string& name) {
  const auto is_wrong = [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == 0x7f; };
  if (name.empty() || name.size() > FARCALL_NAME_MAX || name.find('/') != std::string::npos ||
      std::ranges::any_of(name, is_wrong))
    throw BridgeError(fmt::format(
        "'{}' cannot be a channel of this user's: up to {} characters without spaces or /", name,
        FARCALL_NAME_MAX));
}

void validate_name(const Name& name) {
  if (!is_subject(name.subject))
    throw BridgeError(fmt::format(
        "'{}' is no subject: words with dots between them, such as quote.v1", name.subject));
  if (name.path.empty()) throw BridgeError("the local name is empty");
  if (name.local == Local::door && name.path.front() != '/')
    throw BridgeError(fmt::format("the door '{}' is to be a whole path, from /", name.path));
  if (name.local == Local::channel && name.direction == Direction::imported)
    validate_own_channel(name.path);
}

// One for all spellings of a local name, as far as its folders are there.
std::string identity_of(const Name& name) {
  if (name.local == Local::channel) {
    const std::string own = fmt::format("{}/", ::geteuid());
    return name.path.starts_with(own) ? name.path.substr(own.size()) : name.path;
  }
  std::error_code unreachable;
  const auto path = std::filesystem::weakly_canonical(name.path, unreachable);
  return unreachable ? std::filesystem::path(name.path).lexically_normal() : path;
}

using Id = std::pair<Local, std::string>;

// Whether what is imported under a local name is served by it in the end, through exports of what
// is imported.
bool goes_round(const Id& begun, const std::map<Id, std::string>& imported,
                const std::multimap<std::string, Id>& exported) {
  std::set<Id> seen;
  for (std::vector<Id> ahead{begun}; !ahead.empty();) {
    const auto calls = imported.find(ahead.back());
    ahead.pop_back();
    if (calls == imported.end()) continue;
    const auto [first, last] = exported.equal_range(calls->second);
    for (auto server = first; server != last; ++server) {
      if (server->second == begun) return true;
      if (seen.insert(server->second).second) ahead.push_back(server->second);
    }
  }
  return false;
}

void validate_together(const Config& config) {
  std::map<Id, std::string> imported;
  std::multimap<std::string, Id> exported;
  for (const Name& name : config.names) {
    Id id(name.local, identity_of(name));
    if (name.direction == Direction::exported)
      exported.emplace(name.subject, std::move(id));
    else if (!imported.emplace(std::move(id), name.subject).second)
      throw BridgeError(fmt::format("{} is imported twice", name.path));
  }
  for (const Name& name : config.names)
    if (name.direction == Direction::imported &&
        goes_round(Id(name.local, identity_of(name)), imported, exported))
      throw BridgeError(fmt::format(
          "{} is exported and imported as the same subject, {}, perhaps through other names: its "
          "calls would go round for ever",
          name.path, name.subject));
  if (imported.contains(Id(Local::channel, config.status)))
    throw BridgeError(
        fmt::format("the channel {} is imported, and cannot tell the status, too", config.status));
}

// As libnats takes it, which takes more.
void validate_server(const std::string& url) {
  const std::size_t scheme = url.find("://");
  const bool known = url.starts_with("nats://") || url.starts_with("tls://");
  std::string_view host(url);
  if (scheme != std::string::npos) host.remove_prefix(scheme + 3);
  const std::size_t port = host.find(':', std::min(host.rfind(']'), host.rfind('@')) + 1);
  int number = 1;
  if (port != std::string_view::npos) number = to_number<int>(host.substr(port + 1)).value_or(0);
  if ((scheme != std::string::npos && !known) || host.empty() || port == 0 || number < 1 ||
      number > 65535)
    throw BridgeError(
        fmt::format("'{}' is no server of NATS: nats://HOST:4222, or tls://HOST:4222", url));
}

// That it can be read: the service's manager is not to try again in vain.
void validate_file(const std::string& path, const char* what) {
  if (path.empty()) return;
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode))
    errno = EISDIR;
  else if (::access(path.c_str(), R_OK) == 0)
    return;
  throw BridgeError(fmt::format("{}: cannot read {}: {}", what, path, ::strerrorname_np(errno)));
}

}  // namespace

std::string read_password(const std::string& path) {
  const std::string text = text_of(path);
  if (text.empty())
    throw BridgeError(fmt::format("cannot read a password in {}: it is empty", path));
  return text.substr(0, text.find('\n'));
}

Config read_config(const std::string& path) {
  const File file(path);
  const std::string text = text_of(path);
  toml::table root;
  try {
    root = toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    file.wrong(error.source(), std::string(error.description()));
  }
  Config config;
  file.only(root, {"nats", "bridge", "export", "import"});
  if (const auto* nats = root.get("nats")) read_nats(file, file.section(*nats, "nats"), config);
  if (const auto* own = root.get("bridge")) read_bridge(file, file.section(*own, "bridge"), config);
  read_names(file, root, "export", Direction::exported, config);
  read_names(file, root, "import", Direction::imported, config);
  return config;
}

Name exported_name(const std::string& text) {
  const std::size_t at = text.rfind('=');
  if (at == std::string::npos)
    throw BridgeError(
        fmt::format("'{}': what is exported is door:PATH=SUBJECT or channel:NAME=SUBJECT", text));
  Name name = local_part(std::string_view(text).substr(0, at), text);
  name.subject = text.substr(at + 1);
  return name;
}

Name imported_name(const std::string& text) {
  const std::size_t at = text.find('=');
  if (at == std::string::npos)
    throw BridgeError(
        fmt::format("'{}': what is imported is SUBJECT=door:PATH or SUBJECT=channel:NAME", text));
  Name name = local_part(std::string_view(text).substr(at + 1), text);
  name.direction = Direction::imported;
  name.subject = text.substr(0, at);
  return name;
}

void validate(const Config& config) {
  if (config.servers.empty())
    throw BridgeError("no server is named: --nats nats://HOST:4222, or servers in [nats]");
  for (const std::string& url : config.servers) validate_server(url);
  if (config.names.empty())
    throw BridgeError(
        "no name is exported or imported: --export, --import, or [[export]] and "
        "[[import]]");
  if (config.tls_certificate.empty() != config.tls_key.empty())
    throw BridgeError("--tls-cert and --tls-key belong together");
  validate_file(config.credentials, "--creds");
  validate_file(config.tls_ca, "--tls-ca");
  validate_file(config.tls_certificate, "--tls-cert");
  validate_file(config.tls_key, "--tls-key");
  if (!config.domain.empty() && !is_subject(config.domain))
    throw BridgeError(fmt::format("the domain '{}' cannot begin a subject", config.domain));
  if (!is_words(config.inbox))
    throw BridgeError(fmt::format("the inbox '{}' cannot begin a subject", config.inbox));
  for (const auto& [bound, what] : {std::pair(config.death_bound_s, "--death-bound"),
                                    std::pair(config.connect_bound_s, "--connect-bound")})
    if (!is_time(bound))
      throw BridgeError(fmt::format("{} is to be more than 0 and at most 86400 seconds", what));
  if (config.workers == 0 || config.waiting == 0 || config.memory_mib == 0)
    throw BridgeError("workers, waiting and memory_mib are to be 1 at least");
  for (const Name& name : config.names) validate_name(name);
  if (!config.status.empty()) validate_own_channel(config.status);
  validate_together(config);
}

}  // namespace farcall::bridge
