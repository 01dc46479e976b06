//! Probes at random instructions of a busy guest come and go, while others stay and count what the guest counts.

use std::time::{Duration, Instant};

use introspect::insn::Decoded;
use introspect::{Gva, Symbol};
use probes::{Kernel, NewProbe, ProbeId, Tier};

use super::counting::{Counted, function, is_accounted, lost, only_counts};
use super::guest::{Guest, Live};
use super::random::{Random, Somewhere};
use super::text::Text;
use crate::chain::chain;

/// How to soak.
#[derive(Clone, Copy, Debug)]
pub struct Soak {
    /// How long.
    pub seconds: u64,
    /// The same seed makes the same choices; what the guest does meanwhile is its own.
    pub seed: u64,
    /// So many probes at once.
    pub most: usize,
    /// Jumps stand for probes that only count, where they can.
    pub optimise: bool,
}

/// Both vCPUs make system calls, sleep, and start and end processes all the time.
const WORKLOAD: &str =
    "procs=2 opens=20 reads=20 getpids=20 nappers=2 naps=2 nap=1 repeat=1000000 listen=1";
const AT_WORK: &str = "workload: round 2";
/// Probes are registered so many at a time, and removed at most so many at a time.
const REGISTERED_AT_ONCE: usize = 50;
const REMOVED_AT_ONCE: usize = 40;
/// The knob of optimisation is off behind one operation of so many.
const KNOB_TURNED_OFF: usize = 12;
/// Before one operation of so many, every plant goes and comes back while tasks are in detours.
const ALL_GO: usize = 60;
const BETWEEN_OPERATIONS: Duration = Duration::from_millis(5);
/// The guest boots before, and ends after.
const MARGIN: Duration = Duration::from_secs(600);
/// Instructions in a row behind a function's entry that are probed for good: every second one, so that neighbours of
/// theirs are left for those that come and go.
const ROW: usize = 6;

const WATCHED: [(&str, Counted); 5] = [
    ("do_sys_openat2", Counted::Openat),
    ("ksys_read", Counted::Read),
    ("__x64_sys_getpid", Counted::Getpid),
    ("hrtimer_nanosleep", Counted::Nap),
    ("do_group_exit", Counted::Children),
];

/// Functions of which only the entry is probed, and where nothing comes and goes on purpose: a jump may stand for a plant
/// only where no return is followed and no other probe is in its way.
const ENTERED: [(&str, Counted); 2] = [
    ("__x64_sys_openat", Counted::Openat),
    ("__x64_sys_read", Counted::Read),
];

/// What was done, for the verdict.
#[derive(Clone, Debug, Default)]
struct Did {
    registered: usize,
    switched: usize,
    removed: usize,
    most_at_once: usize,
    longest: Duration,
    /// Hits of the probes that came and went, as far as they were there at the end.
    hits: u64,
    /// Those of them that made no exit.
    unexited: u64,
    is_optimising: bool,
    knob_turned: usize,
    rearmed: usize,
    /// Probes for which a jump stood at the end, and those of them that stayed.
    optimised: usize,
    stayed_optimised: usize,
    patched_by_guest: usize,
}

pub(super) fn run(guest: &Guest<'_>, soak: Soak) -> Result<String, String> {
    let kernel = guest.kernel()?;
    let (probes, counted) = permanent(&kernel)?;
    let limit = Duration::from_secs(soak.seconds) + MARGIN;
    let (ran, did) = guest.run(WORKLOAD, &probes, limit, |live| {
        live.await_text(AT_WORK, MARGIN)?;
        drive(live, &kernel, soak)
    })?;
    let wrong: Vec<String> = ran
        .summary
        .probes
        .iter()
        .zip(&counted)
        .filter_map(|(probe, counted)| lost(probe, counted.of(&ran)))
        .collect();
    if !wrong.is_empty() {
        return Err(wrong.join("; "));
    }
    if soak.optimise && did.stayed_optimised == 0 {
        return Err(format!(
            "none of the probes that stayed was optimised: {:?}",
            ran.summary.probes
        ));
    }
    let stayed: u64 = ran.summary.probes.iter().map(|probe| probe.hits).sum();
    Ok(format!(
        "seed {} for {} s: {} probes armed, {} at once at the most, {} enabled or disabled, {} removed, {} hits of the \
         last ones, {} of them without an exit; {} of the last ones and {} that stayed were optimised at the \
         end, the knob was turned {} times, every plant went and came back {} times; {} probes stayed and counted {stayed} hits, none lost; longest operation {:?}; the text is the \
         guest's own ({} bytes of it patched by the guest meanwhile); {} complaints about time",
        soak.seed,
        soak.seconds,
        did.registered,
        did.most_at_once,
        did.switched,
        did.removed,
        did.hits,
        did.unexited,
        did.optimised - did.stayed_optimised,
        did.stayed_optimised,
        did.knob_turned,
        did.rearmed,
        probes.len(),
        did.longest,
        did.patched_by_guest,
        ran.slow,
    ))
}

/// Probes that stay, and what each must count: the entries of functions, instructions behind them, and returns.
fn permanent(kernel: &Kernel) -> Result<(Vec<NewProbe>, Vec<Counted>), String> {
    let mut probes = Vec::new();
    let mut counts = Vec::new();
    for (name, counted) in WATCHED {
        let symbol = function(kernel, name)?;
        let specs = [format!("kprobe:{name}"), format!("kretprobe:{name}")]
            .into_iter()
            .chain(
                row(kernel, &symbol)
                    .into_iter()
                    .step_by(2)
                    .map(|at| format!("kprobe:{at}")),
            );
        for spec in specs {
            probes.push(only_counts(&spec)?);
            counts.push(counted);
        }
    }
    for (name, counted) in ENTERED {
        function(kernel, name)?;
        probes.push(only_counts(&format!("kprobe:{name}"))?);
        counts.push(counted);
    }
    Ok((probes, counts))
}

/// Instructions behind the entry that are executed once for each call: nothing branches before them or to them, and
/// the kernel does not patch them.
fn row(kernel: &Kernel, symbol: &Symbol) -> Vec<Gva> {
    let code: Vec<Decoded> = kernel.instructions(symbol).map_while(Result::ok).collect();
    let targets: Vec<Gva> = code.iter().filter_map(Decoded::branch_target).collect();
    code.iter()
        .skip(1)
        .take(ROW)
        .take_while(|at| goes_straight_on(at))
        .filter(|at| !targets.contains(&at.at()))
        .filter(|at| {
            kernel
                .sites()
                .overlapping(at.at(), at.len() as u64)
                .is_none()
        })
        .map(Decoded::at)
        .collect()
}

fn goes_straight_on(decoded: &Decoded) -> bool {
    let text = decoded.text();
    let leaves = ["ret", "call", "jmp", "ud2", "int"];
    decoded.branch_target().is_none() && !leaves.iter().any(|word| text.starts_with(word))
}

fn drive(live: &Live<'_>, kernel: &Kernel, soak: Soak) -> Result<Did, String> {
    let text = Text::of(kernel)?;
    let watched = WATCHED
        .iter()
        .map(|(name, _)| function(kernel, name))
        .collect::<Result<_, _>>()?;
    let somewhere = Somewhere::new(kernel, watched, soak.optimise);
    let mut random = Random::new(soak.seed);
    let permanent = live.engine.ids().len();
    let before = text.own(live, &live.control.pause_all())?;
    let mut did = Did::default();
    let mut coming: Vec<(ProbeId, bool)> = Vec::new();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(soak.seconds) && !live.has_ended() {
        if soak.optimise {
            optimise_or_not(live, &mut random, &mut did)?;
        }
        let which = random.below(4);
        let new: Vec<NewProbe> = match which {
            0 | 1 if coming.len() < soak.most => (0..REGISTERED_AT_ONCE)
                .filter_map(|_| somewhere.probe(&mut random))
                .collect(),
            _ => Vec::new(),
        };
        let pausing = Instant::now();
        operate(live, which, &new, &mut coming, &mut random, &mut did)?;
        let paused = pausing.elapsed();
        did.longest = did.longest.max(paused);
        did.most_at_once = did.most_at_once.max(coming.len());
        // The guest has at least half of the time.
        std::thread::sleep(paused.max(BETWEEN_OPERATIONS));
    }
    if soak.optimise {
        let paused = live.control.pause_all();
        live.engine.set_optimising(&paused, true).map_err(chain)?;
    }
    let paused = live.control.pause_all();
    for (index, probe) in live.engine.summaries().iter().enumerate() {
        let stayed = index < permanent;
        let is_optimised = probe.tier == Some(Tier::Optimised);
        did.optimised += usize::from(is_optimised);
        did.stayed_optimised += usize::from(is_optimised && stayed);
        if stayed {
            continue;
        }
        did.hits += probe.hits;
        did.unexited += probe.hits.saturating_sub(probe.exits);
        if !is_accounted(probe) {
            return Err(format!("entries are not accounted for: {probe:?}"));
        }
    }
    let gone: Vec<ProbeId> = coming.iter().map(|(id, _)| *id).collect();
    live.engine.unregister(&paused, &gone).map_err(chain)?;
    let after = text.own(live, &paused)?;
    drop(paused);
    did.patched_by_guest = text.patched(&before, &after)?;
    live.type_line()?;
    Ok(did)
}

/// The knob of optimisation is on most of the time; now and then every plant goes and comes back.
fn optimise_or_not(live: &Live<'_>, random: &mut Random, did: &mut Did) -> Result<(), String> {
    let wanted = random.below(KNOB_TURNED_OFF) > 0;
    if wanted != did.is_optimising {
        let paused = live.control.pause_all();
        live.engine.set_optimising(&paused, wanted).map_err(chain)?;
        did.is_optimising = wanted;
        did.knob_turned += 1;
    }
    if random.below(ALL_GO) == 0 {
        let paused = live.control.pause_all();
        live.engine.disarm_all(&paused).map_err(chain)?;
        live.engine.set_armed(&paused, true).map_err(chain)?;
        did.rearmed += 1;
    }
    Ok(())
}

/// One of: register, enable or disable, remove, nothing.
fn operate(
    live: &Live<'_>,
    which: usize,
    new: &[NewProbe],
    coming: &mut Vec<(ProbeId, bool)>,
    random: &mut Random,
    did: &mut Did,
) -> Result<(), String> {
    let paused = live.control.pause_all();
    match which {
        0 | 1 if !new.is_empty() => {
            let ids = live.engine.register(&paused, new).map_err(chain)?;
            did.registered += ids.len();
            coming.extend(ids.into_iter().map(|id| (id, true)));
        }
        2 if !coming.is_empty() => {
            let at = random.below(coming.len());
            let (id, enabled) = &mut coming[at];
            *enabled = !*enabled;
            live.engine
                .set_enabled(&paused, *id, *enabled)
                .map_err(chain)?;
            did.switched += 1;
        }
        3 if !coming.is_empty() => {
            let many = 1 + random.below(REMOVED_AT_ONCE.min(coming.len()));
            let gone: Vec<ProbeId> = (0..many)
                .map(|_| coming.swap_remove(random.below(coming.len())).0)
                .collect();
            did.removed += live.engine.unregister(&paused, &gone).map_err(chain)?;
        }
        _ => (),
    }
    Ok(())
}
