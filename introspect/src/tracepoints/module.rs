//! The tracepoints that a module defines, and the jump labels in a module's code.
//!
//! ```text
//!  struct module ─┬─ tracepoints_ptrs   ─▶ distances to the tracepoints of the module
//!                 ├─ trace_events       ─▶ trace_event_call { class ─▶ { system }, tp ─▶ tracepoint { name, key, … } }
//!                 ├─ jump_entries       ─▶ jump_entry { code, target, key }: also of tracepoints of the kernel and of other modules
//!                 └─ static_call_sites  ─▶ { call, key }: the kernel has changed the calls before the module's init function runs
//! ```
//!
//! All addresses are run-time addresses. Read while the guest is paused.

use std::collections::{BTreeMap, BTreeSet};

use address::Gva;

use super::labels::{Labels, labels, near};
use super::layout::Layout;
use super::{ReadCode, TracepointSite, TracepointVariable};
use crate::btf::Btf;
use crate::image::ImageReader;
use crate::{ImageSource, NotInImage, PagingState, PhysMemory, read_virt};

/// The modules of stock kernels have at most 600.
const MAX_EVENTS: u64 = 4096;
/// The largest module has 3000.
const MAX_LABELS: u64 = 1 << 16;
const POINTER_BYTES: u64 = 8;
/// An entry of the table of tracepoints: a distance.
const DISTANCE_BYTES: u64 = 4;
/// An entry of the table of static calls: the distance to the call, and that to the key, whose lowest bits are flags.
const CALL_BYTES: u64 = 8;
const CALL_FLAGS: u64 = 3;

/// A table in the guest's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableAt {
    /// The first entry.
    pub start: Gva,
    /// The number of entries.
    pub count: u64,
}

/// The tables of a module, from its `struct module`; empty ones if the kernel is built without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModuleTables {
    /// `tracepoints_ptrs`.
    pub tracepoints: TableAt,
    /// `trace_events`.
    pub events: TableAt,
    /// `jump_entries`.
    pub labels: TableAt,
    /// `static_call_sites`.
    pub static_calls: TableAt,
}

/// A tracepoint that a module defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefinedTracepoint {
    /// The `trace_event_call` of the event.
    pub event: Gva,
    /// The tracepoint's variable.
    pub variable: TracepointVariable,
}

/// The tracepoints of a module, and the jump labels in its code.
#[derive(Clone, Debug, Default)]
pub struct ModuleTracepoints {
    /// By group and name: `nbd:nbd_send_request`.
    defined: BTreeMap<String, DefinedTracepoint>,
    labels: Labels,
    /// The keys of the static calls, by the addresses of the calls.
    static_calls: BTreeMap<Gva, Gva>,
}

impl ModuleTracepoints {
    /// Reads the tables of a module, at most some thousand entries of each; what cannot be read is left out.
    #[must_use]
    pub fn read(
        types: &Btf,
        memory: &dyn PhysMemory,
        paging: &PagingState,
        tables: &ModuleTables,
    ) -> Self {
        let Some(layout) = Layout::new(types) else {
            return Self::default();
        };
        let mapped = Mapped { memory, paging };
        let image = ImageReader::new(&mapped);
        let TableAt { start, count } = tables.labels;
        Self {
            defined: defined(&layout, image, tables),
            labels: labels(image, start, count.min(MAX_LABELS)),
            static_calls: static_calls(image, tables.static_calls),
        }
    }

    /// The tracepoints that the module defines, with their groups and names.
    pub fn defined(&self) -> impl Iterator<Item = (&str, &DefinedTracepoint)> {
        let defined = self.defined.iter();
        defined.map(|(name, tracepoint)| (name.as_str(), tracepoint))
    }

    /// The places in the module's code where the kernel passes the tracepoint, in the order of their addresses. `read` reads code, with the
    /// original bytes under plants. `left` is the number of instructions that may still be decoded: at 0, there are no further places.
    #[must_use]
    pub fn sites(
        &self,
        variable: &TracepointVariable,
        read: ReadCode<'_>,
        left: &mut usize,
    ) -> Vec<TracepointSite> {
        let labels = self.labels.get(&variable.key).map_or(&[][..], |all| all);
        let key_of = |at| self.static_calls.get(&at).copied();
        let mut is_passage = |site: &&TracepointSite| match &variable.call {
            Some(call) => call.is_made_by(site, read, &key_of, left),
            None => true,
        };
        labels
            .iter()
            .filter(|site| is_passage(site))
            .copied()
            .collect()
    }
}

fn defined(
    layout: &Layout,
    image: ImageReader<'_>,
    tables: &ModuleTables,
) -> BTreeMap<String, DefinedTracepoint> {
    let TableAt { start, count } = tables.tracepoints;
    let distances = (0..count.min(MAX_EVENTS)).map(|number| number * DISTANCE_BYTES);
    let tracepoints = distances.filter_map(|at| near(image, start.wrapping_add(at)));
    let tracepoints: BTreeSet<Gva> = tracepoints.collect();
    let TableAt { start, count } = tables.events;
    let event = |number: u64| {
        let event = image.pointer(start.wrapping_add(number * POINTER_BYTES))?;
        let at = layout.tracepoint_of(image, event)?;
        // Another event has another pointer there.
        tracepoints.contains(&at).then_some(())?;
        let (group, name) = (layout.group_of(image, event)?, layout.name_of(image, at)?);
        let variable = layout.variable(image, at);
        let tracepoint = DefinedTracepoint { event, variable };
        Some((format!("{group}:{name}"), tracepoint))
    };
    (0..count.min(MAX_EVENTS)).filter_map(event).collect()
}

fn static_calls(image: ImageReader<'_>, table: TableAt) -> BTreeMap<Gva, Gva> {
    let call = |number: u64| {
        let at = table.start.wrapping_add(number * CALL_BYTES);
        let key = near(image, at.wrapping_add(CALL_BYTES / 2))?;
        Some((near(image, at)?, Gva(key.0 & !CALL_FLAGS)))
    };
    (0..table.count.min(MAX_LABELS)).filter_map(call).collect()
}

/// The kernel in the guest's memory, by the kernel's page tables.
pub(super) struct Mapped<'m> {
    pub(super) memory: &'m dyn PhysMemory,
    pub(super) paging: &'m PagingState,
}

impl ImageSource for Mapped<'_> {
    fn read_linked(&self, address: Gva, buf: &mut [u8]) -> Result<(), NotInImage> {
        let len = buf.len();
        let missing = |_| NotInImage { address, len };
        read_virt(self.memory, self.paging, address, buf).map_err(missing)
    }
}

#[cfg(test)]
mod tests {
    use address::Gpa;

    use super::*;
    use crate::FlatMemory;
    use crate::btf::synthetic::Blob;

    const EVENT: u64 = 0x100;
    const OTHER_EVENT: u64 = 0x140;
    const CLASS: u64 = 0x200;
    const TRACEPOINT: u64 = 0x300;
    const KEY: u64 = TRACEPOINT + 8;
    const CALL_KEY: u64 = 0x3c0;
    const TEXTS: u64 = 0x400;
    const TABLES: [u64; 4] = [0x500, 0x520, 0x540, 0x580];
    /// The labels: a passage, and a question.
    const SITES: [u64; 2] = [0x800, 0x840];
    const BLOCKS: [u64; 2] = [0x900, 0x940];
    /// The only function of the tracepoint, which the guest has on.
    const FUNCTION: u64 = 0xf00;

    fn types() -> Btf {
        let mut blob = Blob::new();
        let long = blob.int("long", 8);
        let event = [("class", long, 16), ("tp", long, 24)];
        blob.structure("trace_event_call", 64, &event);
        blob.structure("trace_event_class", 64, &[("system", long, 0)]);
        let tracepoint = [
            ("name", long, 0),
            ("key", long, 8),
            ("static_call_key", long, 24),
            ("static_call_tramp", long, 32),
            ("iterator", long, 40),
            ("regfunc", long, 48),
            ("funcs", long, 64),
        ];
        blob.structure("tracepoint", 72, &tracepoint);
        Btf::parse(blob.finish()).expect("types")
    }

    fn memory() -> FlatMemory {
        let mut memory = FlatMemory::zeroed(0x1000);
        let mut put = |at: u64, bytes: &[u8]| memory.write(Gpa(at), bytes).expect("memory");
        let distance = |at: u64, to: u64| {
            let [a, b, c, d, ..] = to.wrapping_sub(at).to_le_bytes();
            [a, b, c, d]
        };
        let [tracepoints, events, labels, calls] = TABLES;
        put(tracepoints, &distance(tracepoints, TRACEPOINT));
        put(events, &EVENT.to_le_bytes());
        put(events + 8, &OTHER_EVENT.to_le_bytes());
        for (event, tracepoint) in [(EVENT, TRACEPOINT), (OTHER_EVENT, CLASS)] {
            put(event + 16, &CLASS.to_le_bytes());
            put(event + 24, &tracepoint.to_le_bytes());
        }
        put(CLASS, &TEXTS.to_le_bytes());
        put(TEXTS, b"nbd\0nbd_sent\0");
        put(TRACEPOINT, &(TEXTS + 4).to_le_bytes());
        put(TRACEPOINT + 24, &CALL_KEY.to_le_bytes());
        for (number, (site, block)) in (0..).zip(SITES.into_iter().zip(BLOCKS)) {
            let entry = labels + 16 * number;
            put(entry, &distance(entry, site));
            put(entry + 4, &distance(entry + 4, block));
            put(entry + 8, &KEY.wrapping_sub(entry + 8).to_le_bytes());
            put(site, &[0x0f, 0x1f, 0x44, 0, 0]);
            put(block, &[0xc3]);
        }
        let [passage, _] = BLOCKS;
        put(
            passage,
            &[&[0xe8], &distance(passage + 5, FUNCTION)[..]].concat(),
        );
        put(calls, &distance(calls, passage));
        // The lowest bits are flags.
        put(calls + 4, &distance(calls + 4, CALL_KEY | 2));
        memory
    }

    fn tables() -> ModuleTables {
        let [tracepoints, events, labels, calls] = TABLES;
        let table = |start, count| TableAt {
            start: Gva(start),
            count,
        };
        ModuleTables {
            tracepoints: table(tracepoints, 1),
            events: table(events, 2),
            labels: table(labels, 2),
            static_calls: table(calls, 1),
        }
    }

    fn read(memory: &FlatMemory, tables: &ModuleTables) -> ModuleTracepoints {
        // Without page tables: an address is where it says.
        ModuleTracepoints::read(&types(), memory, &PagingState::default(), tables)
    }

    fn code(memory: &FlatMemory) -> impl FnMut(Gva, &mut [u8]) -> bool {
        |at, buf| memory.read(Gpa(at.0), buf).is_ok()
    }

    #[test]
    fn module_has_its_tracepoints_and_their_passages() {
        let memory = memory();
        let found = read(&memory, &tables());
        let defined: Vec<_> = found.defined().collect();
        let [(name, tracepoint)] = defined[..] else {
            panic!("{defined:?}")
        };
        let variable = &tracepoint.variable;
        assert_eq!(tracepoint.event, Gva(EVENT));
        assert_eq!((name, variable.key), ("nbd:nbd_sent", Gva(KEY)));
        assert_eq!(variable.funcs, Gva(TRACEPOINT + 64));
        let sites = found.sites(variable, &mut code(&memory), &mut 100);
        let expected = TracepointSite {
            at: Gva(SITES[0]),
            block: Gva(BLOCKS[0]),
        };
        assert_eq!(sites, [expected], "the other label asks");
    }

    #[test]
    fn labels_of_another_tracepoint_are_none_of_this() {
        let memory = memory();
        let found = read(&memory, &tables());
        let (_, tracepoint) = found.defined().next().expect("one");
        let other = TracepointVariable {
            key: Gva(KEY + 0x100),
            ..tracepoint.variable
        };
        assert_eq!(found.sites(&other, &mut code(&memory), &mut 100), []);
    }

    #[test]
    fn false_tables_are_read_up_to_their_limit() {
        let memory = memory();
        let everywhere = TableAt {
            start: Gva(0x500),
            count: u64::MAX,
        };
        let nowhere = TableAt {
            start: Gva(u64::MAX - 3),
            count: u64::MAX,
        };
        for table in [everywhere, nowhere] {
            let tables = ModuleTables {
                tracepoints: table,
                events: table,
                labels: table,
                static_calls: table,
            };
            let found = read(&memory, &tables);
            let labels = found.labels.values().map(|all| all.len());
            assert!(labels.sum::<usize>() as u64 <= MAX_LABELS);
            assert!(found.defined().count() as u64 <= MAX_EVENTS);
        }
    }
}
