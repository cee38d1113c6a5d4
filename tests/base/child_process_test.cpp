#include "layerpress/base/system/child_process.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "tests/checkpoint/temporary_folder.h"

namespace layerpress {
namespace {

using test::expect_says;
using test::message_of;
using test::TemporaryFolder;

ChildResult shell(const std::string& script, const std::string& input = "") {
  return run_child({{"sh", "-c", script}, input, "install a shell"}, {});
}

TEST(RunChild, PassesInputAndCollectsBothStreams) {
  const ChildResult result = shell("cat; echo problem >&2; exit 3", "some input");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.output, "some input");
  EXPECT_EQ(result.errors, "problem\n");
}

TEST(RunChild, TheChildGetsNoSecrets) {
  const auto seen = [](bool with_hub_token) {
    return run_child({{"sh", "-c", "echo $HF_TOKEN,$AWS_SECRET_ACCESS_KEY,$HF_HUB_OFFLINE,${HOME:+home}"},
                      "",
                      "",
                      with_hub_token},
                     {})
        .output;
  };
  for (const char* name : {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_HUB_OFFLINE", "HOME"}) ::setenv(name, "1", 1);
  EXPECT_EQ(seen(false), ",,1,home\n");
  EXPECT_EQ(seen(true), "1,,1,home\n");
}

TEST(RunChild, MuchInputAndOutputDoNotBlockEachOther) {
  const std::string input(3 << 20, 'x');
  const ChildResult result = shell("cat; cat /dev/zero | head -c 1000000 >&2", input);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_GE(result.output.size(), 64u << 10);
  EXPECT_LE(result.output.size(), 128u << 10);
  EXPECT_EQ(result.output.back(), 'x');
  EXPECT_LE(result.errors.size(), 128u << 10);
}

TEST(RunChild, SurvivesAChildThatDoesNotRead) {
  EXPECT_EQ(shell("exec <&-; sleep 0.1; exit 4", std::string(3 << 20, 'x')).exit_code, 4);
}

TEST(RunChild, ReportsSignals) { EXPECT_EQ(shell("kill -9 $$").exit_code, 128 + 9); }

TEST(RunChild, ChildMayCloseItsStreamsEarly) { EXPECT_EQ(shell("exec >&- 2>&-; sleep 0.2; exit 5").exit_code, 5); }

TEST(RunChild, DoesNotWaitForGrandchildren) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(shell("sleep 20 & echo done").output, "done\n");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(RunChild, PassesLinesOnAsTheyCome) {
  std::vector<std::string> lines;
  run_child({{"sh", "-c", "echo one; printf two; sleep 0.1; echo; printf rest"}, "", "install a shell"}, {},
            [&](std::string_view line) { lines.emplace_back(line); });
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "two"}));
}

TEST(RunChild, ReportedErrorIsTheHelpersOwn) {
  EXPECT_EQ(reported_error(shell("echo 'error: first\nerror: second\nnoise' >&2; exit 2"), "[x]"), "second");
  EXPECT_EQ(reported_error(shell("echo 'noise\nlast' >&2; exit 2"), "[x]"), "[x] the helper ended with code 2: last");
}

TEST(RunChild, MissingProgramIsNamed) {
  expect_says(message_of<DataError>([] {
                run_child({{"/nonexistent/program"}, "", "set THIS"}, {});
              }),
              {"'/nonexistent/program'", "No such file", "set THIS"});
}

/// Runs a script that writes its process id, then asks for a stop; returns the id.
pid_t run_stopped(const std::string& script) {
  const TemporaryFolder folder;
  std::atomic<bool> stop = false;
  const auto id_file = folder / "id";
  std::thread stopper([&] {
    while (test::read_bytes(id_file).find('\n') == std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    stop = true;
  });
  message_of<InterruptedError>([&] {
    run_child({{"sh", "-c", script, "sh", id_file.string()}, "", "install a shell"}, {nullptr, &stop});
  });
  stopper.join();
  return std::stoi(test::read_bytes(id_file));
}

TEST(RunChild, StopRequestEndsTheChild) {
  const pid_t process = run_stopped("echo $$ > $1; exec sleep 60");
  EXPECT_NE(::kill(process, 0), 0);
}

TEST(RunChild, StopRequestEndsAChildThatIgnoresIt) {
  const pid_t process = run_stopped("trap '' TERM; echo $$ > $1; while :; do sleep 0.05; done");
  EXPECT_NE(::kill(process, 0), 0);
}

}  // namespace
}  // namespace layerpress
