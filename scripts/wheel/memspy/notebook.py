"""The magics %memspy and %%memspy: the kernel is read, or recorded while a cell runs, from outside."""
import html

from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import HTML, display

from .kernel import owners_text
from .recording import MemspyError, Recording, own_tensors

# What `memspy lines` shows when no columns are named, and pytorch_memlab too.
DEFAULT_COLUMNS = ["active_bytes.all.peak", "reserved_bytes.all.peak"]
NOTHING = "no memory"


@magics_class
class MemspyMagics(Magics):
    """What keeps the kernel's GPU memory, and which lines of a cell take it."""

    # This kernel's owner may not have exact stacks: known after the first try.
    _has_no_rights = False

    @magic_arguments()
    @argument("-f", "--function", action="append", default=[], metavar="NAME",
              help="Only functions whose name contains this, with their source (again for more)")
    @argument("-c", "--column", action="append", default=[], metavar="KEY",
              help="A further column: a key of torch.cuda.memory_stats (again for more); with the source of the functions")
    @argument("-D", "--no_default_columns", "--no-default-columns", action="store_true", help="Only the columns of -c")
    @argument("-g", "--gpu", type=int, help="Only this device")
    @argument("-e", "--exact", action="store_true", help="Insist on exact stacks, also of frees: an error where the kernel's owner may not have them")
    @argument("-n", "--no-exact", action="store_true", help="Follow the allocator, also where exact stacks are possible")
    @argument("-q", "--quiet", action="store_true", help="Show nothing")
    @argument("-T", "--dump-profile", metavar="FILE", help="Write the table into this file")
    @argument("-t", "--trace", metavar="FILE", help="Keep the trace in this file")
    @argument("-r", "--return-profiler", action="store_true",
              help="Return the recording: .lines() is the table as a dict, .flamegraph() an SVG, .trace a path")
    @argument("statement", nargs="*", help="What to run, for %%memspy in one line")
    @line_cell_magic
    def memspy(self, line, cell=None):
        """Alone: what keeps this kernel's GPU memory, and what frees it. With a statement, or as %%memspy above a cell:
        records the kernel while that runs, and shows the lines that hold most and the page of the recording."""
        options, statement = self._options(line)
        code = statement if cell is None else cell
        if not code.strip():
            if cell is None and not line.strip():
                print(owners_text(own_tensors()), end="")
                return None
            raise MemspyError("there is nothing to run: %memspy STATEMENT, or %%memspy above the code of a cell")
        recording = self._start(options)
        try:
            ran = self.shell.run_cell(code, store_history=False)
        finally:
            recording.stop()
        self._report(recording, options)
        if options.return_profiler:
            return recording
        recording.close()
        # The error has been shown where it came from; what follows in the notebook is not to run.
        ran.raise_error()
        return None

    def _start(self, options):
        """A recording under way: exact where the kernel's owner may have that. A cell is short, so it has the stacks of
        frees as well."""
        exact = options.exact or not (options.no_exact or MemspyMagics._has_no_rights)
        # Where the kernel takes no programs there are exact sizes, and no stacks of frees.
        ways = [["--frees", "stacks"], []] if exact else []
        for more in ways:
            recording = Recording(trace=options.trace, exact=True, options=more)
            try:
                recording.start()
                return recording
            except MemspyError as error:
                recording.close()
                if more and "--frees stacks" in str(error):
                    continue
                if options.exact:
                    raise
                MemspyMagics._has_no_rights = True
                break
        recording = Recording(trace=options.trace)
        recording.start()
        return recording

    def _options(self, line):
        """The options, and the statement behind them, which is not split into words."""
        options = parse_argstring(self.memspy, line)
        words = options.statement
        if not words:
            return options, ""
        return options, line[_begin(line, words):]

    def _report(self, recording, options):
        gpu = [f"--gpu={options.gpu}"] if options.gpu is not None else []
        words = list(gpu)
        columns = [key for given in options.column for key in given.split(",")]
        if columns and not options.no_default_columns:
            columns = DEFAULT_COLUMNS + [key for key in columns if key not in DEFAULT_COLUMNS]
        if options.no_default_columns and not columns:
            raise MemspyError("-D leaves no column: name some with -c")
        words += [f"--only={name}" for name in options.function]
        words += [f"--columns={','.join(columns)}"] if columns else []
        words += ["--source"] if options.function or columns else []
        table = recording.table(*words)
        if options.dump_profile:
            with open(options.dump_profile, "w", encoding="utf-8") as file:
                file.write(table)
        if options.quiet:
            return
        print(table, end="" if table.endswith("\n") else "\n")
        try:
            page = recording.page()
        except MemspyError as error:
            if NOTHING not in str(error):
                raise
            return
        # In a frame: what names put into the page cannot reach the notebook.
        frame = f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(page)}" width="100%" height="640" style="border:0"></iframe>'
        display(HTML(frame))


def _begin(line, words):
    """Where the statement begins in the line: its first word, from behind, as often as it stands in the statement."""
    position = len(line)
    for word in reversed(words):
        found = line.rfind(word, 0, position)
        position = found if found >= 0 else position
    return position
