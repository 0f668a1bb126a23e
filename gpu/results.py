# SPDX-License-Identifier: MPL-2.0
"""The results of `gpu/run` by part: a file of one JSON object per line, and the page that shows them.

results.py PAGE FILE...: writes the page from the files of several stages.
"""

import json
import pathlib
import sys
import threading

TITLES = {
    "device": "Device",
    "tests": "Tests",
    "numbers": "Numbers",
    "torch": "PyTorch and CuPy",
    "module": "The Python module",
    "elements": "GStreamer's elements",
    "transports": "GStreamer's elements side by side",
    "a": "Legacy handles when the exporter is killed, and what opening costs",
    "b": "Memory by descriptor when the exporter is killed, and read-only access",
    "c": "Host memory that a device writes",
    "d": "Releases, errors and events",
    "e": "Within one process, and two contexts",
    "f": "Namespaces and MIG",
    "g": "What the driver needs of the system, and its limits",
}
NOTES = {
    "transports": "4K NV12, 30 frames a second, of `videotestsrc pattern=black ! cudaupload`; each side is a process. The hand-over is from the "
    "moment that the frame comes to the transport until the consumer's pipeline has it on the device. Copies are calls of cuMemcpy, "
    "of which a picture of two planes takes one or two; they are counted on the stand-in driver in any case.",
}
# Results that need a look begin with or contain one of these.
SIGNS = ("FAILED", "failed", "not run", "was ended after", "ended with", "cannot be started")


class Results:
    """The results of a run. Each is also appended to a file at once, so that an interrupted run leaves the results so far."""

    def __init__(self, file=None):
        self.found = []
        self.file = file
        self.lock = threading.Lock()
        if file:
            file.write_text("")

    def add(self, part, what, result):
        with self.lock:
            self.found.append((part, what, result))
            if self.file:
                with self.file.open("a") as file:
                    file.write(json.dumps({"part": part, "what": what, "result": result}) + "\n")

    @classmethod
    def read(cls, files):
        """The results of several stages. A test that ran again has its last result."""
        results = cls()
        for file in files:
            for line in file.read_text().splitlines():
                line = json.loads(line)
                results.add(line["part"], line["what"], line["result"])
        last = {(part, what): at for at, (part, what, _) in enumerate(results.found) if part == "tests"}
        results.found = [found for at, found in enumerate(results.found) if last.get(found[:2], at) == at]
        return results

    def of(self, part):
        return [(what, result) for own, what, result in self.found if own == part]

    def first(self, part, what):
        return next((result for own, result in self.of(part) if own == what), None)

    def failed_tests(self):
        return [what for what, result in self.of("tests") if result.startswith("FAILED")]

    def ratios(self):
        """The ratios of torch.multiprocessing's queue to xmem."""
        figures = dict(self.of("numbers") + self.of("torch"))
        for figure in ("CPU of both processes, µs per frame", "hand-over, µs, median"):
            for queue in ("torch.multiprocessing's queue, without clone", "torch.multiprocessing's queue, with clone"):
                theirs, ours = figures.get(f"{queue}: {figure}"), figures.get(f"xmem CUDA by descriptor: {figure}")
                try:
                    yield f"{queue} / xmem CUDA: {figure}", f"{float(theirs) / float(ours):.2f}"
                except (TypeError, ValueError, ZeroDivisionError):
                    # One of them failed, which is reported, or belongs to another stage.
                    pass

    def summary(self):
        """A short list of the failures, for systems that keep only the end of the output."""
        text = []
        for part in TITLES:
            results = [(what, str(result)) for what, result in self.of(part)]
            wrong = [(what, result) for what, result in results if any(sign in result for sign in SIGNS)]
            if results:
                text.append(f"{part}: {len(results)} results, {len(wrong)} to look at")
            text += [f"  {what}: {result[:200]}" for what, result in wrong]
        return "\n".join(text)[:9000]

    def page(self):
        stand_in = "stand-in" in str(self.first("device", "card"))
        if stand_in:
            text = ["# Results WITHOUT a GPU", "", "**On the stand-in driver, to try the scripts. Nothing here is a result of a GPU.**"]
        else:
            text = ["# Results on a GPU"]
        for run in dict.fromkeys(result for _, result in self.of("run")):
            text += ["", run]
        tests = [result for _, result in self.of("tests")]
        passed = sum(result.startswith("passed") for result in tests)
        aside = sum(result.startswith(("does not apply", "not run")) for result in tests)
        text += ["", f"Tests: {passed} passed, {len(tests) - passed - aside} failed, {aside} do not apply or were not run."]
        for part, title in TITLES.items():
            text += ["", f"## {title}{', on the stand-in driver' if stand_in else ''}", ""]
            results = self.of(part)
            if part == "numbers":
                results += self.ratios()
            if not results:
                text.append("Not run.")
                continue
            if part in NOTES:
                text += [NOTES[part], ""]
            # A result with several figures has one column for each.
            results = [(what, result if isinstance(result, dict) else {"result": result}) for what, result in results]
            columns = list(dict.fromkeys(name for _, result in results for name in result))
            clean = lambda cell: str(cell).replace("|", "\\|").replace("\n", " ")
            row = lambda cells: f"| {' | '.join(map(clean, cells))} |"
            text += [row(["what", *columns]), "|---" * (len(columns) + 1) + "|"]
            text += [row([what, *(result.get(name, "") for name in columns)]) for what, result in results]
        return "\n".join(text) + "\n"


if __name__ == "__main__":
    page, *files = map(pathlib.Path, sys.argv[1:])
    page.write_text(Results.read(files).page())
