//! A run of the command: a stock kernel with the workload as init.

use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use events::{Event, Hit, ProbeSummary, Return, Summary};
use guest_images::workload::{self, Counts};
use guest_images::{Initramfs, ModuleTree};
use probes::Kernel;
use tempfile::TempDir;
use vmm::boot::KernelFile;

use crate::schema::assert_lines_match;
use crate::turns::Turn;

/// Messages that a healthy guest never prints on the console.
const COMPLAINTS: [&str; 7] = [
    "WARNING:",
    "BUG:",
    "kernel BUG",
    "ftrace bug",
    "ftrace failed",
    "Oops",
    "Call Trace",
];

/// The command's time limit, for the guest's own kprobes the second. The command tells how far the guest came, at the latest 75 s later. The
/// test runner kills a test without a word (`.config/nextest.toml`, which has the longer limits).
const LIMIT: &str = "480s";
const LIMIT_OF_KPROBES: &str = "780s";

/// A stock kernel in the image cache.
#[derive(Debug)]
pub(crate) struct Stock {
    path: PathBuf,
    modules: ModuleTree,
    pub(crate) kernel: Kernel,
}

impl Stock {
    /// The kernel called `name` in the catalog of images, fetched if need be.
    pub(crate) fn fetch(name: &str) -> Self {
        let image = guest_images::fetch(name, &|step| println!("{step}"))
            .expect("the feature `test-nested` promises a network or a filled image cache");
        let bytes = image.main_file().read().expect("the kernel is as fetched");
        let file = KernelFile::from_bytes(name, bytes).expect("a kernel");
        let vmlinux = file.vmlinux().expect("it unpacks");
        let kernel = Kernel::from_vmlinux(&*vmlinux).expect("it has symbols");
        Self {
            path: image.path(),
            modules: image.modules().expect("its modules"),
            kernel,
        }
    }

    /// The file of a module, decompressed.
    pub(crate) fn module(&self, name: &str) -> Vec<u8> {
        let module = self.modules.get(name).expect(name);
        module.read().expect("a module")
    }

    pub(crate) fn is_function(&self, name: &str) -> bool {
        let found = self.kernel.symbols().lookup(name);
        found.is_some_and(|symbol| symbol.is_text())
    }

    pub(crate) fn has(&self, function: &str) -> bool {
        self.kernel.symbols().lookup(function).is_some()
    }
}

/// The guest's init.
#[derive(Clone, Copy, Debug)]
enum Init {
    /// System calls in known numbers.
    Workload,
    /// The guest's own kprobes.
    Kprobes,
    /// Programs that print the addresses they return to.
    Calls,
    /// Busybox's shell runs `/init`.
    Script,
}

/// The options of the command.
#[derive(Clone, Debug)]
pub(crate) struct Boot<'a> {
    stock: &'a Stock,
    init: Init,
    workload: &'a str,
    cpus: u8,
    probes: Vec<String>,
    counted: Vec<String>,
    options: Vec<&'a str>,
    modules: &'a [&'a str],
    /// Parameters of the kernel.
    parameters: &'a str,
    /// The path in the guest, and the file of this machine.
    host_files: Vec<(String, PathBuf)>,
    /// Variables of the command's environment.
    variables: Vec<(&'a str, String)>,
    /// `[[expect]]` sections of the manifest.
    expectations: &'a str,
    /// The file for the console; `None` for a readable file in the test's folder.
    console: Option<&'a str>,
    /// Events go to standard output, and stay unread.
    unread: bool,
}

impl<'a> Boot<'a> {
    /// `workload` holds the workload's parameters.
    pub(crate) fn new(stock: &'a Stock, workload: &'a str) -> Self {
        Self {
            stock,
            init: Init::Workload,
            workload,
            cpus: 1,
            probes: Vec::new(),
            counted: Vec::new(),
            options: Vec::new(),
            modules: &[],
            parameters: "",
            host_files: Vec::new(),
            variables: Vec::new(),
            expectations: "",
            console: None,
            unread: false,
        }
    }

    /// `expectations` are sections of a manifest.
    pub(crate) fn expecting(mut self, expectations: &'a str) -> Self {
        self.expectations = expectations;
        self
    }

    /// The console goes to the file `path`.
    pub(crate) fn console_at(mut self, path: &'a str) -> Self {
        self.console = Some(path);
        self
    }

    /// Events go to standard output, an open pipe that is never read.
    pub(crate) fn unread(mut self) -> Self {
        self.unread = true;
        self
    }

    /// The guest's own kprobes check themselves; `parameters` are the parameters of the checking program.
    pub(crate) fn with_own_kprobes(stock: &'a Stock, parameters: &'a str) -> Self {
        Self {
            init: Init::Kprobes,
            ..Self::new(stock, parameters)
        }
    }

    /// `script` is run by busybox's shell, as `/init`.
    pub(crate) fn with_script(stock: &'a Stock, script: &'a str) -> Self {
        Self {
            init: Init::Script,
            ..Self::new(stock, script)
        }
    }

    /// Programs print the addresses they return to; `parameters` are the kernel's.
    pub(crate) fn with_calls(stock: &'a Stock, parameters: &'a str) -> Self {
        Self {
            init: Init::Calls,
            ..Self::new(stock, parameters)
        }
    }

    /// The kernel's command line has `parameters`, too.
    pub(crate) fn parameters(mut self, parameters: &'a str) -> Self {
        self.parameters = parameters;
        self
    }

    /// Puts a file of this machine into the initramfs, at the same path.
    pub(crate) fn host_file(self, path: &Path) -> Self {
        let same = path.to_str().expect("a path in UTF-8").to_owned();
        self.host_file_at(&same, path)
    }

    /// Puts the file `path` of this machine into the initramfs, at the path `guest`.
    pub(crate) fn host_file_at(mut self, guest: &str, path: &Path) -> Self {
        self.host_files.push((guest.to_owned(), path.to_owned()));
        self
    }

    /// The command's environment has the variable `name`.
    pub(crate) fn variable(mut self, name: &'a str, value: String) -> Self {
        self.variables.push((name, value));
        self
    }

    pub(crate) fn cpus(mut self, cpus: u8) -> Self {
        self.cpus = cpus;
        self
    }

    pub(crate) fn probe(mut self, spec: &str) -> Self {
        self.probes.push(spec.to_owned());
        self
    }

    /// A probe that only counts hits.
    pub(crate) fn counted(mut self, spec: &str) -> Self {
        self.counted.push(spec.to_owned());
        self
    }

    pub(crate) fn option(mut self, name: &'a str, value: &'a str) -> Self {
        self.options.extend([name, value]);
        self
    }

    /// Each hit exits.
    pub(crate) fn without_jumps(mut self) -> Self {
        self.options.push("--no-optimise");
        self
    }

    /// The workload loads the named modules and the modules needed by them, before any other work.
    pub(crate) fn modules(mut self, names: &'a [&'a str]) -> Self {
        self.modules = names;
        self
    }

    /// Runs the command to its end.
    pub(crate) fn run(self) -> Ran {
        self.start().finish()
    }

    /// The initramfs, and the parameters of init.
    fn initramfs(&self, folder: &Path) -> (Initramfs, &str) {
        let init = match self.init {
            Init::Workload => workload::build_workload(folder),
            Init::Kprobes => workload::build_kprobes(folder),
            Init::Calls => workload::build_calls(folder),
            Init::Script => return (script(self.workload), ""),
        };
        let init = init.expect("what the guest runs compiles");
        let initramfs = workload::initramfs(&init).expect("the workload can be read");
        (initramfs, self.workload)
    }

    /// Starts the command.
    pub(crate) fn start(self) -> Running {
        let files = tempfile::tempdir().expect("tempdir");
        let (mut initramfs, parameters) = self.initramfs(files.path());
        let modules = self.stock.modules.load_order(self.modules);
        let load = workload::add_modules(&mut initramfs, &modules.expect("the kernel has them"));
        let load = load.expect("the modules can be read");
        for (path, file) in &self.host_files {
            let added = initramfs.host_file(path.trim_start_matches('/'), 0o755, file);
            added.expect("the file can be read");
        }
        let initrd = files.path().join("initrd");
        std::fs::write(&initrd, initramfs.build().expect("initramfs")).expect("write");
        let events = files.path().join("events");
        let console = match self.console {
            Some(path) => path.into(),
            None => files.path().join("console"),
        };
        // The kernel's messages interrupt the workload's lines: the kernel may print only problems.
        let more = self.parameters;
        let cmdline = format!("console=ttyS0 panic=-1 loglevel=5 {more} {parameters} {load}");
        let manifest = files.path().join("counted.toml");
        let counted = |spec: &String| format!("[[probe]]\nat = \"{spec}\"\naction = \"count\"\n");
        let counted: Vec<String> = self.counted.iter().map(counted).collect();
        let sections = counted.concat() + self.expectations;
        std::fs::write(&manifest, &sections).expect("write");

        let limit = match self.init {
            Init::Kprobes => LIMIT_OF_KPROBES,
            Init::Workload | Init::Calls | Init::Script => LIMIT,
        };
        let has_limit = self.options.contains(&"--timeout");

        let turn = Turn::take();
        let output = (!self.unread).then_some(["--output".as_ref(), events.as_os_str()]);
        let mut child = Command::new(env!("CARGO_BIN_EXE_hyprobe"))
            .args(["run", "--accel", "nested", "--format", "json"])
            .args((!sections.is_empty()).then_some(&manifest))
            .args(["--cmdline", &cmdline, "--cpus", &self.cpus.to_string()])
            .arg("--kernel")
            .arg(&self.stock.path)
            .arg("--initrd")
            .arg(&initrd)
            .args(output.into_iter().flatten())
            .arg("--console")
            .arg(&console)
            .args(&self.options)
            .args(
                (!has_limit)
                    .then_some(["--timeout", limit])
                    .into_iter()
                    .flatten(),
            )
            .current_dir(files.path())
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .args(self.probes.iter().flat_map(|probe| ["-p", probe.as_str()]))
            .stdin(Stdio::null())
            .stdout(if self.unread {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        Running {
            _unread: child.stdout.take(),
            child: Some(child),
            files,
            _turn: turn,
        }
    }
}

/// An initramfs with busybox; busybox's shell runs `script`.
fn script(script: &str) -> Initramfs {
    let busybox = guest_images::fetch("busybox-static", &|step| println!("{step}"))
        .expect("the feature `test-nested` promises a network or a filled image cache");
    let mut initramfs = Initramfs::with_devices();
    initramfs
        .file(
            "bin/busybox",
            0o755,
            busybox.main_file().read().expect("busybox is as fetched"),
        )
        .file("init", 0o755, script)
        .directory("sys", 0o755);
    initramfs
}

/// A command in progress.
#[derive(Debug)]
pub(crate) struct Running {
    /// `None` after the wait for the end.
    child: Option<Child>,
    /// The unread end of a pipe.
    _unread: Option<ChildStdout>,
    files: TempDir,
    _turn: Turn,
}

impl Running {
    /// The folder with the command's files.
    pub(crate) fn folder(&self) -> &Path {
        self.files.path()
    }

    /// Whether the command has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        let child = self.child.as_mut().expect("its end was not waited for");
        child.try_wait().expect("it is a child").is_some()
    }

    /// What the guest has said so far.
    pub(crate) fn console(&self) -> String {
        let said = std::fs::read(self.folder().join("console")).unwrap_or_default();
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Waits until the console has `text`.
    pub(crate) fn wait_for_console(&mut self, text: &str) {
        loop {
            // The console has all that the guest has said before its end.
            let has_ended = self.has_ended();
            if self.console().contains(text) {
                return;
            }
            assert!(!has_ended, "it has ended without {text:?}");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }

    /// The command's process.
    pub(crate) fn pid(&self) -> u32 {
        let child = self.child.as_ref().expect("its end was not waited for");
        child.id()
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        let child = self.child.as_ref().expect("its end was not waited for");
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it goes on");
    }

    /// Waits for the command's end. Panics at an event that the published schema does not describe.
    pub(crate) fn finish(mut self) -> Ran {
        let child = self.child.take().expect("its end was not waited for");
        let ran = self.left_by(child);
        assert_lines_match(&ran.events);
        ran
    }

    fn left_by(&self, child: Child) -> Ran {
        let output = child.wait_with_output().expect("it is a child");
        let read = |name| std::fs::read(self.files.path().join(name)).unwrap_or_default();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ran {
            code: output.status.code(),
            events: text(&read("events")),
            console: text(&read("console")),
            errors: text(&output.stderr),
        }
    }
}

/// If a test fails before the end, the drop ends the guest and prints the command's output.
impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            let pid = rustix::process::Pid::from_child(&child);
            // The command may have ended already.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            eprintln!("{}", self.left_by(child).report());
        }
    }
}

/// The most notes in a failure's message.
const MAX_NOTES: usize = 40;

/// The output of an ended command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) events: String,
    pub(crate) console: String,
    errors: String,
}

impl Ran {
    /// For a failure's message.
    pub(crate) fn report(&self) -> String {
        let events: Vec<&str> = self.events.lines().collect();
        let last = events[events.len().saturating_sub(5)..].join("\n");
        let notes = events
            .iter()
            .filter(|line| line.contains(r#""type":"note""#));
        let notes: Vec<&str> = notes.take(MAX_NOTES).copied().collect();
        let notes = notes.join("\n");
        format!("{}\n{}\n{notes}\n{last}", self.console, self.errors)
    }

    /// The events of the command, in order.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.events
            .lines()
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
            })
            .collect()
    }

    /// The summary, which is the last line and the only summary.
    pub(crate) fn summary(&self) -> Summary {
        let mut events = self.events();
        let last = events.pop();
        let Some(Event::Summary(summary)) = last else {
            panic!("the last line is no summary: {last:?}\n{}", self.report());
        };
        assert!(
            !events
                .iter()
                .any(|event| matches!(event, Event::Summary(_)))
        );
        assert_eq!(summary.accel, "nested");
        assert_eq!(summary.dropped, 0);
        summary
    }

    pub(crate) fn returns(&self) -> Vec<Return> {
        self.events()
            .into_iter()
            .filter_map(|event| match event {
                Event::Return(returned) => Some(returned),
                Event::Hit(_) | Event::Note(_) | Event::Summary(_) => None,
            })
            .collect()
    }

    /// The notes of the run.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.events()
            .into_iter()
            .filter_map(|event| match event {
                Event::Note(note) => Some(note.text),
                Event::Hit(_) | Event::Return(_) | Event::Summary(_) => None,
            })
            .collect()
    }

    pub(crate) fn hits(&self) -> Vec<Hit> {
        self.events()
            .into_iter()
            .filter_map(|event| match event {
                Event::Hit(hit) => Some(hit),
                Event::Return(_) | Event::Note(_) | Event::Summary(_) => None,
            })
            .collect()
    }

    /// The work of the workload, as counted by the workload.
    pub(crate) fn counts(&self) -> Counts {
        let counts = Counts::from_console(&self.console)
            .unwrap_or_else(|| panic!("the workload has not come to its end\n{}", self.report()));
        assert_eq!(counts.failed, 0, "the workload's calls: {}", self.report());
        counts
    }

    /// Asserts that the guest has printed no complaint.
    pub(crate) fn assert_well(&self) {
        for complaint in COMPLAINTS {
            assert!(!self.console.contains(complaint), "{}", self.report());
        }
    }
}

/// The probe requested as `name`.
pub(crate) fn probe<'a>(summary: &'a Summary, name: &str) -> &'a ProbeSummary {
    summary
        .probes
        .iter()
        .find(|probe| probe.probe == name)
        .unwrap_or_else(|| panic!("no probe {name}"))
}
