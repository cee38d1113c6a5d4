#include "layerpress/cli/command_line.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <sstream>
#include <vector>

#include "layerpress/base/text.h"
#include "layerpress/cli/option_parser.h"
#include "layerpress/cli/text/help_text.h"
#include "layerpress/cli/text/parse_errors.h"
#include "layerpress/cli/text/style.h"

namespace layerpress::cli {
namespace {

/// Lists the options that the command line states, even where it states the default.
void list_given(const CLI::App& command, OneshotOptions& options) {
  OneshotOptions::visit(options, [&](const char* name, const auto&, const char*) {
    const CLI::Option* option = command.get_option_no_throw(std::string("--") + name);
    if (option != nullptr && option->count() > 0) options.given.emplace_back(name);
  });
}

void add_oneshot(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand("oneshot", "Compress a model in one shot");
  add_model_argument(*command, line.oneshot.model);
  add_options(*command, line.oneshot);
  CLI::Option* dry_run = command->add_flag("--dry-run", line.dry_run,
                                           "show memory, disk and time that the run would take, and stop there");
  command->add_flag("--json", line.json, "with --dry-run: print JSON")->needs(dry_run);
  add_common_options(*command, line.common);
  command->callback([&line, command] { list_given(*command, line.oneshot); });
}

void add_eval(CLI::App& app, CommandLine& line) {
  CLI::App* command =
      app.add_subcommand("eval", "Measure a plain or compressed model on text; prints JSON, or a table");
  add_model_argument(*command, line.eval.model);
  add_options(*command, line.eval);
  command->add_flag("--table", line.table, "print a table instead of JSON");
  add_common_options(*command, line.common);
}

/// An option that only a plan or a measurement looks at is refused without one, instead of being ignored.
void require_use(const CLI::App& command, const InspectOptions& options) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string& help = option->get_description();
    if (option->count() == 0 || help.rfind("with --", 0) != 0) continue;
    const std::string needed = help.substr(5, help.find(": ") - 5);
    const auto names = [&](const char* name) { return needed.find(name) != std::string::npos; };
    if (!(names("--plan") && options.plan) && !(names("--sensitivity") && options.sensitivity) && !names("--svg"))
      throw CLI::ValidationError(fmt::format("{} requires {}", option->get_name(), needed));
  }
}

void add_inspect(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand("inspect", "List a model's subgraphs and linear groups, or draw its graph");
  CLI::Option* model = command->add_option("MODEL", line.inspect.run.model,
                                           "model directory, GGUF file, or the id of a model on the Hugging Face hub");
  add_options(*command, line.inspect);
  command->add_flag("--json", line.json, "print JSON");
  command->add_flag("--architectures", line.architectures, "list the supported model families; takes no MODEL");
  add_common_options(*command, line.common);
  command->callback([&line, command, model] {
    list_given(*command, line.inspect.run);
    if (model->empty() != line.architectures)
      throw CLI::ValidationError(line.architectures ? "--architectures takes no MODEL" : "MODEL is required");
    require_use(*command, line.inspect);
  });
}

void add_prepare(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand("prepare", "Tokenize calibration data into a token file");
  add_model_argument(*command, line.prepare.model);
  add_options(*command, line.prepare);
  command->get_option("--dataset")->required();
  command->get_option("--output")->required();
  add_common_options(*command, line.common);
}

void add_verify(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand("verify", "Check a checkpoint, by itself or against the model it was made of");
  add_model_argument(*command, line.verify.model);
  add_options(*command, line.verify);
  command->add_flag("--json", line.json, "print JSON");
  add_common_options(*command, line.common);
}

/// The arguments from the last to the first, as the parser takes them; in names of options "_" stands for "-". A value of commas alone is
/// an empty list, for which the parser would take the options that follow.
std::vector<std::string> reversed_arguments(int argc, char** argv) {
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  for (std::string& argument : arguments)
    if (argument.rfind("--", 0) == 0)
      std::replace(argument.begin(), std::find(argument.begin(), argument.end(), '='), '_', '-');
    else if (argument.find_first_not_of(',') == std::string::npos)
      argument.clear();
  std::reverse(arguments.begin(), arguments.end());
  return arguments;
}

}  // namespace

int fail(const std::string& message, int code) {
  say(styled("error:", Style::kRed, STDERR_FILENO) + " " + message.substr(0, message.find('\n')) + "\n");
  return code;
}

int end_output(int code) {
  if (code != 0 || (std::fflush(stdout) == 0 && std::ferror(stdout) == 0)) return code;
  struct stat output {};
  if (::fstat(STDOUT_FILENO, &output) == 0 && (S_ISFIFO(output.st_mode) || S_ISSOCK(output.st_mode))) return code;
  return fail("[cli.output] standard output cannot be written; is the disk full?", 1);
}

bool parse_command_line(int argc, char** argv, CommandLine& line, int& code) {
  CLI::App app("Layerpress compresses large language models in one shot, layer by layer.", "layerpress");
  app.formatter(std::make_shared<HelpText>());
  app.set_version_flag("--version", std::string("layerpress ") + LAYERPRESS_VERSION);
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error&) { return std::string(); });
  for (int i = 0; i < argc; ++i)
    if (std::strcmp(argv[i], "--resume") != 0) line.common.command_line += (i == 0 ? "" : " ") + shell_word(argv[i]);
  add_oneshot(app, line);
  add_eval(app, line);
  add_inspect(app, line);
  add_prepare(app, line);
  add_verify(app, line);
  try {
    app.parse(reversed_arguments(argc, argv));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      code = fail("[options] " + explain(app, error), 2);
    } else {  // --help and --version
      std::ostringstream text;
      code = app.exit(error, text);
      std::fputs(text.str().c_str(), stdout);
    }
    return false;
  }
  line.subcommand = app.get_subcommands().front()->get_name();
  return true;
}

}  // namespace layerpress::cli
