// SPDX-License-Identifier: Apache-2.0
#include "doctor/tree.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "farcall/memory.hpp"

namespace farcall::doctor {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;  // of a file; nobody is read for ever
constexpr std::string_view kBlanks = " \t\n\r";

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> pieces;
  for (std::size_t at = text.find_first_not_of(separators); at != text.npos;) {
    const std::size_t end = std::min(text.find_first_of(separators, at), text.size());
    pieces.push_back(text.substr(at, end - at));
    at = text.find_first_not_of(separators, end);
  }
  return pieces;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

}  // namespace

std::optional<std::string> Tree::text(std::string_view path) const {
  // A pipe or a device in the place of a file must not keep us waiting.
  const UniqueFd file(::open(place(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) return std::nullopt;
  std::string text;
  std::array<char, 16384> piece;
  while (text.size() < kMostBytes) {
    const ssize_t got = ::read(file.get(), piece.data(), piece.size());
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
  return text;
}

std::optional<std::string> Tree::memory_text(std::string_view pid, std::string_view file) const {
  const auto number = to_number(pid);
  if (memory_reader_ != nullptr && number) return memory_reader_(static_cast<pid_t>(*number), file);
  return text("/proc/" + std::string(pid) + "/" + std::string(file));
}

std::string Tree::line(std::string_view path) const {
  const std::string all = text(path).value_or("");
  return std::string(trimmed(std::string_view(all).substr(0, all.find('\n'))));
}

std::optional<std::uint64_t> Tree::number(std::string_view path) const {
  return to_number(line(path));
}

std::vector<std::string> Tree::names(std::string_view directory) const {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(place(directory), error), end; !error && at != end;
       at.increment(error))
    names.push_back(at->path().filename());
  std::ranges::sort(names);
  return names;
}

std::string Tree::link(std::string_view path) const {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::read_symlink(place(path), error);
  return error ? std::string() : target.string();
}

bool Tree::exists(std::string_view path) const {
  std::error_code error;
  return std::filesystem::exists(place(path), error);
}

std::vector<unsigned> to_list(std::string_view text) {
  constexpr std::size_t kMost = 4096;
  std::vector<unsigned> numbers;
  for (const std::string_view piece : split(text, ", \t\n")) {
    const std::size_t dash = piece.find('-');
    const auto first = to_number(piece.substr(0, dash));
    const auto last = dash == piece.npos ? first : to_number(piece.substr(dash + 1));
    if (!first || !last) continue;
    for (std::uint64_t number = *first; number <= *last && numbers.size() < kMost; ++number)
      numbers.push_back(static_cast<unsigned>(number));
  }
  return numbers;
}

std::string field(std::string_view text, std::string_view name) {
  for (const std::string_view line : lines(text)) {
    const std::size_t colon = line.find(':');
    if (colon != line.npos && trimmed(line.substr(0, colon)) == name)
      return std::string(trimmed(line.substr(colon + 1)));
  }
  return {};
}

std::vector<std::string_view> words(std::string_view text) { return split(text, kBlanks); }
std::vector<std::string_view> lines(std::string_view text) { return split(text, "\n"); }

}  // namespace farcall::doctor
