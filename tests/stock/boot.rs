//! One run of the command: a stock kernel with the workload as its init.

use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use guest_images::workload::{self, Counts};
use guest_images::{Initramfs, ModuleTree};
use probes::{Event, Hit, Kernel, ProbeSummary, Return, Summary};
use tempfile::TempDir;
use vmm::boot::KernelFile;

use crate::turns::Turn;

/// What a console never says of a guest that is well.
const COMPLAINTS: [&str; 7] = [
    "WARNING:",
    "BUG:",
    "kernel BUG",
    "ftrace bug",
    "ftrace failed",
    "Oops",
    "Call Trace",
];

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
        let kernel = Kernel::from_vmlinux(&vmlinux).expect("it has symbols");
        Self {
            path: image.path(),
            modules: image.modules().expect("its modules"),
            kernel,
        }
    }

    pub(crate) fn is_function(&self, name: &str) -> bool {
        let found = self.kernel.symbols().lookup(name);
        found.is_some_and(|symbol| symbol.is_text())
    }

    pub(crate) fn has(&self, function: &str) -> bool {
        self.kernel.symbols().lookup(function).is_some()
    }
}

/// What the guest runs.
#[derive(Clone, Copy, Debug)]
enum Init {
    /// System calls in known numbers.
    Workload,
    /// The guest's own kprobes.
    Kprobes,
    /// Busybox's shell runs `/init`.
    Script,
}

/// What the command is told.
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
    /// `[[expect]]` sections of the manifest.
    expectations: &'a str,
    /// The file for the console instead of one that can be read.
    console: Option<&'a str>,
    /// Events go to standard output, which nobody reads.
    unread: bool,
}

impl<'a> Boot<'a> {
    /// `workload` is its parameters.
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

    /// Events go to standard output, a pipe that is open and that nobody reads.
    pub(crate) fn unread(mut self) -> Self {
        self.unread = true;
        self
    }

    /// The guest's own kprobes check themselves; `parameters` are those of that program.
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

    pub(crate) fn cpus(mut self, cpus: u8) -> Self {
        self.cpus = cpus;
        self
    }

    pub(crate) fn probe(mut self, spec: &str) -> Self {
        self.probes.push(spec.to_owned());
        self
    }

    /// A probe whose hits are counted, and no more.
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

    /// The workload loads these, and what they need, before it does anything else.
    pub(crate) fn modules(mut self, names: &'a [&'a str]) -> Self {
        self.modules = names;
        self
    }

    /// Runs the command to its end.
    pub(crate) fn run(self) -> Ran {
        self.start().finish()
    }

    /// What the guest begins with, and the parameters of its init.
    fn initramfs(&self, folder: &Path) -> (Initramfs, &str) {
        let init = match self.init {
            Init::Workload => workload::build_workload(folder),
            Init::Kprobes => workload::build_kprobes(folder),
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
        let initrd = files.path().join("initrd");
        std::fs::write(&initrd, initramfs.build().expect("initramfs")).expect("write");
        let events = files.path().join("events");
        let console = match self.console {
            Some(path) => path.into(),
            None => files.path().join("console"),
        };
        // The kernel's messages come between the workload's words: only what is wrong is to be said.
        let cmdline = format!("console=ttyS0 panic=-1 loglevel=5 {parameters} {load}");
        let manifest = files.path().join("counted.toml");
        let counted = |spec: &String| format!("[[probe]]\nat = \"{spec}\"\naction = \"count\"\n");
        let counted: Vec<String> = self.counted.iter().map(counted).collect();
        let sections = counted.concat() + self.expectations;
        std::fs::write(&manifest, &sections).expect("write");

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
            .current_dir(files.path())
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

/// An initramfs with busybox, whose shell runs `script`.
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

/// A command that goes on.
#[derive(Debug)]
pub(crate) struct Running {
    /// Until its end was waited for.
    child: Option<Child>,
    /// The end of a pipe that nobody reads.
    _unread: Option<ChildStdout>,
    files: TempDir,
    _turn: Turn,
}

impl Running {
    /// Where its files are.
    pub(crate) fn folder(&self) -> &Path {
        self.files.path()
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        let child = self.child.as_mut().expect("its end was not waited for");
        child.try_wait().expect("it is a child").is_some()
    }

    /// Waits until the console has this text.
    pub(crate) fn wait_for_console(&mut self, text: &str) {
        let console = self.folder().join("console");
        loop {
            let said = std::fs::read(&console).unwrap_or_default();
            if String::from_utf8_lossy(&said).contains(text) {
                return;
            }
            assert!(!self.has_ended(), "it has ended without {text:?}");
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

    /// Waits for its end.
    pub(crate) fn finish(mut self) -> Ran {
        let child = self.child.take().expect("its end was not waited for");
        self.left_by(child)
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

/// A test that fails before the end does not leave a guest behind, and says what the command had to say.
impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            let pid = rustix::process::Pid::from_child(&child);
            // It may have ended by itself.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            eprintln!("{}", self.left_by(child).told());
        }
    }
}

/// What the command has left.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    events: String,
    pub(crate) console: String,
    errors: String,
}

impl Ran {
    /// For a failure's message.
    pub(crate) fn told(&self) -> String {
        let events: Vec<&str> = self.events.lines().collect();
        let last = events[events.len().saturating_sub(5)..].join("\n");
        format!("{}\n{}\n{last}", self.console, self.errors)
    }

    /// What the command has told, in its order.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.events
            .lines()
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
            })
            .collect()
    }

    /// The last line, and the only one of its kind.
    pub(crate) fn summary(&self) -> Summary {
        let mut events = self.events();
        let last = events.pop();
        let Some(Event::Summary(summary)) = last else {
            panic!("the last line is no summary: {last:?}\n{}", self.told());
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

    /// What the run had to say.
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

    /// What the workload did, by its own count.
    pub(crate) fn counts(&self) -> Counts {
        let counts = Counts::from_console(&self.console)
            .unwrap_or_else(|| panic!("the workload has not come to its end\n{}", self.told()));
        assert_eq!(counts.failed, 0, "the workload's calls: {}", self.told());
        counts
    }

    /// The guest has complained of nothing.
    pub(crate) fn assert_well(&self) {
        for complaint in COMPLAINTS {
            assert!(!self.console.contains(complaint), "{}", self.told());
        }
    }
}

/// The probe that was asked for as `name`.
pub(crate) fn probe<'a>(summary: &'a Summary, name: &str) -> &'a ProbeSummary {
    summary
        .probes
        .iter()
        .find(|probe| probe.probe == name)
        .unwrap_or_else(|| panic!("no probe {name}"))
}
