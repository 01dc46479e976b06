//! The fields of tracepoints of stock kernels, compared with the lines that the guest's own ftrace prints for the same hits.

use std::collections::BTreeMap;

use events::{Field, FieldValue, Fields, Hit, Number};
use manifest::GuestEnd;

use crate::boot::{Ran, Stock};
use crate::live;
use crate::tracepoints::of;

const EVENTS: [&str; 4] = [
    "sched:sched_switch",
    "sched:sched_process_fork",
    // The name of the file is a string behind the fields.
    "sched:sched_process_exec",
    "signal:signal_generate",
];
/// The guest's words behind the trace.
const TRACED: &str = "traced all";
/// The guest prints the list of fields of each event, and lines of its own trace: all, but of the switches the first hundred. Where a hit takes
/// longer than a tick of the guest, there are thousands of switches, and the console would take minutes.
const SCRIPT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mount -t tracefs tracefs /sys
events="sched/sched_switch sched/sched_process_fork sched/sched_process_exec signal/signal_generate"
for event in $events
do
    $b sed "s,^,format $event ," /sys/events/$event/format
done
echo ready for probes
$b sleep 8
echo woken
for event in $events
do
    echo 1 >/sys/events/$event/enable
done
for signal in 31 33 35
do
    $b sh -c "kill -$signal \$\$"
    $b sh -c '/bin/busybox true; /bin/busybox sleep 0.02'
done
for event in $events
do
    echo 0 >/sys/events/$event/enable
done
echo traced all
$b cp /sys/trace /trace
$b grep -v ' sched_switch: ' /trace | $b sed 's,^,trace ,'
$b grep ' sched_switch: ' /trace | $b head -n 100 | $b sed 's,^,trace ,'
$b poweroff -f
"#;

/// The lines of the console behind `word`.
fn lines<'r>(ran: &'r Ran, word: &'r str) -> impl Iterator<Item = &'r str> {
    let lines = ran.console.lines();
    lines.filter_map(move |line| line.trim_end().strip_prefix(word)?.strip_prefix(' '))
}

/// The names of the fields of the event `name`, as the guest lists them.
fn listed<'r>(ran: &'r Ran, name: &str) -> Vec<&'r str> {
    let event = name.replace(':', "/");
    let name = |line: &'r str| {
        let declared = line.strip_prefix(&event)?.trim().strip_prefix("field:")?;
        let declared = declared.split(';').next()?;
        // The size of an array in the field follows its name.
        declared.rsplit([' ', '*']).next()?.split('[').next()
    };
    let names = lines(ran, "format").filter_map(name);
    names.filter(|name| !name.starts_with("common_")).collect()
}

/// The values in each line that the guest has printed for the event `name`, in order.
fn traced(ran: &Ran, name: &str) -> Vec<Vec<String>> {
    let (_, name) = name.split_once(':').expect("a group");
    let start = format!(": {name}: ");
    let printed = lines(ran, "trace").filter_map(|line| line.split_once(&start));
    let values = |(_, values): (&str, &str)| {
        let values = values.split_whitespace().filter(|word| *word != "==>");
        let values = values.filter_map(|word| word.split_once('='));
        values.map(|(_, value)| value.to_owned()).collect()
    };
    printed.map(values).collect()
}

/// The value as the guest prints it.
fn printed(field: &Field) -> String {
    match (&*field.name, &field.value) {
        ("prev_state", FieldValue::Number(Number::Integer(state))) => letters(*state),
        (_, FieldValue::Number(number)) => number.to_string(),
        (_, FieldValue::Text(text)) => text.clone(),
        (_, value) => panic!("{value:?}"),
    }
}

/// The state of a task: a letter for each bit, and a plus for a task that another one takes the processor from.
fn letters(state: i64) -> String {
    let bits = "SDTtXZPI".chars().enumerate();
    let set = bits.filter(|(bit, _)| state >> bit & 1 != 0);
    let letters: Vec<String> = set.map(|(_, letter)| letter.to_string()).collect();
    let preempted = if state & 0x100 == 0 { "" } else { "+" };
    match &letters[..] {
        [] => format!("R{preempted}"),
        letters => format!("{}{preempted}", letters.join("|")),
    }
}

/// The fields of a hit, as the guest prints them.
fn shown(fields: &Fields) -> Vec<String> {
    fields.0.iter().map(printed).collect()
}

fn check(image: &str) {
    let stock = Stock::fetch(image);
    let probes = EVENTS.map(|event| format!("tracepoint:{event}"));
    let mut running = live::start_with_probes(&stock, SCRIPT, &probes);
    live::remove_behind(&mut running, TRACED);
    let ran = running.finish();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    assert_eq!(ran.summary().guest.end, GuestEnd::Poweroff);
    ran.assert_well();
    let hits = ran.hits();
    let mut compared = BTreeMap::new();
    for event in EVENTS {
        let hits = of(&hits, &format!("tracepoint:{event}"));
        let listed = listed(&ran, event);
        assert!(!listed.is_empty(), "{}", ran.report());
        let fields: Vec<&Fields> = hits.iter().filter_map(|hit| hit.fields.as_ref()).collect();
        assert_eq!(fields.len(), hits.len(), "{event}: {:#?}", ran.notes());
        for fields in &fields {
            let names: Vec<&str> = fields.0.iter().map(|field| &*field.name).collect();
            assert_eq!(names, listed, "{event}");
        }
        let all: Vec<_> = fields.into_iter().map(shown).collect();
        // The guest traces a part of the time: its lines are hits without a gap.
        let traced = traced(&ran, event);
        let is_part = all.windows(traced.len()).any(|part| part == traced);
        assert!(is_part, "{event}: {traced:#?}\nof {all:#?}");
        compared.insert(event, traced.len());
    }
    let least = BTreeMap::from([
        ("sched:sched_switch", 20),
        ("sched:sched_process_fork", 6),
        ("sched:sched_process_exec", 9),
        ("signal:signal_generate", 3),
    ]);
    let is_enough = least.iter().all(|(event, least)| compared[event] >= *least);
    assert!(is_enough, "{compared:?}");
    // The names of three programs: strings behind the fields.
    let execs = of(&hits, "tracepoint:sched:sched_process_exec");
    let busybox = FieldValue::Text("/bin/busybox".to_owned());
    let name = |hit: &&&Hit| hit.fields.as_ref()?.get("filename").cloned();
    let named = execs
        .iter()
        .filter(|hit| name(hit).as_ref() == Some(&busybox));
    assert!(named.count() >= 3);
}

#[test]
fn fields_of_debian_5_10_are_those_that_the_guest_prints() {
    check("debian-5.10");
}

#[test]
fn fields_of_debian_6_1_are_those_that_the_guest_prints() {
    check("debian-6.1");
}

#[test]
fn fields_of_debian_6_12_are_those_that_the_guest_prints() {
    check("debian-6.12");
}

#[test]
fn fields_of_debian_sid_are_those_that_the_guest_prints() {
    check("debian-sid");
}
