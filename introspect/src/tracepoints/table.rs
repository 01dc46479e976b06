//! The names of tracepoints, and the sites where the kernel passes them.
//!
//! Each event of ftrace has a `struct trace_event_call`, which names its group and points to the `struct tracepoint`. Each site is a jump label
//! whose key is part of the tracepoint. While the guest has the tracepoint off, the site is a nop; the target of the jump is a block that
//! computes the tracepoint's arguments.
//!
//! ```text
//!  __start_ftrace_events ─▶ trace_event_call { class ─▶ { system "sched" }, tp ─▶ tracepoint { key, …, funcs } }
//!                                                                                              ▲
//!  __start___jump_table ─▶ jump_entry { code: the site, target: the block, key ────────────────┘ }
//! ```
//!
//! The tables of modules are not read.

use std::collections::BTreeMap;
use std::sync::Arc;

use address::Gva;

use crate::btf::Btf;
use crate::image::ImageReader;
use crate::{ImageSource, SymbolTable};

const EVENTS: [&str; 2] = ["__start_ftrace_events", "__stop_ftrace_events"];
const JUMPS: [&str; 2] = ["__start___jump_table", "__stop___jump_table"];
/// The beginning of the name of a tracepoint's variable.
const VARIABLE: &str = "__tracepoint_";

/// An entry of the table of jump labels: two distances of 32 bits, and one of 64.
const JUMP_BYTES: u64 = 16;
const KEY_OFFSET: u64 = 8;
/// The lowest bits of the distance to a key are flags.
const KEY_FLAGS: u64 = 3;
/// Stock kernels have 10 000 jump labels.
const MAX_JUMPS: u64 = 1 << 20;

/// Where the kernel passes a tracepoint, at link-time addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TracepointSite {
    /// The jump label.
    pub at: Gva,
    /// The code that the jump label jumps to while the tracepoint is on.
    pub block: Gva,
}

/// A tracepoint of the kernel proper, at link-time addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracepoint {
    /// The name without the group: `sched_switch`.
    pub name: Arc<str>,
    /// The address of the pointer to the functions that the tracepoint calls, null while it is off.
    pub funcs: Gva,
    /// In the order of their addresses. Shared, because a broken file may have many events for a tracepoint.
    pub sites: Arc<[TracepointSite]>,
    /// Whether the kernel calls a function when the guest switches the tracepoint on. Most such functions open the way to the sites.
    pub is_prepared: bool,
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
        let named = Layout::new(types).map(|layout| layout.events(source, symbols));
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

/// Offsets in the kernel's structures, bytes.
struct Layout {
    /// Of the class in `trace_event_call`.
    class: u64,
    /// Of the tracepoint in `trace_event_call`.
    tracepoint: u64,
    /// Of the group's name in `trace_event_class`.
    system: u64,
    /// Of the key in `tracepoint`.
    key: u64,
    /// Of the functions in `tracepoint`.
    funcs: u64,
    prepare: Prepare,
}

/// Where a tracepoint has the function that prepares its sites: null for most.
enum Prepare {
    /// At the offset in `tracepoint`.
    Inside(u64),
    /// At the second offset in the structure whose address is at the first offset in `tracepoint`; no tracepoint without a function has
    /// the structure.
    Behind(u64, u64),
}

impl Layout {
    fn new(types: &Btf) -> Option<Self> {
        let offset = |of, path| {
            let holder = types.struct_named(of)?;
            types.member(holder, path).map(|member| member.offset_bytes)
        };
        Some(Self {
            class: offset("trace_event_call", "class")?,
            tracepoint: offset("trace_event_call", "tp")?,
            system: offset("trace_event_class", "system")?,
            key: offset("tracepoint", "key")?,
            funcs: offset("tracepoint", "funcs")?,
            prepare: match offset("tracepoint", "regfunc") {
                Some(at) => Prepare::Inside(at),
                None => Prepare::Behind(
                    offset("tracepoint", "ext")?,
                    offset("tracepoint_ext", "regfunc")?,
                ),
            },
        })
    }

    fn is_prepared(&self, image: ImageReader<'_>, tracepoint: Gva) -> bool {
        let is_there = |at| image.number(at, 8).is_some_and(|pointer| pointer != 0);
        match self.prepare {
            Prepare::Inside(at) => is_there(tracepoint.wrapping_add(at)),
            Prepare::Behind(holder, at) => {
                let holder = tracepoint.wrapping_add(holder);
                let found = is_there(holder).then(|| image.pointer(holder)).flatten();
                found.is_some_and(|found| is_there(found.wrapping_add(at)))
            }
        }
    }

    fn events(
        &self,
        source: &dyn ImageSource,
        symbols: &SymbolTable,
    ) -> BTreeMap<String, Tracepoint> {
        let image = ImageReader::new(source);
        let sites = sites(image, symbols);
        let [start, stop] = EVENTS;
        let event = |call: Gva| {
            let at = image.pointer(call.wrapping_add(self.tracepoint))?;
            // The event of a system call has no tracepoint.
            let symbol = symbols.resolve(at).filter(|found| found.offset == 0)?;
            let name = symbol.symbol.name.strip_prefix(VARIABLE)?.to_owned();
            is_name(&name).then_some(())?;
            let class = image.pointer(call.wrapping_add(self.class))?;
            let system = image.text(image.pointer(class.wrapping_add(self.system))?)?;
            is_name(&system).then_some(())?;
            let key = at.wrapping_add(self.key);
            let tracepoint = Tracepoint {
                name: name.as_str().into(),
                funcs: at.wrapping_add(self.funcs),
                sites: sites.get(&key).cloned().unwrap_or_default(),
                is_prepared: self.is_prepared(image, at),
            };
            Some((format!("{system}:{name}"), tracepoint))
        };
        image
            .table(symbols, start, stop)
            .filter_map(event)
            .collect()
    }
}

/// Whether `text` can be a group or a name: colons and `@` would be parts of a probe's name.
fn is_name(text: &str) -> bool {
    let is_usual = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    !text.is_empty() && text.chars().all(is_usual)
}

/// The sites of each key.
fn sites(image: ImageReader<'_>, symbols: &SymbolTable) -> BTreeMap<Gva, Arc<[TracepointSite]>> {
    let mut sites: BTreeMap<Gva, Vec<TracepointSite>> = BTreeMap::new();
    let [start, stop] = JUMPS.map(|label| symbols.address_of(label));
    let Some((start, stop)) = start.zip(stop) else {
        return BTreeMap::new();
    };
    let jumps = stop.offset_from(start).unwrap_or(0) / JUMP_BYTES;
    for number in 0..jumps.min(MAX_JUMPS) {
        let entry = start.wrapping_add(number * JUMP_BYTES);
        if let Some((key, site)) = jump(image, entry) {
            sites.entry(key).or_default().push(site);
        }
    }
    let in_order = |(key, mut sites): (Gva, Vec<TracepointSite>)| {
        sites.sort_unstable();
        (key, sites.into())
    };
    sites.into_iter().map(in_order).collect()
}

fn jump(image: ImageReader<'_>, entry: Gva) -> Option<(Gva, TracepointSite)> {
    let near = |offset: u64| {
        let at = entry.wrapping_add(offset);
        let distance = i32::from_le_bytes(image.bytes(at)?);
        Some(Gva(at.0.wrapping_add_signed(distance.into())))
    };
    let at = entry.wrapping_add(KEY_OFFSET);
    let distance = u64::from_le_bytes(image.bytes(at)?);
    let site = TracepointSite {
        at: near(0)?,
        block: near(4)?,
    };
    Some((at.wrapping_add(distance & !KEY_FLAGS), site))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::synthetic::Blob;
    use crate::{NotInImage, SymbolTableBuilder};

    const BASE: u64 = 0xffff_ffff_8200_0000;
    const CALL: u64 = 0x100;
    const CLASS: u64 = 0x200;
    const TRACEPOINT: u64 = 0x300;
    const JUMP_TABLE: u64 = 0x400;
    const SITES: [u64; 2] = [0x900, 0x800];

    /// Memory from [`BASE`] on.
    struct Image(Vec<u8>);

    impl Image {
        fn put(&mut self, at: u64, bytes: &[u8]) {
            let at = usize::try_from(at).expect("small");
            self.0[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn pointer(&mut self, at: u64, to: u64) {
            self.put(at, &(BASE + to).to_le_bytes());
        }

        fn near(&mut self, at: u64, to: u64) {
            let distance = i32::try_from(to.cast_signed() - at.cast_signed()).expect("near");
            self.put(at, &distance.to_le_bytes());
        }
    }

    impl ImageSource for Image {
        fn read_linked(&self, address: Gva, buf: &mut [u8]) -> Result<(), NotInImage> {
            let found = address.offset_from(Gva(BASE)).and_then(|at| {
                let at = usize::try_from(at).ok()?;
                self.0.get(at..at.checked_add(buf.len())?)
            });
            let missing = NotInImage {
                address,
                len: buf.len(),
            };
            buf.copy_from_slice(found.ok_or(missing)?);
            Ok(())
        }
    }

    /// The types of a kernel whose tracepoints have a structure for rare members, or not.
    fn types(is_extended: bool) -> Btf {
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
        let key = [("key", long, 8), ("funcs", long, 40)];
        let prepare = if is_extended { "ext" } else { "regfunc" };
        blob.structure("tracepoint", 64, &[key[0], (prepare, long, 24), key[1]]);
        blob.structure("tracepoint_ext", 64, &[("regfunc", long, 8)]);
        Btf::parse(blob.finish()).expect("types")
    }

    fn read(types: &Btf) -> Tracepoints {
        read_changed(types, |_| ())
    }

    /// Two events, one without a tracepoint, and three jump labels, of which two have the tracepoint's key; with a change.
    fn read_changed(types: &Btf, change: impl FnOnce(&mut Image)) -> Tracepoints {
        let mut image = Image(vec![0; 0x1000]);
        image.pointer(0, CALL);
        image.pointer(8, CALL + 0x40);
        image.pointer(CALL + 16, CLASS);
        image.pointer(CALL + 24, TRACEPOINT);
        image.pointer(CALL + 0x40 + 16, CLASS);
        image.pointer(CALL + 0x40 + 24, CLASS);
        image.pointer(CLASS, 0x280);
        image.put(0x280, b"sched\0");
        for (number, site) in (0..).zip([SITES[0], SITES[1], 0xa00]) {
            let entry = JUMP_TABLE + number * JUMP_BYTES;
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
            ("__stop___jump_table", JUMP_TABLE + 3 * JUMP_BYTES),
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
        assert_eq!(found.funcs, Gva(BASE + TRACEPOINT + 40));
        let site = |at| TracepointSite {
            at: Gva(BASE + at),
            block: Gva(BASE + at + 0x40),
        };
        assert_eq!(*found.sites, [site(0x800), site(0x900)]);
        assert!(!found.is_prepared);
    }

    #[test]
    fn a_tracepoint_with_a_function_for_its_switching_on_is_prepared() {
        let is_prepared = |is_extended, change: &dyn Fn(&mut Image)| {
            let all = read_changed(&types(is_extended), |image| change(image));
            all.get("sched:sched_switch").expect("there").is_prepared
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
