//! Probes at random instructions of a busy guest, armed, disabled, enabled and removed at random:
//! `soak KERNEL INITRD SECONDS MOST [SEED]`. Ends with the guest's text as it was, or says what differs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hyprobe_probes::{Action, Event, EventSink, Kernel, NewProbe, ProbeId, Session, SessionConfig};
use introspect::{Gva, Symbol};
use vm_memory::{Bytes, GuestAddress};
use vmm::boot::{BootMethod, KernelFile};
use vmm::{Console, End, Host, self_test};

/// Takes the notes; there are no traced probes.
#[derive(Debug, Default)]
struct Notes(AtomicU64);

impl EventSink for Notes {
    fn event(&self, event: Event) {
        if let Event::Note(note) = event {
            // The first few say what there is to say.
            if self.0.fetch_add(1, Ordering::Relaxed) < 20 {
                println!("note: {note:?}");
            }
        }
    }
}

/// xorshift: repeatable, and good enough to choose addresses.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit.max(1) as u64).unwrap_or(0)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kernel, initrd, seconds, most, seed @ ..] = arguments.as_slice() else {
        return Err("usage: soak KERNEL INITRD SECONDS MOST [SEED]".into());
    };
    let (seconds, most) = (seconds.parse()?, most.parse::<usize>()?);
    let mut random = Random(seed.first().map_or(Ok(0x9e37_79b9), |seed| seed.parse())?);
    let host = Host::open()?;
    let facts = self_test(&host)?;
    let file = KernelFile::open(Path::new(kernel))?;
    let vmlinux = file.vmlinux()?;
    let known = Kernel::from_vmlinux(&vmlinux)?;
    let functions: Vec<Symbol> = known
        .symbols()
        .iter()
        .filter(|symbol| symbol.is_text() && symbol.size > 0 && known.holds_code(symbol.address))
        .filter(|symbol| !known.is_init(symbol.address))
        .collect();
    let text = known
        .text()
        .ok_or("the kernel does not say where its text is")?;
    let start = known.to_physical(text.start).ok_or("the text is nowhere")?;
    let text_bytes = usize::try_from(text.end.0 - text.start.0)?;
    let session = Session::new(
        &host,
        facts,
        SessionConfig {
            file: &file,
            vmlinux: &vmlinux,
            kernel: Kernel::from_vmlinux(&vmlinux)?,
            method: BootMethod::Direct,
            initrd: Some(&std::fs::read(initrd)?),
            cmdline: "console=ttyS0 panic=-1 loglevel=4 procs=2 opens=50 reads=50 getpids=50 repeat=1000000",
            memory_bytes: 256 << 20,
            cpus: 2,
            probes: &[],
            plant: None,
            console: Console {
                output: Box::new(std::io::stdout()),
                input: None,
            },
            debug_exit: false,
        },
        Arc::new(Notes::default()),
    )?;
    let (engine, control) = (session.engine().clone(), session.control());
    let ended = AtomicBool::new(false);
    let summary = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Until the guest's processes are at work.
            std::thread::sleep(Duration::from_secs(8));
            let before = {
                // Without the engine's own few plants too.
                let paused = control.pause_all();
                engine.disarm_all(&paused).expect("disarmed");
                let before = text_of(&paused, start.0, text_bytes);
                engine.set_armed(&paused, true).expect("armed");
                before
            };
            let mut live: Vec<(ProbeId, bool)> = Vec::new();
            let (mut operations, mut longest, mut armed) = ([0_u64; 4], Duration::ZERO, 0);
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(seconds) && !ended.load(Ordering::Acquire) {
                let which = random.below(4);
                let pausing = Instant::now();
                let paused = control.pause_all();
                match which {
                    0 | 1 if live.len() < most => {
                        let new: Vec<NewProbe> =
                            (0..50).filter_map(|_| somewhere(&known, &functions, &mut random)).collect();
                        match engine.register(&paused, &new) {
                            Ok(ids) => live.extend(ids.into_iter().map(|id| (id, true))),
                            Err(error) => println!("register: {error}"),
                        }
                        operations[0] += new.len() as u64;
                    }
                    2 if !live.is_empty() => {
                        let at = random.below(live.len());
                        let (id, enabled) = &mut live[at];
                        *enabled = !*enabled;
                        if let Err(error) = engine.set_enabled(&paused, *id, *enabled) {
                            println!("enable: {error}");
                        }
                        operations[1] += 1;
                    }
                    _ if !live.is_empty() => {
                        let many = 1 + random.below(40.min(live.len()));
                        let gone: Vec<ProbeId> =
                            (0..many).map(|_| live.swap_remove(random.below(live.len())).0).collect();
                        if let Err(error) = engine.unregister(&paused, &gone) {
                            println!("unregister: {error}");
                        }
                        operations[2] += gone.len() as u64;
                    }
                    _ => operations[3] += 1,
                }
                drop(paused);
                longest = longest.max(pausing.elapsed());
                armed = armed.max(live.len());
                std::thread::sleep(Duration::from_millis(5));
            }
            let summaries = engine.summaries();
            let hits: u64 = summaries.iter().map(|probe| probe.hits).sum();
            let unbalanced = summaries
                .iter()
                .filter(|probe| {
                    let missed: u64 = probe.missed.values().sum();
                    probe
                        .returns
                        .zip(probe.in_flight)
                        .is_some_and(|(returns, in_flight)| probe.hits != returns + in_flight + missed)
                })
                .count();
            let paused = control.pause_all();
            let ids: Vec<ProbeId> = live.iter().map(|(id, _)| *id).collect();
            let removed = engine.unregister(&paused, &ids).and_then(|_| engine.disarm_all(&paused));
            if let Err(error) = removed {
                println!("removing: {error}");
            }
            let after = text_of(&paused, start.0, text_bytes);
            let differ: Vec<u64> = (text.start.0..)
                .zip(before.iter().zip(&after))
                .filter(|(_, (a, b))| a != b)
                .map(|(at, _)| at)
                .collect();
            // What the guest itself has patched meanwhile is its own.
            let (own, ours): (Vec<u64>, Vec<u64>) =
                differ.iter().partition(|at| known.sites().overlapping(Gva(**at), 1).is_some());
            drop(paused);
            println!(
                "soak: armed {} enabled/disabled {} removed {} most at once {armed} hits of those left {hits} unbalanced {unbalanced} longest operation {longest:?}",
                operations[0], operations[1], operations[2]
            );
            println!(
                "soak: text of {text_bytes} bytes: {} differ from before the first probe where the kernel patches itself, {} elsewhere {ours:x?}",
                own.len(),
                ours.len()
            );
            // The guest must still be at work.
            std::thread::sleep(Duration::from_secs(2));
            println!("soak: done, guest {}", if ended.load(Ordering::Acquire) { "gone" } else { "alive" });
            control.end(End::Stopped);
        });
        let summary = session.run(Some(Duration::from_secs(seconds + 120)), "kvm");
        ended.store(true, Ordering::Release);
        summary
    })?;
    println!("{:?}", summary.guest);
    Ok(())
}

fn text_of(paused: &vmm::PausedGuard<'_>, start: u64, bytes: usize) -> Vec<u8> {
    let mut text = vec![0; bytes];
    if paused
        .memory()
        .read_slice(&mut text, GuestAddress(start))
        .is_err()
    {
        text.clear();
    }
    text
}

/// A probe at any instruction of any function; at an entry, one in two is a return probe.
fn somewhere(kernel: &Kernel, functions: &[Symbol], random: &mut Random) -> Option<NewProbe> {
    let function = &functions[random.below(functions.len())];
    let code: Vec<_> = kernel
        .instructions(function)
        .map_while(Result::ok)
        .collect();
    let at = code.get(random.below(code.len()))?.at();
    let follow = random.below(4) == 0 && kernel.symbols().lookup_all(&function.name).len() == 1;
    let spec = if follow {
        format!("kretprobe:{}", function.name)
    } else {
        format!("kprobe:{at}")
    };
    Some(NewProbe {
        action: Action::Count,
        ..NewProbe::from(spec.parse::<hyprobe_probes::ProbeSpec>().ok()?)
    })
}
