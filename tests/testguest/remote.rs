//! A run controlled through its socket, by a real HTTP client.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use address::Gva;
use control::api::{AddProbe, AddProbes, EventLine, MachineState, ProblemKind};
use control::{Client, ClientError, ControlSocket, EventHub, Incoming, Live, Server, Tee};
use events::{Event, EventSink as _, ProbeState};
use hyprobe_rigs::contract::{Here, MEMORY_BYTES, Ran};
use hyprobe_rigs::way::Way;
use manifest::{GuestEnd, ProbeAction};
use text::PlantByte;
use vm_memory::{Bytes as _, GuestAddress};
use vmm::End;

use crate::BENCH;

/// The limit for waits: a live guest does its work within this time.
const PATIENCE: Duration = Duration::from_secs(60);
/// The limit of the run. The controlling thread ends the run earlier.
const LONGEST: Duration = Duration::from_secs(280);
/// More calls than any test waits for; each test ends the guest.
const BUSY: &str = "run=smp=1000000000";

/// Ends the guest when the controlling thread is done or fails, so a failure is visible at once.
struct EndsWith(vmm::Control);

impl Drop for EndsWith {
    fn drop(&mut self) {
        self.0.end(End::Stopped);
    }
}

/// Two busy vCPUs.
fn two(way: Option<Way>) -> Here<'static> {
    Here::new(&BENCH, way, 2)
}

/// Runs the guest until `control` has returned.
fn controlled(
    here: &Here<'_>,
    probe: &str,
    control: impl FnOnce(&Path, &vmm::Control) + Send,
) -> Ran {
    let hub = Arc::new(EventHub::default());
    let guest = here
        .guest(BUSY)
        .probes([probe])
        .timeout(LONGEST)
        .prepare_with(|observer| Arc::new(Tee::new(Arc::new(observer), Arc::clone(&hub))));
    let folder = tempfile::tempdir().expect("tempdir");
    let socket = ControlSocket::bind(&folder.path().join("x.sock")).expect("bound");
    let live = Live::new(
        guest.session.engine().clone(),
        guest.session.control(),
        "kvm",
        MEMORY_BYTES,
    );
    let incoming = Incoming::Socket(socket.listener().expect("listener"));
    let server = Server::start(incoming, Arc::new(live), Arc::clone(&hub)).expect("server");
    let machine = EndsWith(guest.session.control());
    std::thread::scope(|scope| {
        let path = socket.path();
        let controlling = scope.spawn(move || control(path, &machine.0));
        let ran = guest.run();
        hub.event(Event::Summary(ran.summary.clone()));
        // Streams of events end here, and the thread may be reading a stream.
        server.finish();
        controlling.join().expect("the controlling thread");
        ran
    })
}

fn client(path: &Path) -> Client {
    Client::new(path).expect("client")
}

fn one(spec: &str) -> AddProbes {
    AddProbes::One(AddProbe::new(spec))
}

fn wait_for_hits(client: &Client, id: &str, more_than: u64) -> u64 {
    let began = Instant::now();
    loop {
        let hits = client.stats(id).expect("stats").probes[0].hits;
        if hits > more_than {
            return hits;
        }
        assert!(began.elapsed() < PATIENCE, "{hits} hits of {id}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The bytes in memory, including plants.
fn in_memory(machine: &vmm::Control, at: Gva) -> [u8; 16] {
    let gpa = BENCH.kernel().to_physical(at).expect("it is loaded");
    let mut bytes = [0; 16];
    machine
        .memory()
        .read_slice(&mut bytes, GuestAddress(gpa.0))
        .expect("memory");
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_probe_comes_fires_and_goes_without_a_trace() {
    for byte in [PlantByte::Port, PlantByte::Int3] {
        let way = Way::Byte(byte);
        if !BENCH.delivers(way) {
            continue;
        }
        let ran = controlled(&two(Some(way)), "kprobe:fn_nop", |path, machine| {
            let client = client(path);
            let at = BENCH
                .kernel()
                .symbols()
                .address_of("fn_push")
                .expect("fn_push");
            let before = in_memory(machine, at);
            let read = |client: &Client| client.memory("gva", at.0, 16).expect("read").bytes;
            assert_eq!(read(&client), hex(&before));

            let added = client.add(&one("kprobe:fn_push")).expect("added");
            let id = added.id.expect("one").to_string();
            assert!(added.pause.held_ns > 0, "{added:?}");
            assert_eq!(added.probes[0].summary.state, ProbeState::Armed);
            assert_ne!(in_memory(machine, at), before, "it is planted");
            assert_eq!(read(&client), hex(&before), "and not seen");
            let hits = wait_for_hits(&client, &id, 10);

            let disable = control::api::ChangeProbe {
                enabled: Some(false),
                name: None,
            };
            client.change(&id, &disable).expect("disabled");
            assert_eq!(in_memory(machine, at), before);
            let enable = control::api::ChangeProbe {
                enabled: Some(true),
                ..disable
            };
            client.change(&id, &enable).expect("enabled");
            wait_for_hits(&client, &id, hits);

            let removed = client.remove(&id).expect("removed");
            assert!(removed.probes[0].summary.hits > hits);
            assert_eq!(in_memory(machine, at), before, "the guest's own again");
            client.command("stop").expect("stopped");
        });
        assert_eq!(ran.summary.guest.end, GuestEnd::Stopped, "{way:?}");
        assert!(!ran.observer.console().contains("FAIL"), "{way:?}");
    }
}

/// The guest's own kernel is not Linux, but a refusal has the same words.
#[test]
fn a_transaction_of_which_one_part_is_wrong_plants_nothing() {
    controlled(&two(None), "kprobe:fn_*", |path, machine| {
        let client = client(path);
        let at = BENCH
            .kernel()
            .symbols()
            .address_of("scenario_smp")
            .expect("scenario_smp");
        let before = in_memory(machine, at);
        let asked = ["kprobe:scenario_smp", "kprobe:fn_pish"].map(AddProbe::new);
        let Err(ClientError::Refused(problem)) = client.add(&AddProbes::Many(asked.into())) else {
            panic!("there is no fn_pish")
        };
        assert!(problem.is(ProblemKind::CannotProbe), "{problem:?}");
        assert!(
            problem
                .help
                .as_ref()
                .is_some_and(|help| help.contains("fn_push")),
            "{problem:?}"
        );
        assert_eq!(problem.pointer.as_deref(), Some("/1/spec"));
        assert_eq!(in_memory(machine, at), before);
        client.command("stop").expect("stopped");
    });
}

#[test]
fn a_paused_guest_stands_and_can_be_changed() {
    controlled(&two(None), "kprobe:fn_push", |path, _| {
        let client = client(path);
        wait_for_hits(&client, "1", 0);
        assert_eq!(
            client.command("pause").expect("paused").state,
            MachineState::Paused
        );
        let stands = client.stats("1").expect("stats").probes;
        let added = client.add(&one("kprobe:fn_xor")).expect("added");
        assert_eq!(added.pause.held_ns, 0, "it stands anyway");
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(client.stats("1").expect("stats").probes, stands);
        assert_eq!(
            client.command("resume").expect("runs").state,
            MachineState::Running
        );
        wait_for_hits(&client, "1", stands[0].hits);
        wait_for_hits(&client, &added.id.expect("one").to_string(), 0);
        // A pause does not outlast the run.
        client.command("pause").expect("paused");
        client.command("stop").expect("stopped");
    });
}

#[test]
fn events_go_to_clients_and_none_is_lost_in_between() {
    controlled(&two(None), "kprobe:fn_push", |path, _| {
        let mut events = client(path).events(Some(1)).expect("stream");
        let mut expected = 1;
        while expected < 100 {
            match events.next().expect("more").expect("line") {
                EventLine::Event { seq, event } => {
                    assert!(seq >= expected, "{seq} after {expected}");
                    // The first event is the note that the guest's kernel has no types.
                    let is_expected = match &event {
                        Event::Hit(hit) => seq > 1 && &*hit.probe == "kprobe:fn_push",
                        Event::Note(note) => seq == 1 && note.text.contains("no BTF"),
                        _ => false,
                    };
                    assert!(is_expected, "{seq}: {event:?}");
                    expected = seq + 1;
                }
                EventLine::Lost(lost) => assert_eq!(lost.next, expected + lost.lost),
            }
        }
        client(path).command("stop").expect("stopped");
        let last = events.map(|line| line.expect("line")).last();
        let is_summary = |line: &EventLine| {
            matches!(line, EventLine::Event { event: Event::Summary(summary), .. }
                if summary.guest.end == GuestEnd::Stopped)
        };
        assert!(last.as_ref().is_some_and(is_summary), "{last:?}");
    });
}

/// Resident memory in KiB, and open files.
fn footprint() -> (u64, usize) {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line
        .and_then(|line| line.trim().strip_suffix(" kB"))
        .expect("VmRSS");
    let files = std::fs::read_dir("/proc/self/fd").expect("fd").count();
    (number.trim().parse().expect("a number"), files)
}

#[test]
fn ten_thousand_cycles_leave_nothing_behind() {
    // The leftovers of all cycles would be far more: a descriptor, or the kilobyte of a probe, for each cycle.
    const MORE_KIB: u64 = 3 << 10;
    const MORE_FILES: usize = 20;
    // Without hits: the test's observer stores each.
    controlled(&two(None), "kprobe:watch_store", |path, _| {
        let mut kept = client(path);
        let asked = AddProbes::One(AddProbe {
            action: Some(ProbeAction::Count),
            ..AddProbe::new("kprobe:fn_push")
        });
        let mut cycles = |count: usize| {
            for cycle in 0..count {
                let mut fresh = None;
                // Every tenth cycle has a connection of its own.
                let client = match cycle % 10 {
                    0 => fresh.insert(client(path)),
                    _ => &mut kept,
                };
                let added = client.add(&asked).expect("added");
                let id = added.id.expect("one").to_string();
                assert_eq!(client.remove(&id).expect("removed").removed, 1);
            }
        };
        cycles(1000);
        let (kib, files) = footprint();
        cycles(10_000);
        let (kib_after, files_after) = footprint();
        let machine = client(path).machine().expect("machine");
        println!(
            "{kib} KiB, then {kib_after}; {files} files, then {files_after}; {:?}",
            machine.pauses
        );
        assert!(kib_after < kib + MORE_KIB, "{kib} KiB, then {kib_after}");
        assert!(
            files_after < files + MORE_FILES,
            "{files} files, then {files_after}"
        );
        assert_eq!((machine.probes, machine.pauses.count), (1, 22_000));
        client(path).command("stop").expect("stopped");
    });
}
