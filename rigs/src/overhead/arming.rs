//! The time to arm many probes in a stock kernel before the first instruction.

use std::sync::Arc;
use std::time::Instant;

use address::PAGE_BYTES;
use events::ProbeState;
use manifest::{ProbeConfig, Stealth, WhenFull};
use probes::{EngineAction, Kernel, PlantTime, Resolved, Session, SessionConfig, Via, resolve};
use vmm::Console;
use vmm::boot::{BootMethod, KernelFile};

use super::ways::counted;
use super::{Measured, Overhead, nanos};
use crate::contract::{Bench, Observer};
use crate::line::{Arming, Line};
use errors::chain;

/// The guest's name in the lines.
const NAME: &str = "debian-6.1, before its first instruction";
const MEMORY_BYTES: u64 = 256 << 20;
pub(super) const NUMBERS: [usize; 3] = [1, 1000, 40_000];
const ROUNDS: usize = 5;

pub(super) fn arming(overhead: &Overhead<'_>, bench: &Bench) -> Measured {
    let path = overhead.stock.ok_or("no stock kernel")?.kernel;
    let file = KernelFile::open(path).map_err(chain)?;
    let vmlinux = file.vmlinux().map_err(chain)?;
    let kernel = Kernel::from_vmlinux(&*vmlinux).map_err(chain)?;
    NUMBERS
        .into_iter()
        .map(|number| arm(overhead, bench, &file, &vmlinux, &places(&kernel, number)?))
        .collect()
}

/// `number` sites for probes, spread over the kernel: entries of functions and, if there are too few, the instructions behind them.
fn places(kernel: &Kernel, number: usize) -> Result<Vec<ProbeConfig<EngineAction>>, String> {
    let (mut entries, mut others) = (Vec::new(), Vec::new());
    let mut last = None;
    for symbol in kernel.symbols().iter() {
        let is_code = symbol.is_text() && symbol.size > 0 && kernel.holds_code(symbol.address);
        if !is_code
            || kernel.is_init(symbol.address)
            || last.replace(symbol.address) == Some(symbol.address)
        {
            continue;
        }
        let mut places = kernel.instructions(&symbol).map_while(Result::ok).take(2);
        entries.extend(places.next().map(|first| first.at()));
        others.extend(places.next().map(|second| second.at()));
    }
    let all = entries
        .iter()
        .chain(&others)
        .map(|at| counted(&format!("kprobe:{at}")));
    let has_plant = |found: &Resolved| {
        found.place.as_ref().is_ok_and(|place| {
            place.when == PlantTime::TextPresent && matches!(place.via, Via::Plant { .. })
        })
    };
    let possible = all
        .filter(|new| resolve(kernel, &new.at, 0).is_ok_and(|found| found.iter().all(has_plant)));
    let possible: Vec<_> = possible.take(number.max(entries.len())).collect();
    if possible.len() < number {
        return Err(format!("only {} places can be probed", possible.len()));
    }
    let stride = possible.len() / number;
    Ok(possible.into_iter().step_by(stride).take(number).collect())
}

fn arm(
    overhead: &Overhead<'_>,
    bench: &Bench,
    file: &KernelFile,
    vmlinux: &[u8],
    new: &[ProbeConfig<EngineAction>],
) -> Result<Line, String> {
    let mut arming = Arming {
        backend: overhead.backend,
        guest: NAME.to_owned(),
        probes: new.len(),
        prepared_ns: Vec::new(),
        armed_ns: Vec::new(),
        removed_ns: Vec::new(),
        resident_bytes: 0,
    };
    for round in 0..ROUNDS {
        let config: SessionConfig<'_> = SessionConfig {
            file,
            vmlinux,
            kernel: Kernel::from_vmlinux(vmlinux).map_err(chain)?,
            method: BootMethod::Direct,
            initrd: None,
            cmdline: "",
            memory_bytes: MEMORY_BYTES,
            cpus: 1,
            probes: &[],
            injections: &[],
            plant: None,
            optimise: false,
            when_full: WhenFull::default(),
            stealth: Stealth::default(),
            console: Console {
                output: Box::new(std::io::sink()),
                input: None,
            },
            debug_exit: false,
        };
        let sink = Arc::new(Observer::default());
        let session = Session::new(bench.host(), *bench.facts(), config, sink).map_err(chain)?;
        let (engine, control) = (session.engine(), session.control());
        let resident = resident_bytes()?;
        let began = Instant::now();
        let prepared = engine.prepare(new).map_err(chain)?;
        arming.prepared_ns.push(nanos(began.elapsed()));
        let began = Instant::now();
        let ids = engine
            .register_prepared(&control.pause_all(), prepared)
            .map_err(chain)?;
        arming.armed_ns.push(nanos(began.elapsed()));
        if round == 0 {
            arming.resident_bytes = resident_bytes()?.saturating_sub(resident);
        }
        let summaries = engine.inventory().summaries();
        let planted = |probe: &&events::ProbeSummary| probe.state == ProbeState::Armed;
        let armed = summaries.iter().filter(planted).count();
        if armed != new.len() {
            let other = summaries.iter().find(|probe| !planted(probe));
            return Err(format!(
                "{armed} of {} probes are armed: {other:?}",
                new.len()
            ));
        }
        let began = Instant::now();
        engine
            .unregister(&control.pause_all(), &ids)
            .map_err(chain)?;
        arming.removed_ns.push(nanos(began.elapsed()));
    }
    Ok(Line::Arming(arming))
}

/// The resident memory of the process.
fn resident_bytes() -> Result<u64, String> {
    let text = std::fs::read_to_string("/proc/self/statm").map_err(chain)?;
    let pages = text
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages
        .map(|pages| pages * PAGE_BYTES)
        .ok_or_else(|| "no resident memory".to_owned())
}
