// SPDX-License-Identifier: Apache-2.0
// See report.h. The result goes to Python as JSON: what the program prints and what Python returns cannot differ then.
// Threads as report.h says.
// Values only.
#include "report.h"

#include <string>
#include <vector>

#include <headrace/report.h>

#include "errors.h"
#include "file_object.h"
#include "interpreter.h"

namespace headrace::python {

namespace {

nb::str report_json(const nb::tuple& folders) {
  std::vector<std::string> paths;
  paths.reserve(folders.size());
  for (nb::handle folder : folders)
    paths.push_back(path_bytes(folder));
  const Result<std::string> json = without_gil([&]() -> Result<std::string> {
    const Result<MachineReport> report =
        report_machine(paths, {.progress = {.show = {}, .interrupted = &signal_handler_raised}});
    if (!report) return std::unexpected(report.error());
    return to_json(*report);
  });
  if (!json) raise(json.error(), nb::handle());
  return nb::str(json->c_str(), json->size());
}

}  // namespace

void bind_report(nb::module_& module) {
  module.def("report_json", &report_json, nb::arg("folders"),
             nb::sig("def report_json(folders: tuple[headrace._types.Path, ...]) -> str"),
             "For headrace.report: everything but what Python itself knows.");
}

}  // namespace headrace::python
