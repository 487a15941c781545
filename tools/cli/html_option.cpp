#include "html_option.h"

#include "arguments.h"
#include "report/write_file.h"

namespace muster::cli {

void add_html_option(CLI::App& command, std::string& file, const std::string& names) {
  command.add_option(names, file, "Also write a report: one HTML file")->type_name("FILE");
}

void check_html(const std::string& file) {
  if (!file.empty()) check_folder("--html", file);
}

void write_html(const std::string& file, const report::Page& page) {
  if (file.empty()) return;
  for_flag("--html", [&] { report::write_file(file, report::page_html(page)); });
}

}  // namespace muster::cli
