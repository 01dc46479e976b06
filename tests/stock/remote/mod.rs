//! A stock guest controlled during the run, nested: by the library's client, by `curl`, by the command line, and by clients that mean no
//! good.

mod endpoints;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use control::api::{
    AddProbe, AddProbes, ChangeProbe, EventLine, MachineState, ProblemKind, SetKnobs,
};
use control::{Client, ClientError, limits};
use events::Event;
use manifest::{GuestEnd, ProbeAction};

use crate::boot::{Boot, Running, Stock};

/// An emulated guest on a busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(240);
/// Opens and reads until stopped.
const BUSY: &str = "opens=10 reads=10 repeat=100000000 pause=5";
const SOCKET: &str = "x.sock";

/// A guest with user space at work.
struct Live {
    running: Running,
    socket: PathBuf,
}

impl Live {
    fn start(stock: &Stock) -> Self {
        let running = Boot::new(stock, BUSY)
            .cpus(2)
            .option("--control", SOCKET)
            .start();
        let socket = running.folder().join(SOCKET);
        let mut live = Self { running, socket };
        // Until the outer Linux is up, no server answers.
        live.wait_until("an answer", |live| {
            live.socket.exists() && live.client().machine().is_ok()
        });
        let added = live
            .client()
            .add(&one("kprobe:do_sys_openat2"))
            .expect("added");
        let id = added.id.expect("one").to_string();
        live.wait_until("user space", |live| {
            live.client().stats(&id).expect("stats").probes[0].hits > 0
        });
        live.client().remove(&id).expect("removed");
        live
    }

    fn wait_until(&mut self, what: &str, mut reached: impl FnMut(&Self) -> bool) {
        let began = Instant::now();
        while !reached(self) {
            assert!(!self.running.has_ended(), "the run has ended before {what}");
            assert!(began.elapsed() < PATIENCE, "no {what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn client(&self) -> Client {
        Client::new(&self.socket).expect("client")
    }

    fn hits(&self, id: &str) -> u64 {
        self.client().stats(id).expect("stats").probes[0].hits
    }

    fn fires(&mut self, id: &str) {
        let before = self.hits(id);
        self.wait_until("a hit", |live| live.hits(id) > before);
    }

    fn command(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_hyprobe"))
            .args(args)
            .env("HYPROBE_SOCKET", &self.socket)
            .output()
            .expect("the command starts");
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(&self.socket).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        // The server may have answered and closed before reading all bytes.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }
}

fn one(spec: &str) -> AddProbes {
    AddProbes::One(AddProbe::new(spec))
}

#[test]
fn every_path_on_a_live_guest() {
    let stock = Stock::fetch("debian-6.1");
    let mut live = Live::start(&stock);
    let client = live.client();

    let machine = client.machine().expect("machine");
    assert_eq!((machine.state, machine.cpus), (MachineState::Running, 2));
    assert_eq!((machine.accel.as_str(), machine.probes), ("nested", 0));
    assert!(
        machine
            .kernel
            .is_some_and(|kernel| kernel.starts_with("Linux version 6.1"))
    );

    // The text of a function, before, during and after a probe.
    let symbol = client
        .symbols("vfs_read")
        .expect("symbols")
        .symbols
        .remove(0);
    let text = |client: &Client| {
        client
            .memory("gva", symbol.address.0, 32)
            .expect("read")
            .bytes
    };
    let before = text(&client);
    let in_file = stock.kernel.symbols().lookup("vfs_read").expect("vfs_read");
    assert_eq!(symbol.size, in_file.size);

    let named = AddProbe {
        name: Some("reads".to_owned()),
        ..AddProbe::new("kprobe:vfs_read+0x5")
    };
    let back = AddProbe {
        action: Some(ProbeAction::Count),
        maxactive: Some(8),
        ..AddProbe::new("kretprobe:vfs_read")
    };
    let added = client
        .add(&AddProbes::Many(vec![named, back]))
        .expect("added");
    assert_eq!((added.ids.len(), added.id), (2, None));
    assert!(added.pause.held_ns > 0);
    live.fires("reads");
    let back = added.ids[1].to_string();
    live.fires(&back);
    assert_eq!(text(&client), before);

    // Events: hits of the tracing probe, none of the counting probe.
    let events = live.client().events(None).expect("stream");
    for line in events.take(20) {
        match line.expect("line") {
            EventLine::Event {
                event: Event::Hit(hit),
                ..
            } => {
                assert_eq!(&*hit.probe, "kprobe:vfs_read+0x5");
            }
            EventLine::Event { event, .. } => panic!("{event:?}"),
            EventLine::Lost(_) => (),
        }
    }

    let switch = |enabled| ChangeProbe {
        enabled: Some(enabled),
        name: None,
    };
    client.change("reads", &switch(false)).expect("disabled");
    let stands = live.hits("reads");
    live.fires(&back);
    assert_eq!(live.hits("reads"), stands, "it is disabled");
    client.change("reads", &switch(true)).expect("enabled");
    live.fires("reads");

    let knob = |enabled| SetKnobs {
        enabled: Some(enabled),
        optimization: None,
    };
    assert!(!client.set_knobs(&knob(false)).expect("off").enabled);
    let stands = live.hits("reads");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(live.hits("reads"), stands, "all are off");
    assert!(client.set_knobs(&knob(true)).expect("on").enabled);
    live.fires("reads");

    assert_eq!(
        client.command("pause").expect("paused").state,
        MachineState::Paused
    );
    let stands = live.hits("reads");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(live.hits("reads"), stands, "the guest stands");
    let physical = client
        .memory("gpa", 0x100_0000, 64)
        .expect("the kernel's beginning");
    assert_eq!(physical.bytes.len(), 128);
    assert_eq!(
        client.command("resume").expect("runs").state,
        MachineState::Running
    );
    live.fires("reads");

    let metrics = live.raw(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    assert!(
        metrics.contains("hyprobe_probe_hits_total{id="),
        "{metrics}"
    );

    misuse(&mut live);
    fifty_at_once(&live);

    let (code, listed) = live.command(&["probe", "list"]);
    assert_eq!(code, Some(0), "{listed}");
    assert!(listed.contains("vfs_read+0x5"), "{listed}");
    let (code, said) = live.command(&["probe", "add", "kprobe:vfs_raed"]);
    assert_eq!(code, Some(2), "{said}");
    let expected = "error: cannot probe `kprobe:vfs_raed`: the kernel has no symbol `vfs_raed`\n  help: near names: vfs_read";
    assert!(said.starts_with(expected), "{said}");
    let (code, said) = live.command(&["events", "-n", "3", "--format", "json"]);
    assert_eq!((code, said.lines().count()), (Some(0), 3), "{said}");

    let removed = client.remove_all().expect("removed");
    assert_eq!(removed.removed, 2);
    assert_eq!(text(&client), before, "the guest's own");
    let Err(ClientError::Refused(problem)) = client.probe("reads") else {
        panic!("it is gone")
    };
    assert!(problem.is(ProblemKind::NoSuchProbe), "{problem:?}");

    // The reader of a stream gets the summary as the last event.
    let events = live.client().events(None).expect("stream");
    let (code, said) = live.command(&["ctl", "stop"]);
    assert_eq!(code, Some(0), "{said}");
    let last = events.filter_map(Result::ok).last();
    assert!(
        matches!(&last, Some(EventLine::Event { event: Event::Summary(summary), .. }) if summary.guest.end == GuestEnd::Stopped),
        "{last:?}"
    );
    let socket = live.socket.clone();
    let folder = live.running.folder().to_owned();
    let ran = live.running.finish();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    assert_eq!(ran.summary().guest.end, GuestEnd::Stopped);
    assert!(
        !socket.exists() || !folder.exists(),
        "the socket is removed"
    );
}

/// Clients that mean no good, through two kernels.
fn misuse(live: &mut Live) {
    let status = |answer: &str| answer.get(9..12).unwrap_or("").to_owned();
    let send = |method: &str, path: &str, body: &str| {
        let len = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n{body}"
        );
        status(&live.raw(request.as_bytes()))
    };
    assert_eq!(send("POST", "/probes", "{"), "400");
    assert_eq!(send("POST", "/probes", "{\"spec\": 7}"), "400");
    assert_eq!(
        send("POST", "/probes", &"x".repeat(limits::BODY_BYTES + 1)),
        "413"
    );
    assert_eq!(send("DELETE", "/probes/999999", ""), "404");
    assert_eq!(send("PATCH", "/probes/nobody", "{}"), "404");
    assert_eq!(send("PUT", "/knobs", "{\"optimization\": 1}"), "400");
    assert_eq!(send("GET", "/memory?gva=0x10&len=8", ""), "422");
    assert_eq!(send("GET", "/nothing", ""), "404");

    let begin = |bytes: &[u8]| {
        let mut stream = UnixStream::connect(&live.socket).expect("it listens");
        stream.write_all(bytes).expect("write");
        stream
    };
    // A client never reads, for as long as the lines below take, and some clients leave in the middle of a request.
    let deaf = begin(b"GET /events?from=1 HTTP/1.1\r\nhost: x\r\n\r\n");
    for _ in 0..20 {
        drop(begin(
            b"POST /probes HTTP/1.1\r\nhost: x\r\ncontent-length: 90\r\n\r\n{\"spec",
        ));
        drop(begin(b"GET /events HTTP/1.1\r\nhost: x\r\n\r\n"));
    }
    live.client().machine().expect("others are served");
    live.fires("reads");
    live.wait_until("the end of those that have left", |live| {
        live.client().machine().expect("machine").connections <= 3
    });
    let machine = live.client().machine().expect("machine");
    assert_eq!(machine.probes, 2, "half a request adds nothing");
    drop(deaf);
}

fn fifty_at_once(live: &Live) {
    std::thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| {
                let client = live.client();
                let added = client.add(&one("kprobe:vfs_open")).expect("added");
                let id = added.id.expect("one").to_string();
                client.probe(&id).expect("shown");
                client.remove(&id).expect("removed");
            });
        }
    });
}

/// The page about the control socket, word by word, except the path of the socket.
#[test]
fn the_examples_of_the_documentation_work_as_printed() {
    let stock = Stock::fetch("debian-6.1");
    let live = Live::start(&stock);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/control.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let examples: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("curl "))
        .collect();
    assert!(examples.len() > 10, "{examples:?}");
    for example in examples {
        let here = example.replace("/run/x.sock", &live.socket.display().to_string());
        let here = here.replacen(
            "curl ",
            "curl --silent --show-error --fail-with-body --max-time 200 ",
            1,
        );
        let output = Command::new("sh").args(["-c", &here]).output().expect("sh");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{example}\n{said}");
        assert!(!said.is_empty(), "{example}");
    }
    // The last of them stops the guest.
    let ran = live.running.finish();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    assert_eq!(ran.summary().guest.end, GuestEnd::Stopped);
}

/// A probe comes and goes on a guest with two working vCPUs; the test prints the pauses of the vCPUs.
#[test]
fn a_thousand_cycles_leave_the_guest_as_it_was() {
    let stock = Stock::fetch("debian-6.1");
    let mut live = Live::start(&stock);
    let client = live.client();
    let asked = AddProbes::One(AddProbe {
        action: Some(ProbeAction::Count),
        ..AddProbe::new("kprobe:vfs_read")
    });
    for _ in 0..1000 {
        let id = client.add(&asked).expect("added").id.expect("one");
        client.remove(&id.to_string()).expect("removed");
    }
    let machine = client.machine().expect("machine");
    println!("{:?}", machine.pauses);
    assert_eq!(machine.probes, 0);
    assert!(machine.pauses.count >= 2000);
    let id = client
        .add(&asked)
        .expect("added")
        .id
        .expect("one")
        .to_string();
    live.fires(&id);
    client.command("stop").expect("stopped");
    let ran = live.running.finish();
    ran.assert_well();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
}
