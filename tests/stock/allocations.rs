//! The C library of this machine in a stock guest, probed in every process from the first: each call returns or is counted, and each block that a
//! process frees has been allocated.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use events::{Event, Task};
use manifest::GuestEnd;

use crate::boot::{Boot, Stock, probe};
use crate::program_stacks::libraries;

const SHELL: &str = "/bin/bash";
const FILTERS: [&str; 2] = ["/usr/bin/sort", "/usr/bin/wc"];
/// The shell forks, starts other programs, and reads from pipes; PID 1 is the shell.
const SCRIPT: &str = r#"#!/bin/bash
echo loaded
words="one three two"
for round in 1 2 3
do
    list[$round]=$(for word in $words; do echo $word $round; done | /usr/bin/sort)
    (words="$words $round"; echo "$words" | /usr/bin/wc -w)
done
echo "${list[@]}" | /usr/bin/wc -w
/bin/busybox poweroff -f
"#;
/// The function of the shell that runs a command. Subshells end within it.
const COMMANDS: &str = "uretprobe:/bin/bash:execute_command";

/// The programs, and the libraries that the loader of this machine maps for the programs.
fn files() -> BTreeSet<PathBuf> {
    let programs = [SHELL].into_iter().chain(FILTERS);
    let all = programs.flat_map(|program| {
        let own = PathBuf::from(program);
        libraries(program).into_iter().chain([own])
    });
    all.collect()
}

/// What the processes have allocated and freed, by the order of the events.
#[derive(Default)]
struct Heap {
    /// The blocks that a process has ever had, those of its ancestors at its first call included.
    allocated: BTreeMap<i32, BTreeSet<u64>>,
    frees: u64,
    /// The freed blocks whose allocation was not seen.
    unknown: u64,
}

impl Heap {
    fn of(&mut self, task: &Task) -> &mut BTreeSet<u64> {
        let parent = task.parent.as_ref().map(|parent| parent.pid);
        if !self.allocated.contains_key(&task.pid) {
            let inherited = parent.and_then(|pid| self.allocated.get(&pid));
            let inherited = inherited.cloned().unwrap_or_default();
            self.allocated.insert(task.pid, inherited);
        }
        self.allocated.entry(task.pid).or_default()
    }

    fn free(&mut self, task: &Task, block: u64) {
        self.frees += 1;
        let was_allocated = block == 0 || self.of(task).contains(&block);
        self.unknown += u64::from(!was_allocated);
    }
}

#[test]
fn allocations_of_every_process_of_debian_6_1_return_and_frees_are_of_allocated_blocks() {
    let files = files();
    let is_libc = |path: &&PathBuf| path.ends_with("libc.so.6");
    let library = files.iter().find(is_libc).expect("the C library");
    let library = library.to_str().expect("UTF-8");
    let allocating = ["malloc", "calloc", "realloc"];
    let returning = allocating.map(|name| format!("uretprobe:{library}:{name}"));
    let freeing = ["free", "realloc"].map(|name| format!("uprobe:{library}:{name}"));

    let stock = Stock::fetch("debian-6.1");
    let mut boot = Boot::with_script(&stock, SCRIPT).cpus(2).counted(COMMANDS);
    for file in &files {
        boot = boot.host_file(file);
    }
    for spec in returning.iter().chain(&freeing) {
        boot = boot.probe(spec);
    }
    let ran = boot.run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    let summary = ran.summary();
    assert_eq!(summary.guest.end, GuestEnd::Poweroff);
    // Four words of the shell's own, and nine with three numbers.
    assert!(ran.console.contains("\n18\r\n"), "{}", ran.report());

    let mut heap = Heap::default();
    for event in ran.events() {
        match event {
            Event::Return(returned) => {
                let task = returned.task.expect("a task");
                heap.of(&task).insert(returned.retval.0);
            }
            Event::Hit(hit) => heap.free(hit.task.as_ref().expect("a task"), hit.args[0].0),
            Event::Note(_) | Event::Summary(_) => (),
        }
    }
    assert!(heap.allocated.len() > 12, "{:?}", heap.allocated.keys());
    assert!(heap.frees > 500, "{}", heap.frees);
    let mut jumped = 0;
    for name in &returning {
        let summed = probe(&summary, name);
        // `realloc` and `calloc` of this library may end with a jump to another function.
        let tail_calls = summed.missed.get("tail-call").copied().unwrap_or_default();
        let missed: u64 = summed.missed.values().sum();
        assert_eq!(missed, tail_calls, "{summed:?}");
        assert_eq!(summed.in_flight, Some(0), "{summed:?}");
        assert_eq!(Some(summed.hits - missed), summed.returns, "{summed:?}");
        jumped += missed;
    }
    assert!(probe(&summary, &returning[0]).missed.is_empty());
    assert!(heap.unknown <= jumped, "{} {jumped}", heap.unknown);
    let summed = probe(&summary, COMMANDS);
    let missed: u64 = summed.missed.values().sum();
    let returned = summed.returns.expect("a count") + summed.in_flight.expect("a count");
    assert!(
        summed.returns > Some(5) && summed.hits == returned + missed,
        "{summed:?}"
    );
}
