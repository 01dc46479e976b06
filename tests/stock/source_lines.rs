//! Probes at source lines and inlined copies of stock kernels, by Debian's debug files: the variables equal the arguments of the system call.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;

use address::Gva;
use debuginfo::DebugInfo;
use events::{Hit, Number, Param};
use introspect::signature::Variable;
use manifest::GuestEnd;

use crate::boot::{Boot, Stock};

/// The function behind the system call `read`, and the function that reads the file.
const FUNCTION: &str = "ksys_read";
const READER: &str = "vfs_read";
const FILE: &str = "fs/read_write.c";
const CALL: &str = "syscall:read";
const SCRIPT: &str = "#!/bin/busybox sh
for bytes in 7 77 777; do
    /bin/busybox dd if=/bin/busybox of=/copy bs=$bytes count=3 2>/dev/null
done
/bin/busybox poweroff -f
";
/// The reads of the three copies.
const SIZES: [u64; 9] = [7, 7, 7, 77, 77, 77, 777, 777, 777];
/// The parameters of the function, in the order of the arguments of the call.
const PARAMETERS: [&str; 3] = ["fd", "buf", "count"];

/// The debug file of the stock kernel `image`, fetched if need be.
fn debug_file(image: &str) -> PathBuf {
    let fetched = guest_images::fetch(&format!("{image}-debug"), &|step| println!("{step}"));
    fetched.expect("a network or a filled image cache").path()
}

/// A line of [`FUNCTION`], and a function that is inlined into it or into [`READER`].
#[derive(Debug)]
struct Within {
    line: u64,
    inlined: String,
}

fn has(variables: &[Variable], name: &str) -> bool {
    let found = variables.iter().find(|variable| variable.name == name);
    found.is_some_and(|variable| variable.operand.is_some())
}

/// The addresses of a function.
fn code(info: &DebugInfo, function: &str) -> Range<u64> {
    let symbol = info.symbols().lookup(function).expect(function);
    symbol.address.0..symbol.end().expect("an end").0
}

impl Within {
    /// Of the lines of the function with one place, at which all parameters have values, that with the highest address; and a function that has the
    /// descriptor or the buffer.
    fn find(info: &mut DebugInfo) -> Self {
        let all = [FUNCTION, READER].map(|function| code(info, function));
        let (mut lines, mut inlined) = (BTreeSet::new(), BTreeSet::new());
        for address in all.iter().cloned().flatten() {
            let frames = info.lines_at(Gva(address)).expect("lines");
            match &frames[..] {
                [frame] if frame.file.as_deref() == Some(FILE) => {
                    lines.insert(frame.line);
                }
                [.., frame, _] => inlined.extend(frame.function.clone()),
                _ => (),
            }
        }
        let lines = lines.into_iter().filter_map(|line| {
            let places = info.places_of_line(FILE, line).unwrap_or_default();
            let variables = info.variables(&places).expect("variables");
            let [variables] = &variables[..] else {
                return None;
            };
            let address = places[0].address.0;
            let fits = PARAMETERS.iter().all(|name| has(variables, name));
            (fits && all[0].contains(&address)).then_some((address, line))
        });
        let (_, line) = lines.max().expect("a line");
        let is_compared = |function: &&String| {
            let places = info.inlined_copies(function).unwrap_or_default();
            let variables = info.variables(&places).expect("variables");
            let mut copies = places.iter().zip(&variables);
            copies.any(|(place, variables)| {
                all.iter().any(|code| code.contains(&place.address.0))
                    && PARAMETERS[..2].iter().any(|name| has(variables, name))
            })
        };
        let copy = inlined.iter().find(is_compared);
        let copy = copy.unwrap_or_else(|| panic!("{inlined:?}"));
        Self {
            line,
            inlined: copy.clone(),
        }
    }
}

fn tid(hit: &Hit) -> Option<i32> {
    hit.task.as_ref().map(|task| task.tid)
}

fn value(params: &[Param], name: &str) -> Option<u64> {
    let found = params.iter().find(|param| &*param.name == name)?;
    Some(match found.typed.value? {
        Number::Integer(number) => number.cast_unsigned(),
        Number::Hex(number) => number.0,
        other => panic!("{name}: {other:?}"),
    })
}

fn check(image: &str) {
    let stock = Stock::fetch(image);
    let mut info = DebugInfo::open(&debug_file(image)).expect("a debug file");
    let Within { line, inlined } = Within::find(&mut info);
    // The command finds the file in the image cache.
    let ran = Boot::with_script(&stock, SCRIPT)
        .probe(&format!("kprobe:{FILE}:{line}"))
        .probe(&format!("kprobe:{inlined}:inlined"))
        .probe(CALL)
        .run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    assert_eq!(ran.summary().guest.end, GuestEnd::Poweroff);
    ran.assert_well();
    let hits = ran.hits();
    let (mut sizes, mut copies) = (Vec::new(), 0);
    for (at, hit) in hits.iter().enumerate() {
        let is_in = |function| hit.symbol.starts_with(&format!("{function}+"));
        if &*hit.probe == CALL || !(is_in(FUNCTION) || is_in(READER)) {
            continue;
        }
        let is_of_task = |call: &&Hit| &*call.probe == CALL && tid(call) == tid(hit);
        let call = hits[..at].iter().rev().find(is_of_task);
        let call = call.unwrap_or_else(|| panic!("{hit:?}\n{}", ran.report()));
        let params = hit.params.as_deref().expect("variables");
        let compared = PARAMETERS.into_iter().zip(call.args);
        let compared = compared.filter_map(|(name, argument)| {
            let value = value(params, name)?;
            assert_eq!(value, argument.0, "{name}: {hit:?}");
            Some(name)
        });
        match compared.collect::<Vec<_>>()[..] {
            [] => panic!("{hit:?}"),
            [_, _, _] if is_in(FUNCTION) => sizes.extend(value(params, "count")),
            _ => copies += 1,
        }
    }
    assert!(copies >= SIZES.len(), "{copies}\n{}", ran.report());
    sizes.retain(|size| SIZES.contains(size));
    assert_eq!(sizes, SIZES, "{}", ran.report());
}

#[test]
fn variables_of_debian_5_10_are_those_of_the_call() {
    check("debian-5.10");
}

#[test]
fn variables_of_debian_6_1_are_those_of_the_call() {
    check("debian-6.1");
}

#[test]
fn variables_of_debian_6_12_are_those_of_the_call() {
    check("debian-6.12");
}

#[test]
fn variables_of_debian_sid_are_those_of_the_call() {
    check("debian-sid");
}
