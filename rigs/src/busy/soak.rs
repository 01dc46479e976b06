//! Registers and removes probes at random instructions of a busy guest, while permanent probes count the guest's calls.

use std::time::{Duration, Instant};

use address::Gva;
use events::{ProbeId, Tier};
use introspect::Symbol;
use introspect::insn::Decoded;
use manifest::ProbeConfig;
use probes::Kernel;

use super::counting::{Counted, function, is_accounted, lost, only_counts};
use super::guest::{Guest, Live};
use super::random::{FunctionChoice, Random};
use super::text::Text;
use errors::chain;

/// How to soak.
#[derive(Clone, Copy, Debug)]
pub struct Soak {
    /// The duration of the soak.
    pub seconds: u64,
    /// The seed of the choices; the guest's own activity does not depend on the seed.
    pub seed: u64,
    /// The number of temporary probes at which no more are registered.
    pub most: usize,
    /// Jumps replace the plants of probes that only count, where possible.
    pub optimise: bool,
}

/// Both vCPUs make system calls, sleep, and start and end processes all the time.
const WORKLOAD: &str =
    "procs=2 opens=20 reads=20 getpids=20 nappers=2 naps=2 nap=1 repeat=1000000 listen=1";
const AT_WORK: &str = "workload: round 2";
/// The number of probes registered in one pause, and the maximum number removed in one pause.
const REGISTERED_AT_ONCE: usize = 50;
const REMOVED_AT_ONCE: usize = 40;
/// The share of operations with optimisation off, as a divisor.
const KNOB_TURNED_OFF: usize = 12;
/// The share of operations before which every plant goes and comes back, as a divisor. Tasks are in detours meanwhile.
const ALL_GO: usize = 60;
const BETWEEN_OPERATIONS: Duration = Duration::from_millis(5);
/// The guest boots before, and ends after.
const MARGIN: Duration = Duration::from_secs(600);
/// The number of instructions considered behind a function's entry. Every second instruction gets a permanent probe, so that its
/// neighbours stay free for temporary probes.
const ROW: usize = 6;

const WATCHED: [(&str, Counted); 5] = [
    ("do_sys_openat2", Counted::Openat),
    ("ksys_read", Counted::Read),
    ("__x64_sys_getpid", Counted::Getpid),
    ("hrtimer_nanosleep", Counted::Nap),
    ("do_group_exit", Counted::Children),
];

/// Functions with a probe at the entry only, and with no temporary probes on purpose. A jump may replace a plant only if no return is
/// followed and no other probe is in the jump's way.
const ENTERED: [(&str, Counted); 2] = [
    ("__x64_sys_openat", Counted::Openat),
    ("__x64_sys_read", Counted::Read),
];

/// The operations of the soak, for the verdict.
#[derive(Clone, Debug, Default)]
struct SoakCounts {
    registered: usize,
    switched: usize,
    removed: usize,
    most_at_once: usize,
    longest: Duration,
    /// Hits of the temporary probes that were present at the end.
    hits: u64,
    /// Hits of the same probes without an exit.
    unexited: u64,
    is_optimising: bool,
    knob_turned: usize,
    rearmed: usize,
    /// The number of probes with a jump at the end, and the number of permanent probes among them.
    optimised: usize,
    stayed_optimised: usize,
    patched_by_guest: usize,
}

pub(super) fn run(guest: &Guest<'_>, soak: Soak) -> Result<String, String> {
    let kernel = guest.kernel()?;
    let (probes, counted) = permanent(&kernel)?;
    let limit = Duration::from_secs(soak.seconds) + MARGIN;
    let (ran, soak_counts) = guest.run(WORKLOAD, &probes, limit, |live| {
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
    if soak.optimise && soak_counts.stayed_optimised == 0 {
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
        soak_counts.registered,
        soak_counts.most_at_once,
        soak_counts.switched,
        soak_counts.removed,
        soak_counts.hits,
        soak_counts.unexited,
        soak_counts.optimised - soak_counts.stayed_optimised,
        soak_counts.stayed_optimised,
        soak_counts.knob_turned,
        soak_counts.rearmed,
        probes.len(),
        soak_counts.longest,
        soak_counts.patched_by_guest,
        ran.slow,
    ))
}

/// Permanent probes, and the kind of calls that each probe must count: the entries of functions, instructions behind the entries, and
/// returns.
fn permanent(kernel: &Kernel) -> Result<(Vec<ProbeConfig>, Vec<Counted>), String> {
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

/// Instructions behind the entry that each call executes once: nothing branches before the instructions or to them, and the kernel does
/// not patch them.
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

fn drive(live: &Live<'_>, kernel: &Kernel, soak: Soak) -> Result<SoakCounts, String> {
    let text = Text::of(kernel)?;
    let watched = WATCHED
        .iter()
        .map(|(name, _)| function(kernel, name))
        .collect::<Result<_, _>>()?;
    let choice = FunctionChoice::new(kernel, watched, soak.optimise);
    let mut random = Random::new(soak.seed);
    let permanent = live.engine.inventory().ids().len();
    let before = text.own(live, &live.control.pause_all())?;
    let mut soak_counts = SoakCounts::default();
    let mut coming: Vec<(ProbeId, bool)> = Vec::new();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(soak.seconds) && !live.has_ended() {
        if soak.optimise {
            optimise_or_not(live, &mut random, &mut soak_counts)?;
        }
        let which = random.below(4);
        let new: Vec<ProbeConfig> = match which {
            0 | 1 if coming.len() < soak.most => (0..REGISTERED_AT_ONCE)
                .filter_map(|_| choice.probe(&mut random))
                .collect(),
            _ => Vec::new(),
        };
        let pausing = Instant::now();
        operate(
            live,
            which,
            &new,
            &mut coming,
            &mut random,
            &mut soak_counts,
        )?;
        let paused = pausing.elapsed();
        soak_counts.longest = soak_counts.longest.max(paused);
        soak_counts.most_at_once = soak_counts.most_at_once.max(coming.len());
        // The guest has at least half of the time.
        std::thread::sleep(paused.max(BETWEEN_OPERATIONS));
    }
    if soak.optimise {
        let paused = live.control.pause_all();
        live.engine.set_optimising(&paused, true).map_err(chain)?;
    }
    let paused = live.control.pause_all();
    for (index, probe) in live.engine.inventory().summaries().iter().enumerate() {
        let stayed = index < permanent;
        let is_optimised = probe.tier == Some(Tier::Optimised);
        soak_counts.optimised += usize::from(is_optimised);
        soak_counts.stayed_optimised += usize::from(is_optimised && stayed);
        if stayed {
            continue;
        }
        soak_counts.hits += probe.hits;
        soak_counts.unexited += probe.hits.saturating_sub(probe.exits);
        if !is_accounted(probe) {
            return Err(format!("entries are not accounted for: {probe:?}"));
        }
    }
    let gone: Vec<ProbeId> = coming.iter().map(|(id, _)| *id).collect();
    live.engine.unregister(&paused, &gone).map_err(chain)?;
    let after = text.own(live, &paused)?;
    drop(paused);
    soak_counts.patched_by_guest = text.patched(&before, &after)?;
    live.type_line()?;
    Ok(soak_counts)
}

/// The knob of optimisation is on most of the time; now and then every plant goes and comes back.
fn optimise_or_not(
    live: &Live<'_>,
    random: &mut Random,
    soak_counts: &mut SoakCounts,
) -> Result<(), String> {
    let wanted = random.below(KNOB_TURNED_OFF) > 0;
    if wanted != soak_counts.is_optimising {
        let paused = live.control.pause_all();
        live.engine.set_optimising(&paused, wanted).map_err(chain)?;
        soak_counts.is_optimising = wanted;
        soak_counts.knob_turned += 1;
    }
    if random.below(ALL_GO) == 0 {
        let paused = live.control.pause_all();
        live.engine.disarm_all(&paused).map_err(chain)?;
        live.engine.set_armed(&paused, true).map_err(chain)?;
        soak_counts.rearmed += 1;
    }
    Ok(())
}

/// Registers, enables or disables, or removes probes, or does nothing.
fn operate(
    live: &Live<'_>,
    which: usize,
    new: &[ProbeConfig],
    coming: &mut Vec<(ProbeId, bool)>,
    random: &mut Random,
    soak_counts: &mut SoakCounts,
) -> Result<(), String> {
    let paused = live.control.pause_all();
    match which {
        0 | 1 if !new.is_empty() => {
            let ids = live.engine.register(&paused, new).map_err(chain)?;
            soak_counts.registered += ids.len();
            coming.extend(ids.into_iter().map(|id| (id, true)));
        }
        2 if !coming.is_empty() => {
            let at = random.below(coming.len());
            let (id, enabled) = &mut coming[at];
            *enabled = !*enabled;
            live.engine
                .set_enabled(&paused, *id, *enabled)
                .map_err(chain)?;
            soak_counts.switched += 1;
        }
        3 if !coming.is_empty() => {
            let many = 1 + random.below(REMOVED_AT_ONCE.min(coming.len()));
            let gone: Vec<ProbeId> = (0..many)
                .map(|_| coming.swap_remove(random.below(coming.len())).0)
                .collect();
            soak_counts.removed += live.engine.unregister(&paused, &gone).map_err(chain)?;
        }
        _ => (),
    }
    Ok(())
}
