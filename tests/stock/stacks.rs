//! Stacks of hits in stock kernels, compared frame by frame with those that the guest's own function tracer has at the same hits.

use std::collections::{BTreeMap, BTreeSet};

use control::api::{AddProbe, AddProbes};
use control::{Client, ClientError};
use events::{Hex, Hit};
use introspect::{BuildId, PatchKind, PatchTime, Symbol};
use manifest::ProbeAction;

use crate::boot::{Boot, Ran, Running, Stock};
use crate::live;

/// The seed of the choice of functions.
const SEED: u64 = 0x5eed;
/// The guest calls this function to switch its tracer on or off.
const SWITCH: &str = "kprobe:rb_simple_write";
/// The guest's line behind the traced work.
const TRACED: &str = "stacks: traced";
/// The most hits of a function in a run: hotter functions take too long on a slow host.
const MAX_HITS: u64 = 50;
/// The most probes in a request.
const MOST_ADDED: usize = 1000;

/// How many functions a test looks at.
#[derive(Clone, Copy)]
struct Sample {
    /// The functions chosen at random; the guest executes some of them.
    chosen: usize,
    /// The most functions compared, of those with hits.
    compared: usize,
    /// The least number of functions with equal stacks.
    least: usize,
}

const LARGE: Sample = Sample {
    chosen: 4500,
    compared: 280,
    least: 200,
};
/// Of a kernel whose unwinding differs from that of the large sample in the tables' format alone.
const SMALL: Sample = Sample {
    chosen: 2000,
    compared: 90,
    least: 60,
};
/// The beginnings of the names of functions that a busy shell may execute.
const BUSY: [&str; 24] = [
    "vfs_",
    "do_",
    "ksys_",
    "path_",
    "link_",
    "lookup_",
    "d_",
    "dput",
    "inode_",
    "fput",
    "mm_",
    "vma_",
    "alloc_",
    "free_",
    "security_",
    "exit_",
    "wake_",
    "copy_",
    "pipe_",
    "proc_",
    "get_",
    "put_",
    "mnt_",
    "__",
];
/// A function that a timer's interrupt calls.
const IN_INTERRUPT: &str = "update_process_times";
/// The entry of the timer's interrupt.
const INTERRUPT: &str = "asm_sysvec_apic_timer_interrupt+";

/// The guest's tracer writes each stack as a line: the thread, the function and the addresses, of which the upper half is always the same.
const SCRIPT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /t /p /tmp
$b mount -t tracefs t /t
$b mount -t proc p /p
echo 0 > /t/tracing_on
echo 6000 > /t/buffer_size_kb
$b awk '{print $1}' /t/available_filter_functions > /all
$b sort /all | $b uniq -u > /a
$b sort > /f << END
FUNCTIONS
END
$b sort /a /f | $b uniq -d > /both
$b wc -l < /both
# By number, a function is found at once, and by name after a search in all of them.
echo $($b awk 'NR == FNR { w[$1]; next } $1 in w { print FNR }' /both /all) > /t/set_ftrace_filter
echo "ready for probes"
$b sleep 5
echo woken
echo function > /t/current_tracer
echo 1 > /t/options/sym-addr
echo 1 > /t/options/func_stack_trace
echo 1 > /t/options/function-fork
$b sh -c 'echo $$ > /t/set_ftrace_pid; echo 1 > /t/tracing_on
    i=0; while [ $i -lt 3 ]; do i=$((i+1))
        /bin/busybox ls -l / /bin /p/self > /tmp/ls
        /bin/busybox cat /p/self/maps /tmp/ls | /bin/busybox wc > /tmp/wc
        /bin/busybox mv /tmp/wc /tmp/wc2; /bin/busybox ln -s /tmp/wc2 /tmp/l$i; /bin/busybox mkdir /tmp/d$i
        /bin/busybox mount -t tmpfs x /tmp/d$i; /bin/busybox umount /tmp/d$i; /bin/busybox rmdir /tmp/d$i
        /bin/busybox sleep 0.02 & wait
    done
    /bin/busybox dd if=/dev/zero of=/tmp/z bs=1M count=40 2> /dev/null
    cd /tmp
    for c in "df" "free" "ps" "stat ls" "chmod 600 ls" "chown 1:2 ls" "touch new" "cp ls copy" "tar cf tar ls copy" "tar xf tar" \
        "mkfifo fifo" "mknod node c 1 3" "sync" "fsync ls" "readlink l1" "nice true" "find . -name ls" "du" "head -c 9 node" \
        "ifconfig lo 127.0.0.1 up" "ping -c 1 127.0.0.1" "sysctl kernel.ostype" "truncate -s 3 ls" "flock ls true" "renice 5 1" \
        "chroot . /x" "setsid true" "timeout 9 true" "hostname x" "cmp ls copy" "rm tar copy fifo" "kill -0 1" "swapon z" "date -s 2030-01-01"; do
        /bin/busybox $c > /dev/null 2>&1
    done
    echo 0 > /t/tracing_on'
echo "stacks: traced"
# The kernel prints nothing into the lines.
echo 1 > /p/sys/kernel/printk
$b awk '
function flush() { if (a != "") print "S " t " " f a; a = "" }
/<-/ { flush(); split($0, p, " <-"); n = split(p[1], w, " "); f = w[n - 1]; match($0, /-[0-9]+ /); t = substr($0, RSTART + 1, RLENGTH - 2); open = (seen[f]++ < 10); next }
/^ *=>/ { if (open) { s = $NF; gsub(/[<>]/, "", s); a = a " " substr(s, length(s) - 7) } }
END { flush() }
' /t/trace
echo stacks: done
$b poweroff -f
"#;

/// Loads a module, then reads a file under a return probe of the guest's own.
const MODULE_AND_TRACER: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /t
$b mount -t tracefs t /t
IFS=,; for m in ${modload}; do $b insmod $m; done; unset IFS
echo 'r:own vfs_read' > /t/kprobe_events
echo 1 > /t/events/kprobes/own/enable
$b dd if=/init of=/dev/null bs=64
$b cat /t/kprobe_profile
echo stacks: done
$b poweroff -f
"#;

/// A generator of numbers that depend on the seed alone.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let limit_wide = limit as u64;
        usize::try_from((mixed ^ (mixed >> 31)) % limit_wide).unwrap_or(0)
    }
}

/// Functions that ftrace can trace and whose name is unique, at most `most` at random.
fn chosen(stock: &Stock, most: usize) -> Vec<String> {
    let symbols = stock.kernel.symbols();
    let is_traced = |symbol: &Symbol| {
        let sites = stock.kernel.sites();
        let site = sites.overlapping(symbol.address, 16);
        site.is_some_and(|site| {
            // A function whose next instruction the kernel patches, too, takes a debug register.
            let mut behind = sites.all_overlapping(site.end(), 8);
            site.kind == PatchKind::Ftrace
                && !behind.any(|other| other.kind.when() == PatchTime::Runtime)
        })
    };
    let patterns = BUSY.map(|start| format!("{start}*"));
    let matching = patterns
        .iter()
        .flat_map(|pattern| symbols.matching(pattern));
    let mut names: Vec<String> = matching
        .filter(|symbol| symbol.is_text() && is_traced(symbol))
        .map(|symbol| symbol.name)
        .filter(|name| !name.contains('.') && symbols.lookup_all(name).len() == 1)
        .collect();
    let mut random = Random(SEED);
    let mut chosen = BTreeSet::new();
    while chosen.len() < most && !names.is_empty() {
        chosen.insert(names.swap_remove(random.below(names.len())));
    }
    chosen.into_iter().collect()
}

/// The script, with the functions for the guest's tracer.
fn script(functions: &[String]) -> String {
    SCRIPT.replace("FUNCTIONS", &functions.join("\n"))
}

/// A hit by thread and function.
type Key = (i32, String);

/// The lower halves of the addresses of a stack.
type Addresses = Vec<String>;

/// The stacks that the guest's tracer has, in order.
fn theirs(ran: &Ran) -> BTreeMap<Key, Vec<Addresses>> {
    let mut stacks: BTreeMap<Key, Vec<Addresses>> = BTreeMap::new();
    for line in ran.console.lines() {
        let mut words = line.trim().split(' ');
        if words.next() != Some("S") {
            continue;
        }
        let (Some(thread), Some(function)) = (words.next(), words.next()) else {
            panic!("{line}");
        };
        let key = (thread.parse().expect("a number"), function.to_owned());
        let stack = words.map(str::to_owned).collect();
        stacks.entry(key).or_default().push(stack);
    }
    stacks
}

/// The hits of the run since the guest has begun to trace, in order.
fn ours(ran: &Ran) -> BTreeMap<Key, Vec<Hit>> {
    let mut stacks: BTreeMap<Key, Vec<Hit>> = BTreeMap::new();
    let hits = ran.hits().into_iter();
    for hit in hits.skip_while(|hit| &*hit.probe != SWITCH) {
        let function = hit.probe.trim_start_matches("kprobe:").to_owned();
        let thread = hit.task.as_ref().map_or(0, |task| task.tid);
        stacks.entry((thread, function)).or_default().push(hit);
    }
    stacks
}

/// The lower half of an address, in hex, as the guest's tracer prints the addresses.
fn lower_half(address: Hex) -> String {
    let digits = address.to_string();
    let start = digits.len().saturating_sub(8);
    digits[start..].to_owned()
}

/// Whether a frame of the guest's tracer is the probed function itself: its call of the tracer returns to a few bytes behind the probe.
fn is_probed(theirs: &str, probed: Hex) -> bool {
    // The tracer's trampoline has a name in place of an address.
    let Ok(address) = u32::from_str_radix(theirs, 16) else {
        return false;
    };
    let probed = u32::from_str_radix(&lower_half(probed), 16).expect("an address");
    address.wrapping_sub(probed) < 16
}

/// Whether an address is in the tracer's trampoline, from which the `first` address of a stack is: the same place, or one on the same page.
fn is_in_tracer(address: &str, first: &str) -> bool {
    let page = |address: &str| Some(u32::from_str_radix(address, 16).ok()? >> 12);
    address == first || (page(address).is_some() && page(address) == page(first))
}

/// Whether the callers are the same. The guest's tracer has the function in front of the callers, and frames of its own in front of the
/// function.
fn are_equal(theirs: &[String], ours: &Hit) -> bool {
    let frames = ours.stack.as_deref().unwrap_or_default();
    let callers = frames.iter().skip(1);
    let callers: Addresses = callers.map(|frame| lower_half(frame.address)).collect();
    let Some((function, in_guest)) = theirs
        .len()
        .checked_sub(callers.len() + 1)
        .and_then(|own| theirs[own..].split_first())
    else {
        return false;
    };
    is_probed(function, ours.ip) && in_guest == callers
}

/// A run of `script` with probes at `functions` from the traced work on.
fn start_with_probes(
    stock: &Stock,
    script: &str,
    functions: &[String],
    probe: impl Fn(AddProbe) -> AddProbe,
) -> Running {
    let mut running = live::start(stock, script);
    live::add_when_ready(&mut running, |client| {
        let specs = functions.iter().map(|name| format!("kprobe:{name}"));
        let specs: Vec<String> = specs.chain([SWITCH.to_owned()]).collect();
        for specs in specs.chunks(MOST_ADDED) {
            add(client, specs, &probe);
        }
    });
    running
}

/// Adds probes. If all four debug registers are taken, leaves out each probe that needs one.
fn add(client: &Client, specs: &[String], probe: impl Fn(AddProbe) -> AddProbe) {
    let added = specs.iter().map(|spec| probe(AddProbe::new(spec.clone())));
    let mut added: Vec<AddProbe> = added.collect();
    loop {
        let refused = match client.add(&AddProbes::Many(added.clone())) {
            Ok(_) => return,
            Err(ClientError::Refused(refused)) => refused,
            Err(error) => panic!("{error}"),
        };
        assert!(refused.detail.contains("debug registers"), "{refused:?}");
        let pointer = refused.pointer.as_deref().unwrap_or_default();
        let place = pointer.trim_matches(|c: char| !c.is_ascii_digit());
        added.remove(place.parse().expect("a number"));
    }
}

fn check(image: &str, sample: Sample) {
    let stock = Stock::fetch(image);
    let mut functions = chosen(&stock, sample.chosen);
    // The guest's tracer is of no use here, and without a function it would trace all.
    let counting = script(&[IN_INTERRUPT.to_owned()]);
    let running = start_with_probes(&stock, &counting, &functions, |probe| AddProbe {
        action: Some(ProbeAction::Count),
        ..probe
    });
    let summary = running.finish().summary();
    functions.retain(|function| {
        let spec = format!("kprobe:{function}");
        let mut probes = summary.probes.iter();
        let counted = probes.find(|probe| probe.probe == spec);
        counted.is_some_and(|probe| (1..=MAX_HITS).contains(&probe.hits))
    });
    let mut random = Random(SEED);
    while functions.len() > sample.compared {
        functions.swap_remove(random.below(functions.len()));
    }
    functions.push(IN_INTERRUPT.to_owned());

    let tracing = script(&functions);
    let mut running = start_with_probes(&stock, &tracing, &functions, |probe| AddProbe {
        stack: true,
        ..probe
    });
    live::remove_behind(&mut running, TRACED);
    let ran = running.finish();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    assert!(ran.console.contains("stacks: done"), "{}", ran.report());

    let (theirs, ours) = (theirs(&ran), ours(&ran));
    let mut equal = BTreeSet::new();
    let (mut stacks, mut unequal, mut in_interrupts) = (0, Vec::new(), 0);
    // Hits between two stacks of the guest's.
    let mut skipped: Vec<&Hit> = Vec::new();
    for (key, theirs) in &theirs {
        let mut hits = ours.get(key).map_or(&[][..], Vec::as_slice).iter();
        // The guest's tracer starts later: the hits before its first stack are not skipped.
        let mut has_begun = false;
        let mut left_out: usize = 0;
        for stack in theirs {
            // An interrupt of the guest's own tracer is not compared: the beginning of the tracer's frames is not clear.
            let mut behind = stack.iter().skip(1);
            if behind.any(|address| is_in_tracer(address, &stack[0])) {
                left_out += 1;
                continue;
            }
            stacks += 1;
            // The guest's buffer holds some of the hits, in the same order.
            let mut behind = hits.clone().enumerate();
            let Some((before, hit)) = behind.find(|(_, hit)| are_equal(stack, hit)) else {
                unequal.push((key, stack));
                continue;
            };
            let passed: Vec<&Hit> = hits.by_ref().take(before + 1).collect();
            // A tick may interrupt the guest's tracer, which records no other function meanwhile.
            if has_begun && key.1 != IN_INTERRUPT {
                skipped.extend(&passed[..before.saturating_sub(left_out)]);
            }
            (has_begun, left_out) = (true, 0);
            equal.insert(&key.1);
            let frames = hit.stack.iter().flatten();
            let mut symbols = frames.filter_map(|frame| frame.symbol.as_deref());
            let interrupted = symbols.any(|symbol| symbol.starts_with(INTERRUPT));
            in_interrupts += usize::from(interrupted && symbols.next().is_some());
        }
    }
    println!(
        "{image}: {} of {stacks} stacks are equal, of {} functions; {in_interrupts} in interrupts of the kernel; {} hits skipped",
        stacks - unequal.len(),
        equal.len(),
        skipped.len()
    );
    assert!(
        unequal.is_empty(),
        "{} of {stacks}: {:?}",
        unequal.len(),
        unequal.first()
    );
    let skipped: Vec<_> = skipped.iter().map(|hit| (&hit.probe, hit.ts_ns)).collect();
    assert!(skipped.is_empty(), "{skipped:?}\n{}", ran.report());
    assert!(equal.len() >= sample.least, "{equal:?}\n{}", ran.report());
    assert!(in_interrupts > 0, "{}", ran.report());
}

fn check_module_and_tracer(image: &str) {
    let stock = Stock::fetch(image);
    let probe = |at| format!("[[probe]]\nat = \"kprobe:{at}\"\nstack = true\n");
    let probes = [probe("misc_register"), probe("rw_verify_area")].concat();
    let ran = Boot::with_script(&stock, MODULE_AND_TRACER)
        .modules(&["tun"])
        .expecting(&probes)
        .run();
    assert!(ran.console.contains("stacks: done"), "{}", ran.report());
    let hits = ran.hits();
    let called_by_module = hits.iter().filter_map(|hit| {
        let caller = hit.stack.as_deref()?.get(1)?;
        (caller.module.as_deref() == Some("tun")).then_some((hit.stack.as_deref()?, caller))
    });
    let file = BuildId::of_elf(&stock.module("tun")).map(|id| id.to_string());
    assert!(file.is_some());
    for (stack, caller) in called_by_module {
        assert_eq!(caller.build_id, file, "{caller:?}");
        assert!(caller.is_return_address && !stack[0].is_return_address);
        assert_eq!(stack[0].build_id, None);
    }
    let stacks: Vec<(Vec<String>, Option<String>)> = hits
        .into_iter()
        .map(|hit| {
            let frames = hit.stack.iter().flatten().map(ToString::to_string);
            (frames.collect(), hit.stack_incomplete)
        })
        .collect();
    let from_module = stacks.iter().find(|(frames, _)| {
        frames
            .get(1)
            .is_some_and(|frame| frame.starts_with("tun_init+") && frame.ends_with(" [tun]"))
    });
    let (frames, incomplete) = from_module.expect("a call of the module's");
    assert!(frames[2].starts_with("do_one_initcall+"), "{frames:?}");
    assert_eq!(incomplete.as_deref(), None, "{frames:?}");
    let traced = stacks.iter().find(|(_, incomplete)| incomplete.is_some());
    let Some((frames, incomplete)) = traced else {
        panic!("no read with a tracer: {stacks:?}\n{}", ran.report());
    };
    assert!(frames[1].starts_with("vfs_read+"), "{frames:?}");
    let last = frames.last().expect("frames");
    let is_tracer =
        last.contains("kretprobe_trampoline+0x0/") || last.contains("rethook_trampoline+0x0/");
    assert!(frames.len() == 3 && is_tracer, "{frames:?}");
    let why = incomplete.as_deref().unwrap_or_default();
    assert!(
        why.starts_with("a tracer of the guest has replaced"),
        "{why}"
    );
}

#[test]
fn modules_and_tracers_are_in_stacks_of_debian_5_10() {
    check_module_and_tracer("debian-5.10");
}

#[test]
fn modules_and_tracers_are_in_stacks_of_debian_6_1() {
    check_module_and_tracer("debian-6.1");
}

#[test]
fn modules_and_tracers_are_in_stacks_of_debian_6_12() {
    check_module_and_tracer("debian-6.12");
}

#[test]
fn modules_and_tracers_are_in_stacks_of_debian_sid() {
    check_module_and_tracer("debian-sid");
}

#[test]
fn stacks_of_debian_5_10_equal_those_of_the_guest() {
    check("debian-5.10", SMALL);
}

#[test]
fn stacks_of_debian_6_1_equal_those_of_the_guest() {
    check("debian-6.1", LARGE);
}

#[test]
fn stacks_of_debian_6_12_equal_those_of_the_guest() {
    check("debian-6.12", SMALL);
}

#[test]
fn stacks_of_debian_sid_equal_those_of_the_guest() {
    check("debian-sid", SMALL);
}
