// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "farcall/error.hpp"
#include "farcall/memory.hpp"
#include "memory/write_all.hpp"
#include "tool/exit_code.hpp"
#include "tool/say.hpp"
#include "tool/top/table.hpp"
#include "tool/top/top.hpp"
#include "watch/output_file.hpp"

namespace farcall::tool::top {
namespace {

void print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw_errno("write to standard output");
}

// A new file, at a name that is nobody's, or at none yet.
struct NewFile {
  UniqueFd file;
  std::string name;
};

// Without a name, where the file system has such files: who is killed while writing leaves none.
NewFile make_in(const std::string& folder, mode_t mode) {
  NewFile made{.file = UniqueFd(::open(folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600)),
               .name = ""};
  if (!made.file) {
    made.name = folder + "/.farcall-XXXXXX";
    made.file = UniqueFd(::mkostemp(made.name.data(), O_CLOEXEC));
    if (!made.file) throw_errno("make a file in " + folder);
  }
  if (::fchmod(made.file.get(), mode) != 0) throw_errno("change who reads " + folder);
  return made;
}

void give_name(NewFile& made, const std::string& folder) {
  const std::string here = "/proc/self/fd/" + std::to_string(made.file.get());
  for (int number = 0; made.name.empty(); ++number) {
    std::string name = fmt::format("{}/.farcall-{}-{}", folder, ::getpid(), number);
    if (::linkat(AT_FDCWD, here.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0)
      made.name = std::move(name);
    else if (errno != EEXIST)
      throw_errno("make " + name);
  }
}

// Who reads the file gets the whole of an old one or of a new one. The other file in its folder is
// not one that the collector reads (*.prom). What is no file (a pipe, a device) is written to.
void write_atomically(const std::string& name, const std::string& text) {
  const std::string path = watch::followed(name);
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  const auto bytes = std::as_bytes(std::span(text));
  constexpr const char* kWrite = "write the figures";
  if (exists && !S_ISREG(status.st_mode))
    return write_all(watch::open_other(name).get(), bytes, kWrite);
  const std::string parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent;
  const mode_t masked = ::umask(0);
  ::umask(masked);
  NewFile made = make_in(folder, exists ? status.st_mode & 0777 : 0644 & ~masked);
  try {
    write_all(made.file.get(), bytes, kWrite);
    give_name(made, folder);
    if (::rename(made.name.c_str(), path.c_str()) != 0) throw_errno("replace " + path);
  } catch (...) {
    if (!made.name.empty()) ::unlink(made.name.c_str());
    throw;
  }
}

unsigned width_of_output() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0) return size.ws_col;
  return 160;
}

std::string table_of(const watch::Flows& flows, const Options& options) {
  const View view{.sort = sort_of(options.sort), .reversed = false, .filter = options.filter};
  const unsigned width = width_of_output();
  std::string text = header(width, view) + "\n";
  for (const Line& line : lines(flows, width, view)) text += line.text + "\n";
  return text;
}

}  // namespace

int write_out(const Options& options) {
  const auto interval = std::chrono::duration<double>(options.interval_s);
  watch::Everybody everybody;
  watch::Flows flows(
      {.timed = true, .interval_ns = static_cast<std::int64_t>(options.interval_s * 1e9)});
  std::vector<watch::Process> processes = everybody.look();
  flows.look(processes);
  // Totals need no second look; rates do.
  bool wait = !(options.prometheus && options.once);
  for (;;) {
    if (wait) {
      std::this_thread::sleep_for(interval);
      processes = everybody.look();
      flows.look(processes);
    }
    wait = true;
    if (options.prometheus && !options.output.empty())
      write_atomically(options.output, prometheus_of(flows, processes, options.filter));
    else
      print(options.prometheus ? prometheus_of(flows, processes, options.filter)
            : options.json     ? json_of(flows, processes, options.filter)
                               : table_of(flows, options));
    if (options.once) return kSuccess;
  }
}

}  // namespace farcall::tool::top
