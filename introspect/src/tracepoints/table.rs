//! The names of tracepoints, and the sites where the kernel passes them.
//!
//! Each event of ftrace has a `struct trace_event_call`, which names its group and points to the `struct tracepoint`. Each site is a jump label
//! whose key is part of the tracepoint. While the guest has the tracepoint off, the site is a nop; the target of the jump is a block that
//! computes the tracepoint's arguments. A jump label whose block does not call the tracepoint's functions is no site (`calls.rs`).
//!
//! ```text
//!  __start_ftrace_events ─▶ trace_event_call { class ─▶ { system "sched" }, tp ─▶ tracepoint { key, …, funcs } }
//!                                                                                              ▲
//!  __start___jump_table ─▶ jump_entry { code: the site, target: the block, key ────────────────┘ }
//! ```
//!
//! The tables of modules are read from the guest ([`ModuleTracepoints`](super::ModuleTracepoints)).

use std::collections::BTreeMap;
use std::sync::Arc;

use address::Gva;

use super::TracepointSite;
use super::labels::{ENTRY_BYTES, Labels, labels};
use super::layout::{Layout, TracepointVariable, is_name};
use crate::btf::Btf;
use crate::image::ImageReader;
use crate::{ImageSource, SymbolTable};

const EVENTS: [&str; 2] = ["__start_ftrace_events", "__stop_ftrace_events"];
const JUMPS: [&str; 2] = ["__start___jump_table", "__stop___jump_table"];
/// The beginning of the name of a tracepoint's variable.
const VARIABLE: &str = "__tracepoint_";
/// Stock kernels have 10 000 jump labels.
const MAX_JUMPS: u64 = 1 << 20;
/// The blocks of a stock kernel take some hundred thousand instructions. With a broken file, tracepoints beyond have no sites.
const MAX_INSTRUCTIONS: usize = 1 << 22;

/// A tracepoint of the kernel proper, at link-time addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracepoint {
    /// The name without the group: `sched_switch`.
    pub name: Arc<str>,
    /// The `trace_event_call` of the event.
    pub event: Gva,
    /// The tracepoint's variable.
    pub variable: TracepointVariable,
    /// In the order of their addresses. Shared, because a broken file may have many events for a tracepoint.
    pub sites: Arc<[TracepointSite]>,
    /// The number of jump labels at which the kernel only asks whether the tracepoint is on.
    pub questions: usize,
}

/// All tracepoints of a kernel that are events of ftrace.
#[derive(Clone, Debug, Default)]
pub struct Tracepoints {
    /// By group and name: `sched:sched_switch`.
    named: BTreeMap<String, Tracepoint>,
}

impl Tracepoints {
    /// Reads the tables of `source`; empty if the kernel has none, or if its types do not have their layout.
    #[must_use]
    pub fn read(source: &dyn ImageSource, symbols: &SymbolTable, types: &Btf) -> Self {
        let named = Layout::new(types).map(|layout| events(&layout, source, symbols));
        Self {
            named: named.unwrap_or_default(),
        }
    }

    /// The tracepoint `name`, with its group: `sched:sched_switch`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Tracepoint> {
        self.named.get(name)
    }

    /// All tracepoints with their names, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tracepoint)> {
        let named = self.named.iter();
        named.map(|(name, tracepoint)| (name.as_str(), tracepoint))
    }
}

fn events(
    layout: &Layout,
    source: &dyn ImageSource,
    symbols: &SymbolTable,
) -> BTreeMap<String, Tracepoint> {
    let image = ImageReader::new(source);
    let labels = all_labels(image, symbols);
    let mut left = MAX_INSTRUCTIONS;
    // Several events may have a tracepoint in common.
    let mut known = BTreeMap::new();
    let mut named = BTreeMap::new();
    let [start, stop] = EVENTS;
    for event in image.table(symbols, start, stop) {
        let found = || {
            let at = layout.tracepoint_of(image, event)?;
            // The event of a system call has no tracepoint.
            let symbol = symbols.resolve(at).filter(|found| found.offset == 0)?;
            let name = symbol.symbol.name.strip_prefix(VARIABLE)?.to_owned();
            is_name(&name).then_some(())?;
            Some((at, name, layout.group_of(image, event)?))
        };
        let Some((at, name, group)) = found() else {
            continue;
        };
        let tracepoint = known.entry(at).or_insert_with(|| {
            let variable = layout.variable(image, at);
            let labels = labels.get(&variable.key).cloned().unwrap_or_default();
            let sites = passages(source, &variable, &labels, &mut left);
            Tracepoint {
                name: name.as_str().into(),
                event,
                variable,
                questions: labels.len() - sites.len(),
                sites,
            }
        });
        let tracepoint = tracepoint.clone();
        named.insert(
            format!("{group}:{name}"),
            Tracepoint {
                event,
                ..tracepoint
            },
        );
    }
    named
}

/// Those of `labels` at which the kernel passes the tracepoint.
fn passages(
    source: &dyn ImageSource,
    variable: &TracepointVariable,
    labels: &[TracepointSite],
    left: &mut usize,
) -> Arc<[TracepointSite]> {
    let mut read = |at, buf: &mut [u8]| source.read_linked(at, buf).is_ok();
    // The file has the calls of the trampoline.
    let key_of = |_| None;
    let mut is_passage = |site: &&TracepointSite| match &variable.call {
        Some(call) => call.is_made_by(site, &mut read, &key_of, left),
        None => true,
    };
    labels
        .iter()
        .filter(|site| is_passage(site))
        .copied()
        .collect()
}

fn all_labels(image: ImageReader<'_>, symbols: &SymbolTable) -> Labels {
    let [start, stop] = JUMPS.map(|label| symbols.address_of(label));
    let Some((start, stop)) = start.zip(stop) else {
        return Labels::new();
    };
    let count = stop.offset_from(start).unwrap_or(0) / ENTRY_BYTES;
    labels(image, start, count.min(MAX_JUMPS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SymbolTableBuilder;
    use crate::btf::synthetic::Blob;
    use crate::tracepoints::synthetic::Image;

    const BASE: u64 = 0xffff_ffff_8200_0000;
    const CALL: u64 = 0x100;
    const CLASS: u64 = 0x200;
    const TRACEPOINT: u64 = 0x300;
    const JUMP_TABLE: u64 = 0x400;
    const SITES: [u64; 2] = [0x900, 0x800];
    const TRAMPOLINE: u64 = 0xc80;

    /// The types of a kernel whose tracepoints have `key`, `funcs` and these members.
    fn types_with(members: &[(&str, u32)]) -> Btf {
        let mut blob = Blob::new();
        let long = blob.int("long", 8);
        let inner =
            blob.structure_in_bits("", (5, false), 8, &[("name", long, 0), ("tp", long, 0)]);
        blob.structure(
            "trace_event_call",
            64,
            &[("class", long, 16), ("", inner, 24)],
        );
        blob.structure("trace_event_class", 64, &[("system", long, 0)]);
        let all = [("key", 8), ("funcs", 40)];
        let all = all.iter().chain(members);
        let all: Vec<_> = all.map(|(name, at)| (*name, long, *at)).collect();
        blob.structure("tracepoint", 72, &all);
        blob.structure("tracepoint_ext", 64, &[("regfunc", long, 8)]);
        Btf::parse(blob.finish()).expect("types")
    }

    /// The types of a kernel whose tracepoints have a structure for rare members, or not.
    fn types(is_extended: bool) -> Btf {
        types_with(&[(if is_extended { "ext" } else { "regfunc" }, 24)])
    }

    fn read(types: &Btf) -> Tracepoints {
        read_changed(types, |_| ())
    }

    /// Two events, one without a tracepoint, and three jump labels, of which two have the tracepoint's key; with a change.
    fn read_changed(types: &Btf, change: impl FnOnce(&mut Image)) -> Tracepoints {
        let mut image = Image::zeroed(Gva(BASE), 0x1000);
        image.pointer(0, CALL);
        image.pointer(8, CALL + 0x40);
        image.pointer(CALL + 16, CLASS);
        image.pointer(CALL + 24, TRACEPOINT);
        image.pointer(CALL + 0x40 + 16, CLASS);
        image.pointer(CALL + 0x40 + 24, CLASS);
        image.pointer(CLASS, 0x280);
        image.put(0x280, b"sched\0");
        for (number, site) in (0..).zip([SITES[0], SITES[1], 0xa00]) {
            let entry = JUMP_TABLE + number * ENTRY_BYTES;
            image.near(entry, site);
            image.near(entry + 4, site + 0x40);
            // The flag of a likely branch.
            let key = if site == 0xa00 { 0x600 } else { TRACEPOINT + 8 };
            let distance = key.wrapping_sub(entry + 8) | 1;
            image.put(entry + 8, &distance.to_le_bytes());
        }
        change(&mut image);
        let mut symbols = SymbolTableBuilder::new();
        for (name, at) in [
            ("__start_ftrace_events", 0),
            ("__stop_ftrace_events", 16),
            ("__tracepoint_sched_switch", TRACEPOINT),
            ("__start___jump_table", JUMP_TABLE),
            ("__stop___jump_table", JUMP_TABLE + 3 * ENTRY_BYTES),
        ] {
            symbols.push(Gva(BASE + at), 'D', name);
        }
        Tracepoints::read(&image, &symbols.build(), types)
    }

    #[test]
    fn a_tracepoint_has_its_group_and_the_sites_of_its_key() {
        let all = read(&types(false));
        assert_eq!(
            all.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            ["sched:sched_switch"]
        );
        let found = all.get("sched:sched_switch").expect("there");
        assert_eq!(&*found.name, "sched_switch");
        assert_eq!(found.event, Gva(BASE + CALL));
        assert_eq!(found.variable.funcs, Gva(BASE + TRACEPOINT + 40));
        let site = |at| TracepointSite {
            at: Gva(BASE + at),
            block: Gva(BASE + at + 0x40),
        };
        assert_eq!(*found.sites, [site(0x800), site(0x900)]);
        assert!(!found.variable.is_prepared);
    }

    #[test]
    fn a_tracepoint_with_a_function_for_its_switching_on_is_prepared() {
        let is_prepared = |is_extended, change: &dyn Fn(&mut Image)| {
            let all = read_changed(&types(is_extended), |image| change(image));
            let found = all.get("sched:sched_switch").expect("there");
            found.variable.is_prepared
        };
        let member = TRACEPOINT + 24;
        assert!(is_prepared(false, &|image| image.pointer(member, 0x900)));
        // The structure for rare members, without and with the function.
        assert!(!is_prepared(true, &|_| ()));
        assert!(!is_prepared(true, &|image| image.pointer(member, 0xb00)));
        assert!(is_prepared(true, &|image| {
            image.pointer(member, 0xb00);
            image.pointer(0xb08, 0x900);
        }));
    }

    #[test]
    fn label_whose_block_makes_no_call_is_a_question() {
        let types = types_with(&[
            ("regfunc", 24),
            ("static_call_key", 48),
            ("static_call_tramp", 56),
            ("iterator", 64),
        ]);
        let all = read_changed(&types, |image| {
            image.pointer(TRACEPOINT + 48, 0xc00);
            image.pointer(TRACEPOINT + 56, TRAMPOLINE);
            image.pointer(TRACEPOINT + 64, 0xd00);
            // The block of the first site calls; that of the second returns.
            let block = SITES[0] + 0x40;
            image.put(block, &[0xe8]);
            image.near(block + 1, TRAMPOLINE - 4);
            image.put(SITES[1] + 0x40, &[0xc3]);
        });
        let found = all.get("sched:sched_switch").expect("there");
        let sites: Vec<_> = found.sites.iter().map(|site| site.at).collect();
        assert_eq!(sites, [Gva(BASE + SITES[0])]);
        assert_eq!(found.questions, 1);
    }

    #[test]
    fn events_share_the_sites_of_their_tracepoint() {
        let all = read_changed(&types(false), |image| {
            // The second event is of another group, and of the same tracepoint.
            image.pointer(CALL + 0x40 + 16, CLASS + 8);
            image.pointer(CALL + 0x40 + 24, TRACEPOINT);
            image.pointer(CLASS + 8, 0x2a0);
            image.put(0x2a0, b"other\0");
        });
        let sites = |name| &all.get(name).expect("there").sites;
        assert!(Arc::ptr_eq(
            sites("sched:sched_switch"),
            sites("other:sched_switch")
        ));
        let event = |name| all.get(name).expect("there").event;
        assert_eq!(event("sched:sched_switch"), Gva(BASE + CALL));
        assert_eq!(event("other:sched_switch"), Gva(BASE + CALL + 0x40));
    }

    #[test]
    fn a_group_whose_name_is_none_is_left_out() {
        for name in [b"a:b\0\0", b"a@b\0\0", b"\x1b[2J\0", b"\0\0\0\0\0"] {
            let all = read_changed(&types(false), |image| image.put(0x280, name));
            assert_eq!(all.iter().count(), 0, "{name:?}");
        }
    }

    #[test]
    fn a_kernel_without_the_types_has_none() {
        let none = Btf::parse(Blob::new().finish()).expect("types");
        assert_eq!(read(&none).iter().count(), 0);
    }
}
