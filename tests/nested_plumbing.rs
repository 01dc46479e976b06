//! Launches the outer Linux for real, with payloads in place of a run: the payloads' output arrives, and every failure inside ends with a
//! message.
//!
//! The launcher puts the running executable into the outer Linux. The executable is the test, so the test has a `main` of its own.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use events::{Event, EventSink, GuestSummary, Note, Summary};
use manifest::GuestEnd;
use outer::Qemu;

use hyprobe::config::{Accel, Boot, Console, Initrd, RunConfig, Sandbox, TrapChoice};
use hyprobe::nested::{self, GuestKernel, InnerFailure, LaunchError, Outside};
use hyprobe::stop::{StopReason, StopSignal};

const EVENTS: u64 = 20_000;
const CONSOLE_BYTES: usize = 3 << 20;

fn main() {
    if nested::is_pid_1_of_an_outer_linux() {
        nested::run_as_pid_1(payload);
    }
    // Without the call, only root may give QEMU rules for files.
    confine::begin().expect("rights given up");
    // For test runners with a process for each test.
    let given = |flag: &str| std::env::args().any(|argument| argument == flag);
    if given("--list") {
        let listed = TESTS.iter().filter(|_| !given("--ignored"));
        listed.for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let wanted = std::env::args()
        .nth(1)
        .filter(|argument| !argument.starts_with('-'));
    for (name, test) in TESTS {
        if wanted
            .as_ref()
            .is_none_or(|wanted| name.contains(wanted.as_str()))
        {
            let began = Instant::now();
            test();
            println!("test {name} ... ok, {:.1} s", began.elapsed().as_secs_f64());
        }
    }
}

const TESTS: [(&str, fn()); 8] = [
    ("everything_comes_out", everything_comes_out),
    (
        "an_error_comes_out_with_its_causes",
        an_error_comes_out_with_its_causes,
    ),
    ("a_panic_comes_out", a_panic_comes_out),
    ("the_end_of_pid_1_comes_out", the_end_of_pid_1_comes_out),
    (
        "stop_request_reaches_the_inner_run",
        stop_request_reaches_the_inner_run,
    ),
    (
        "a_stop_while_booting_is_a_summary",
        a_stop_while_booting_is_a_summary,
    ),
    (
        "run_that_ignores_a_stop_is_killed_and_described",
        run_that_ignores_a_stop_is_killed_and_described,
    ),
    (
        "qemu_with_a_cpu_that_stands_still_is_killed_and_described",
        qemu_with_a_cpu_that_stands_still_is_killed_and_described,
    ),
];

/// The payload that runs in the outer Linux. The command line in `config` selects the payload.
fn payload(
    config: &RunConfig,
    sink: Arc<dyn EventSink>,
    mut console: Box<dyn Write + Send>,
    stop: StopSignal,
    _clients: Option<control::Incoming>,
    _dump: Option<Box<dyn Write + Send>>,
) -> Result<Summary, InnerFailure> {
    assert_eq!(config.accel, Accel::Kvm, "inside it is an ordinary run");
    assert_eq!(std::fs::read(config.kernel.path()).expect("kernel"), KERNEL);
    let mut guest = GuestSummary {
        end: GuestEnd::Poweroff,
        detail: None,
        crash: None,
        vcpus: Vec::new(),
        log: None,
    };
    match config.cmdline.as_str() {
        "everything" => {
            eprintln!("this is the log");
            let facts = vmm::Host::open().map(|host| vmm::self_test(&host));
            guest.detail = Some(format!("{facts:?}, timers {:?}", timer_handlers()));
            (0..EVENTS).for_each(|ts| sink.event(note(ts)));
            let mut typed = String::new();
            io::stdin().lock().read_line(&mut typed).expect("typed");
            console.write_all(typed.as_bytes()).expect("console");
            console
                .write_all(&vec![b'.'; CONSOLE_BYTES])
                .expect("console");
        }
        "stop" => {
            let reason = stop.wait(Duration::from_secs(60));
            guest.end = GuestEnd::Stopped;
            guest.detail = Some(format!("{reason:?}"));
        }
        "deaf" => sleep_for_ever(),
        "offline" => {
            // A CPU without a timer, as if QEMU had lost the timer.
            std::fs::write("/sys/devices/system/cpu/cpu1/online", "0").expect("switched off");
            sleep_for_ever()
        }
        "error" => {
            let cause = io::Error::from_raw_os_error(28);
            return Err(InnerFailure::new(2, &io::Error::other(cause)));
        }
        "panic" => panic!("on purpose"),
        "exit" => std::process::exit(7),
        other => unreachable!("{other}"),
    }
    Ok(Summary {
        accel: "kvm".into(),
        guest,
        ran_ns: 5,
        probes: Vec::new(),
        dropped: 0,
        restarts: Vec::new(),
    })
}

fn sleep_for_ever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// The handlers of the timers' interrupts, one for each CPU of the outer Linux.
fn timer_handlers() -> Vec<String> {
    let timers = std::fs::read_to_string("/proc/timer_list").expect("timers");
    let cpus = timers.split("Per CPU device: ").skip(1);
    let handler = |cpu: &str| {
        let device = cpu.split_once("Clock Event Device: ")?.1.lines().next()?;
        let handler = cpu.split_once("event_handler:")?.1.lines().next()?.trim();
        Some(format!("{device} {handler}"))
    };
    cpus.map(|cpu| handler(cpu).unwrap_or_default()).collect()
}

fn everything_comes_out() {
    let run = Run::of("everything");
    let summary = run.launch().expect("summary");
    assert_eq!(summary.accel, "nested");
    let facts = summary.guest.detail.expect("facts");
    assert!(facts.contains("HostFacts"), "{facts}");
    println!("  {facts}");
    // QEMU repeats the interrupts of these timers, and loses none for good.
    let timers = facts.split_once("timers ").expect("timers").1;
    let timers: Vec<String> = serde_json::from_str(timers).expect("a list");
    assert!(timers.len() >= 2, "{timers:?}");
    assert!(
        timers
            .iter()
            .all(|timer| timer == "lapic tick_handle_periodic"),
        "{timers:?}"
    );
    let events = run.sink.0.lock().expect("lock");
    assert_eq!(events.len() as u64, EVENTS);
    assert!(events.iter().zip(0..).all(|(event, ts)| *event == note(ts)));
    let console = run.console.0.lock().expect("lock");
    assert!(console.starts_with(b"typed\n"));
    assert_eq!(console.len(), b"typed\n".len() + CONSOLE_BYTES);
}

fn an_error_comes_out_with_its_causes() {
    let error = Run::of("error").launch().expect_err("failure");
    let LaunchError::Inner(failure) = error else {
        panic!("{error}");
    };
    assert_eq!(failure.exit_code, 2);
    assert!(failure.to_string().contains("No space left"), "{failure}");
}

fn a_panic_comes_out() {
    let error = Run::of("panic").launch().expect_err("failure").to_string();
    assert!(error.contains("on purpose"), "{error}");
}

fn the_end_of_pid_1_comes_out() {
    let error = Run::of("exit").launch().expect_err("failure");
    assert!(matches!(error, LaunchError::Ended { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("Attempted to kill init! exitcode=0x00000700"),
        "{text}"
    );
}

fn stop_request_reaches_the_inner_run() {
    let mut run = Run::of("stop");
    run.stop_when_running = true;
    let summary = run.launch().expect("summary");
    assert_eq!(summary.guest.end, GuestEnd::Stopped);
    assert_eq!(summary.guest.detail.as_deref(), Some("Some(Signal)"));
}

fn a_stop_while_booting_is_a_summary() {
    let run = Run::of("stop");
    run.stop.request(StopReason::Signal);
    let began = Instant::now();
    let summary = run.launch().expect("summary");
    assert_eq!(summary.guest.end, GuestEnd::Stopped);
    assert!(began.elapsed() < Duration::from_secs(20));
}

fn run_that_ignores_a_stop_is_killed_and_described() {
    let mut run = Run::of("deaf");
    run.stop_when_running = true;
    let error = run.launch().expect_err("it does not end");
    assert!(matches!(error, LaunchError::NotStopped { .. }), "{error}");
    let text = error.to_string();
    for part in ["\n  CPU 1: RIP=", "\n  CPU 0/TCG: "] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}

fn qemu_with_a_cpu_that_stands_still_is_killed_and_described() {
    let error = Run::of("offline").launch().expect_err("it does not end");
    assert!(matches!(error, LaunchError::StoodStill { .. }), "{error}");
    let text = error.to_string();
    for part in ["\n  CPU 1: RIP=", "\n  CPU 1/TCG: 0 ticks"] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}

const KERNEL: &[u8] = b"\x7fELF, or so it says";

#[derive(Debug, Default)]
struct Events(Mutex<Vec<Event>>);

impl EventSink for Events {
    fn event(&self, event: Event) {
        self.0.lock().expect("lock").push(event);
    }
}

#[derive(Clone, Default)]
struct Screen(Arc<Mutex<Vec<u8>>>);

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("lock").write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Run {
    config: RunConfig,
    sink: Arc<Events>,
    console: Screen,
    stop: StopSignal,
    stop_when_running: bool,
    _files: tempfile::TempDir,
}

impl Run {
    fn of(payload: &str) -> Self {
        let files = tempfile::tempdir().expect("tempdir");
        let kernel = files.path().join("kernel");
        std::fs::write(&kernel, KERNEL).expect("write");
        let config = RunConfig {
            kernel: kernel.into(),
            initrd: Initrd::None,
            cmdline: payload.into(),
            memory_bytes: 64 << 20,
            cpus: 1,
            boot: Boot::Direct,
            probes: Vec::new(),
            accel: Accel::Nested,
            trap: TrapChoice::Auto,
            optimise: true,
            when_full: manifest::WhenFull::default(),
            stealth: manifest::Stealth::default(),
            console: Console::Stdio,
            timeout: None,
            injections: Vec::new(),
            modules: Vec::new(),
            control: None,
            sandbox: Sandbox::On,
            survey: None,
            dump_on_crash: false,
        };
        Self {
            config,
            sink: Arc::default(),
            console: Screen::default(),
            stop: StopSignal::default(),
            stop_when_running: false,
            _files: files,
        }
    }

    fn launch(&self) -> Result<Summary, LaunchError> {
        let qemu = Qemu::find().expect("QEMU was promised");
        let (mut keyboard, terminal) = UnixStream::pair().expect("pair");
        keyboard.write_all(b"typed\n").expect("type");
        let progress = |step: &str| {
            println!("  {step}");
            if self.stop_when_running && step.contains("is up") {
                self.stop.request(StopReason::Signal);
            }
        };
        let outside = Outside {
            sink: self.sink.clone(),
            console: Box::new(self.console.clone()),
            input: Some(File::from(OwnedFd::from(terminal))),
            stop: self.stop.clone(),
            clients: None,
            dump: None,
            progress: &|step| progress(&step.to_string()),
        };
        let kernel = GuestKernel {
            file: KERNEL.to_vec(),
            survey: None,
        };
        nested::launch(&qemu, &self.config, kernel, outside)
    }
}

fn note(ts_ns: u64) -> Event {
    Event::Note(Note {
        ts_ns,
        probe: None,
        text: "plumbing".into(),
    })
}
