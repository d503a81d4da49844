# SPDX-License-Identifier: Apache-2.0
"""The lints accept this tree, and find each kind of offence in a tree made to offend."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import check_layers
import check_source

ROOT = Path(__file__).resolve().parents[2]
HEAD = "// SPDX-License-Identifier: Apache-2.0\n// What.\n// Any thread.\n// Owns nothing.\n"


class Tree(unittest.TestCase):
    """A folder to fill with files, gone after the test."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        rules = self.root / "tools/tidy/layers.toml"
        rules.parent.mkdir(parents=True)
        rules.write_text((ROOT / "tools/tidy/layers.toml").read_text())

    def write(self, path: str, text: str, head: str = HEAD) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(head + text)


class LayersTest(Tree):
    def faults_of(self, path: str, text: str) -> list[str]:
        self.write(path, text)
        return check_layers.check(self.root)

    def test_this_tree_keeps_its_layers(self) -> None:
        self.assertEqual(check_layers.check(ROOT), [])

    def test_a_layer_may_include_what_its_row_lists(self) -> None:
        self.write("include/headrace/error.h", "#include <string>\n")
        self.write("src/base/units.h", "")
        text = '#include <headrace/error.h>\n#include "base/units.h"\n'
        text += "#include <liburing.h>\n#include <sys/uio.h>\n"
        self.assertEqual(self.faults_of("src/engine/uring.cc", text), [])

    def test_an_upward_include_is_found(self) -> None:
        self.write("src/transfer/handle.h", "")
        faults = self.faults_of("src/engine/posix.cc", '\n#include "transfer/handle.h"\n')
        self.assertEqual(
            faults, ['src/engine/posix.cc:6: includes "transfer/handle.h": engine may not include transfer']
        )

    def test_siblings_of_one_row_do_not_know_each_other(self) -> None:
        self.write("src/stream/window.h", "")
        faults = self.faults_of("src/checkpoint/writer.cc", '#include "stream/window.h"\n')
        self.assertIn("checkpoint may not include stream", faults[0])

    def test_python_and_cli_see_public_headers_only(self) -> None:
        self.write("src/base/units.h", "")
        self.write("tools/cli/main.cc", '#include "base/units.h"\n')
        self.assertEqual(len(self.faults_of("python/src/core.cc", '#include "base/units.h"\n')), 2)

    def test_a_third_party_header_in_the_wrong_layer_is_found(self) -> None:
        faults = self.faults_of("src/transfer/worker.cc", "#include <liburing.h>\n")
        self.assertIn("transfer may not include liburing", faults[0])

    def test_a_public_header_includes_std_only(self) -> None:
        text = "#include <vector>\n#include <unistd.h>\n#include <fmt/format.h>\n"
        faults = self.faults_of("include/headrace/file.h", text)
        self.assertEqual(len(faults), 2)

    def test_kernel_headers_stay_in_os(self) -> None:
        self.write("src/os/futex.h", "#include <linux/futex.h>\n")
        faults = self.faults_of("src/memory/pool.cc", "#include <linux/mman.h>\n")
        self.assertEqual(len(faults), 1)
        self.assertIn("src/memory/pool.cc:5:", faults[0])

    def test_a_relative_include_cannot_hide_the_edge(self) -> None:
        self.write("src/engine/engine.h", "")
        faults = self.faults_of("src/plan/cursor.cc", '#include "../engine/engine.h"\n')
        self.assertIn("plan may not include engine", faults[0])

    def test_an_include_that_no_file_answers_is_found(self) -> None:
        self.assertIn("no file of this tree", self.faults_of("src/base/a.cc", '#include "base/gone.h"\n')[0])

    def test_an_include_through_a_macro_is_found(self) -> None:
        self.assertIn("macro", self.faults_of("src/base/a.cc", "#include HEADER\n")[0])

    def test_a_folder_in_no_layer_is_found(self) -> None:
        self.assertIn("is in no layer", self.faults_of("src/misc/a.cc", "")[0])

    def test_a_comment_is_no_include(self) -> None:
        self.assertEqual(self.faults_of("src/base/a.cc", '// #include "x.h"\n/*\n#include "y.h"\n*/\n'), [])

    def test_tests_may_include_anything(self) -> None:
        self.assertEqual(self.faults_of("src/base/a_test.cc", "#include <gtest/gtest.h>\n"), [])

    def test_a_table_with_a_cycle_is_refused(self) -> None:
        row = {"path": ["src/a"], "layers": ["b"], "third_party": [], "system": "std"}
        table = {"layer": {"a": row, "b": {**row, "path": ["src/b"], "layers": ["a"]}}}
        self.assertIn("which no earlier row defines", check_layers.check(self.root, table)[0])


class SourceTest(Tree):
    def faults_of(self, text: str, path: str = "src/base/a.cc", head: str = HEAD) -> list[str]:
        self.write(path, text, head)
        self.write(
            "src/CMakeLists.txt", f"add_library(x {path.removeprefix('src/')})\n", head="# " + HEAD[3:41]
        )
        return check_source.check(self.root)

    def test_this_tree_keeps_the_rules(self) -> None:
        self.assertEqual(check_source.check(ROOT), [])

    def test_clean_source_passes(self) -> None:
        text = "\nvoid Transfer::abort() { t.abort(); p->exit(); static_assert(1); }\n"
        text += 'int f() { return snprintf(a, 1, "printf("); }\n'
        text += "void WakeEvent::signal() noexcept { event_.signal(); }\n"
        self.assertEqual(self.faults_of(text + "bool abort();\n// abort() getenv() assert(x)\n"), [])

    def test_each_banned_call_is_found(self) -> None:
        for statement in (
            'printf("x");',
            'std::fprintf(stderr, "x");',
            'std::puts("x");',
            "std::cout << 1;",
            'fmt::print("x");',
            "abort();",
            "std::abort();",
            "::abort();",
            "if (x) exit(1);",
            "_exit(1);",
            "std::terminate();",
            'auto v = getenv("A");',
            'std::getenv("A");',
            "assert(x);",
            "sigaction(1, a, b);",
            "signal(SIGPIPE, SIG_IGN);",
            "std::signal(number, handler);",
        ):
            with self.subTest(statement):
                faults = self.faults_of(f"void f() {{\n  {statement}\n}}\n")
                self.assertEqual(len(faults), 1, faults)
                self.assertTrue(faults[0].startswith("src/base/a.cc:6: "), faults)

    def test_banned_includes_are_found(self) -> None:
        for header in ("iostream", "cassert", "assert.h"):
            with self.subTest(header):
                self.assertEqual(len(self.faults_of(f"#include <{header}>\n")), 1)

    def test_check_h_alone_may_abort(self) -> None:
        self.assertEqual(self.faults_of("inline void f() { std::abort(); }\n", "src/base/check.h"), [])

    def test_a_missing_licence_is_found(self) -> None:
        self.assertIn(
            "does not start with", self.faults_of("int a;\n", head="// A.\n// B.\n// C.\n// D.\n")[0]
        )

    def test_a_missing_file_comment_is_found(self) -> None:
        head = "// SPDX-License-Identifier: Apache-2.0\n// What.\n\n#include <string>\n"
        self.assertIn("lacks the three lines", self.faults_of("", head=head)[0])

    def test_an_unlisted_source_is_found(self) -> None:
        self.write("src/base/b.cc", "")
        self.assertEqual(self.faults_of(""), ["src/base/b.cc:1: is not listed in src/CMakeLists.txt"])

    def test_a_listed_source_that_is_gone_is_found(self) -> None:
        self.faults_of("")
        (self.root / "src/base/a.cc").unlink()
        self.assertEqual(
            check_source.check(self.root), ["src/CMakeLists.txt:1: lists base/a.cc, which does not exist"]
        )

    def test_a_source_in_a_comment_of_the_list_is_not_listed(self) -> None:
        self.write("src/base/a.cc", "")
        self.write("src/CMakeLists.txt", "add_library(x) # base/a.cc\n", head="# " + HEAD[3:41])
        self.assertEqual(len(check_source.check(self.root)), 1)

    def test_a_build_for_one_machine_is_found(self) -> None:
        self.write("cmake/x.cmake", "add_compile_options(-march=native)\n", head="# " + HEAD[3:41])
        self.assertIn("one machine only", self.faults_of("")[0])

    def test_a_file_beyond_the_ceiling_is_found(self) -> None:
        self.assertIn("ceiling", self.faults_of("int a;\n" * 500)[0])


if __name__ == "__main__":
    unittest.main()
