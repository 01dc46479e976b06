//! Switches probes with jumps, on the most frequently executed functions, in every possible way while the guest works.
//!
//! Three kinds of functions have probes: functions whose calls the workload counts, from the first instruction on; functions
//! whose calls the guest's kernel counts ([`own`]); and the hottest others ([`functions`]). Probes of the first two kinds are
//! never disabled. They are switched between jump and plant all the time, and have to agree with the guest's counts.

mod disabled;
mod functions;
mod ledger;
mod own;
mod stays;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use address::Gva;
use events::{ProbeId, ProbeStatus, Tier};
use probes::Kernel;

use super::counting::{lost, only_counts};
use super::guest::{Guest, Live, Ran, contains};
use super::text::Text;
use errors::chain;
use functions::{Function, PARTS};
use ledger::Ledger;
use stays::{GETPID, Stays};
use turns::{ChangeCounts, Hot, Turns};

/// The extent of the stress.
#[derive(Clone, Copy, Debug)]
pub struct Heat {
    /// The time of the stress.
    pub seconds: u64,
    /// The maximum number of turns.
    pub turns: usize,
    /// The same seed makes the same choices among the same functions.
    pub seed: u64,
    /// The maximum number of hot functions with a probe.
    pub most: usize,
}

/// Both vCPUs make system calls, touch new memory, sleep, and start and end processes all the time. Most calls are getpid(2), the
/// shortest: a paused vCPU then often stands at a jump or in a detour. The kernel is not preemptible, see [`disabled`].
const WORKLOAD: &str = "procs=2 opens=100 reads=200 getpids=1000 pages=50 repeat=1000000 pause=1 listen=1 preempt=voluntary";
const AT_WORK: &str = "workload: round 2";
/// The number of getpid(2) calls in a round.
const GETPIDS: u64 = 2000;
/// The number of rounds in which hits are compared.
const ROUNDS: u64 = 20;
/// The minimum number of hot functions with a jump.
const LEAST: usize = 200;
const REGISTERED_AT_ONCE: usize = 100;
const BETWEEN_TURNS: Duration = Duration::from_millis(5);
/// The time for the guest's boot and end.
const MARGIN: Duration = Duration::from_secs(900);

/// The result of the turns.
#[derive(Debug)]
struct Driven {
    changes: ChangeCounts,
    candidates: usize,
    /// The number of hot probes in each part of the kernel, and of their hits.
    parts: Vec<(usize, u64)>,
    unexited: u64,
    ledger: Ledger,
    /// The number of probes that were never disabled, and the number of such probes with jumps.
    stayed: usize,
    optimised: usize,
    patched_by_guest: usize,
    longest: Duration,
    /// Hits of probes after they were disabled.
    late: u64,
}

pub(super) fn run(guest: &Guest<'_>, heat: Heat) -> Result<String, String> {
    let kernel = guest.kernel()?;
    let stays = stays::all(&kernel)?;
    let probes = stays.iter().map(|it| only_counts(&it.spec));
    let probes: Vec<_> = probes.collect::<Result<_, _>>()?;
    let limit = Duration::from_secs(heat.seconds) + MARGIN;
    let (ran, driven) = guest.run(WORKLOAD, &probes, limit, |live| {
        live.await_text(AT_WORK, MARGIN)?;
        drive(live, guest, &kernel, heat, &stays)
    })?;
    let wrong: Vec<String> = ran
        .summary
        .probes
        .iter()
        .zip(&stays)
        .filter_map(|(probe, it)| lost(probe, it.counted.of(&ran)))
        .collect();
    if !wrong.is_empty() {
        return Err(wrong.join("; "));
    }
    Ok(success_message(heat, &ran, &driven, stays.len()))
}

fn success_message(heat: Heat, ran: &Ran, driven: &Driven, counting: usize) -> String {
    let Driven {
        changes, ledger, ..
    } = driven;
    let hot: usize = driven.parts.iter().map(|(probes, _)| probes).sum();
    let hits: u64 = driven.parts.iter().map(|(_, hits)| hits).sum();
    let parts: Vec<String> = PARTS
        .iter()
        .zip(&driven.parts)
        .map(|(part, (probes, hits))| format!("{} {probes} ({hits} hits)", part.name))
        .collect();
    let calls = &ran.counts;
    format!(
        "seed {}: {hot} hot probes of {} candidates, all optimised: {}; {} of {hits} hits by jumps; {} turns: {} \
         enabled or disabled, {} hits late, {} removed, {} put beside, the knob turned {} times, every plant went and came \
         back {} times, longest {:?}; {} probes stayed, and {} of them were switched between jump and plant: {} openat, {} read, \
         {} getpid, {} naps, {} processes counted by {} of them, none lost, none twice; {} looks at {}; the \
         text is the guest's own ({} bytes of it patched by the guest meanwhile); {} complaints about time",
        heat.seed,
        driven.candidates,
        parts.join(", "),
        driven.unexited,
        changes.turns,
        changes.switched,
        driven.late,
        changes.removed,
        changes.beside,
        changes.knob_turned,
        changes.rearmed,
        driven.longest,
        driven.stayed,
        driven.optimised,
        calls.openat,
        calls.read,
        calls.getpid,
        calls.nap,
        calls.children,
        counting,
        ledger.looks,
        ledger.changes_in_words(),
        driven.patched_by_guest,
        ran.slow,
    )
}

fn drive(
    live: &Live<'_>,
    guest: &Guest<'_>,
    kernel: &Kernel,
    heat: Heat,
    stays: &[Stays],
) -> Result<Driven, String> {
    stays_in_kernel(live, guest.vmlinux)?;
    let text = Text::of(kernel)?;
    let syscalls: Vec<ProbeId> = live.engine.inventory().ids();
    let before = text.own(live, &live.control.pause_all())?;
    let numbers = own::numbers(live, kernel, guest.vmlinux, guest.cpus)?;
    let mut ledger = Ledger::open(live, kernel, numbers, guest.cpus)?;
    let mut taken = ledger.functions.clone();
    taken.extend(stays.iter().map(|it| it.function));
    let (hot, candidates) = hottest(live, kernel, &taken, heat.most)?;
    let exact = stays.iter().map(|it| it.spec.clone());
    let exact = exact.chain(ledger.specs()).collect();
    let stay: BTreeSet<ProbeId> = syscalls.iter().chain(&ledger.ids).copied().collect();
    let switched = optimised(live, &stay);
    let mut turns = Turns::new(live, hot, exact, heat.seed);
    let began = Instant::now();
    let limit = Duration::from_secs(heat.seconds);
    let mut longest = Duration::ZERO;
    while began.elapsed() < limit && turns.changes.turns < heat.turns && !live.has_ended() {
        let pausing = Instant::now();
        turns.turn(|paused| ledger.check(live, paused))?;
        let paused = pausing.elapsed();
        longest = longest.max(paused);
        // The guest has at least half of the time.
        std::thread::sleep(paused.max(BETWEEN_TURNS));
    }
    let paused = live.control.pause_all();
    turns.all_on(&paused)?;
    drop(paused);
    await_rounds(live, ROUNDS)?;
    let paused = live.control.pause_all();
    ledger.check(live, &paused)?;
    all_optimised(live, &switched)?;
    all_optimised(live, &turns.ids())?;
    let (parts, unexited) = gathered(live, &mut turns)?;
    let gone: Vec<ProbeId> = turns.ids().into_iter().collect();
    live.engine.unregister(&paused, &gone).map_err(chain)?;
    let after = text.own(live, &paused)?;
    drop(paused);
    live.type_line()?;
    Ok(Driven {
        patched_by_guest: text.patched(&before, &after)?,
        late: turns.disabled.late,
        changes: turns.changes,
        candidates,
        parts,
        unexited,
        ledger,
        stayed: stay.len(),
        optimised: switched.len(),
        longest,
    })
}

/// Text in the version string of a preemptible kernel. With `PREEMPT_DYNAMIC`, the command line decides.
const PREEMPTING: [&str; 2] = ["SMP PREEMPT_RT", "SMP PREEMPT "];

/// Checks that the kernel is not preemptible, as [`disabled`] requires: the kernel has to obey `preempt=voluntary`.
fn stays_in_kernel(live: &Live<'_>, vmlinux: &[u8]) -> Result<(), String> {
    let is_preempting = PREEMPTING.iter().any(|built| contains(vmlinux, built));
    if is_preempting || live.has_printed("Dynamic Preempt: unsupported mode") {
        return Err(
            "this kernel preempts itself whatever its command line says: the hits of disabled probes have no bound"
                .to_owned(),
        );
    }
    Ok(())
}

/// Waits for `rounds` more rounds of the guest.
fn await_rounds(live: &Live<'_>, rounds: u64) -> Result<(), String> {
    let is_it = |status: &ProbeStatus| status.summary.probe.ends_with(GETPID);
    let getpids = || {
        let statuses = live.engine.inventory().statuses();
        let found = statuses.iter().find(|status| is_it(status));
        found.map_or(0, |status| status.summary.hits)
    };
    let (began, first) = (Instant::now(), getpids());
    while getpids() < first + rounds * GETPIDS {
        if live.has_ended() || began.elapsed() > MARGIN {
            return Err("the guest does not go on".to_owned());
        }
        std::thread::sleep(BETWEEN_TURNS);
    }
    Ok(())
}

/// Probes all candidates for some rounds, and removes all but the `most` hottest probes with jumps. Returns the number of
/// candidates, too.
fn hottest(
    live: &Live<'_>,
    kernel: &Kernel,
    taken: &BTreeSet<Gva>,
    most: usize,
) -> Result<(Vec<Hot>, usize), String> {
    let functions = functions::all(kernel, taken)?;
    let candidates = functions.len();
    let mut functions = functions.into_iter().peekable();
    let mut found = BTreeMap::new();
    while functions.peek().is_some() {
        let batch = functions.by_ref().take(REGISTERED_AT_ONCE).collect();
        found.extend(registered(live, batch)?);
    }
    await_rounds(live, ROUNDS)?;
    let paused = live.control.pause_all();
    let statuses = statuses(live, &found.keys().copied().collect());
    let mut hot: Vec<_> = found.into_iter().collect();
    let hits = |id: &ProbeId| statuses.get(id).map_or(0, |status| status.summary.hits);
    hot.sort_by_key(|(id, _)| std::cmp::Reverse(hits(id)));
    let cold = hot.iter().position(|(id, _)| hits(id) == 0);
    let cold = hot.split_off(cold.unwrap_or(hot.len()).min(most));
    let gone: Vec<ProbeId> = cold.into_iter().map(|(id, _)| id).collect();
    live.engine.unregister(&paused, &gone).map_err(chain)?;
    if hot.len() < LEAST.min(most) {
        return Err(format!(
            "only {} of {candidates} functions are hot and optimised",
            hot.len()
        ));
    }
    // Neighbours in the list then belong to the same part of the kernel.
    hot.sort_by_key(|(_, function)| function.part);
    let hot = hot.into_iter().map(|(id, function)| Hot::new(function, id));
    Ok((hot.collect(), candidates))
}

/// Registers probes on `functions`, and removes the probes without jumps.
fn registered(
    live: &Live<'_>,
    functions: Vec<Function>,
) -> Result<BTreeMap<ProbeId, Function>, String> {
    let new: Vec<_> = functions.iter().map(|it| it.probe.clone()).collect();
    let prepared = live.engine.prepare(&new).map_err(chain)?;
    let paused = live.control.pause_all();
    let ids = live.engine.register_prepared(&paused, prepared);
    let ids = ids.map_err(chain)?;
    let stay = optimised(live, &ids.iter().copied().collect());
    let (stay, gone): (Vec<_>, Vec<_>) = ids
        .into_iter()
        .zip(functions)
        .partition(|(id, _)| stay.contains(id));
    let gone: Vec<ProbeId> = gone.into_iter().map(|(id, _)| id).collect();
    live.engine.unregister(&paused, &gone).map_err(chain)?;
    Ok(stay.into_iter().collect())
}

fn statuses(live: &Live<'_>, ids: &BTreeSet<ProbeId>) -> BTreeMap<ProbeId, ProbeStatus> {
    let statuses = live.engine.inventory().statuses_among(ids, usize::MAX);
    statuses
        .into_iter()
        .map(|status| (status.id, status))
        .collect()
}

/// The probes among `ids` with jumps.
fn optimised(live: &Live<'_>, ids: &BTreeSet<ProbeId>) -> BTreeSet<ProbeId> {
    let mut statuses = live.engine.inventory().statuses_among(ids, usize::MAX);
    statuses.retain(|status| status.summary.tier == Some(Tier::Optimised));
    statuses.into_iter().map(|status| status.id).collect()
}

/// Checks that each probe of `ids` has a jump.
fn all_optimised(live: &Live<'_>, ids: &BTreeSet<ProbeId>) -> Result<(), String> {
    let are = optimised(live, ids);
    match live
        .engine
        .inventory()
        .statuses_among(&(ids - &are), 1)
        .pop()
    {
        None => Ok(()),
        Some(is_not) => Err(format!(
            "{} of {} are optimised at the end; one that is not: {is_not:?}",
            are.len(),
            ids.len()
        )),
    }
}

/// The number of hot probes of each part and of their hits, and the number of hits without an exit.
fn gathered(live: &Live<'_>, turns: &mut Turns<'_>) -> Result<(Vec<(usize, u64)>, u64), String> {
    let statuses = statuses(live, &turns.ids());
    let mut parts = vec![(0, 0); PARTS.len()];
    let mut unexited = 0;
    for hot in &mut turns.hot {
        let status = hot.id.and_then(|id| statuses.get(&id));
        hot.gather(status.ok_or("a probe is gone")?)?;
        let (probes, hits) = &mut parts[hot.function.part];
        *probes += 1;
        *hits += hot.hits;
        unexited += hot.unexited;
    }
    Ok((parts, unexited))
}
