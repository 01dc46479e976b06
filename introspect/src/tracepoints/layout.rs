//! Offsets in the kernel's structures of tracepoints, and the read of one tracepoint.

use address::Gva;

use super::TracepointCall;
use crate::btf::Btf;
use crate::image::ImageReader;

/// The variable of a tracepoint, at link-time addresses if in the kernel proper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracepointVariable {
    /// The key of the tracepoint's jump labels.
    pub key: Gva,
    /// The address of the pointer to the functions that the tracepoint calls, null while it is off.
    pub funcs: Gva,
    /// The static call of the tracepoint. Kernels before 5.10 have none.
    pub call: Option<TracepointCall>,
    /// Whether the kernel calls a function when the guest switches the tracepoint on. Most such functions open the way to the sites.
    pub is_prepared: bool,
}

impl TracepointVariable {
    /// The variable of a kernel that has moved by `slide` bytes.
    #[must_use]
    pub fn rebased(self, slide: i64) -> Self {
        let moved = |at: Gva| Gva(at.0.wrapping_add_signed(slide));
        Self {
            key: moved(self.key),
            funcs: moved(self.funcs),
            call: self.call.map(|call| TracepointCall {
                key: moved(call.key),
                trampoline: moved(call.trampoline),
                iterator: moved(call.iterator),
            }),
            is_prepared: self.is_prepared,
        }
    }
}

/// Offsets in the kernel's structures, bytes.
pub(super) struct Layout {
    /// Of the class in `trace_event_call`.
    class: u64,
    /// Of the tracepoint in `trace_event_call`.
    tracepoint: u64,
    /// Of the group's name in `trace_event_class`.
    system: u64,
    /// Of the name in `tracepoint`.
    name: Option<u64>,
    /// Of the key in `tracepoint`.
    key: u64,
    /// Of the functions in `tracepoint`.
    funcs: u64,
    call: Option<CallLayout>,
    prepare: Prepare,
}

/// Offsets in `tracepoint`.
struct CallLayout {
    key: u64,
    trampoline: u64,
    iterator: u64,
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
    pub(super) fn new(types: &Btf) -> Option<Self> {
        let offset = |of, path| {
            let holder = types.struct_named(of)?;
            types.member(holder, path).map(|member| member.offset_bytes)
        };
        let call = || {
            Some(CallLayout {
                key: offset("tracepoint", "static_call_key")?,
                trampoline: offset("tracepoint", "static_call_tramp")?,
                iterator: offset("tracepoint", "iterator")?,
            })
        };
        Some(Self {
            class: offset("trace_event_call", "class")?,
            tracepoint: offset("trace_event_call", "tp")?,
            system: offset("trace_event_class", "system")?,
            name: offset("tracepoint", "name"),
            key: offset("tracepoint", "key")?,
            funcs: offset("tracepoint", "funcs")?,
            call: call(),
            prepare: match offset("tracepoint", "regfunc") {
                Some(at) => Prepare::Inside(at),
                None => Prepare::Behind(
                    offset("tracepoint", "ext")?,
                    offset("tracepoint_ext", "regfunc")?,
                ),
            },
        })
    }

    /// The address of the tracepoint's variable, by the `trace_event_call` at `event`. The event of a system call has another pointer there.
    pub(super) fn tracepoint_of(&self, image: ImageReader<'_>, event: Gva) -> Option<Gva> {
        image.pointer(event.wrapping_add(self.tracepoint))
    }

    /// The group of the `trace_event_call` at `event`.
    pub(super) fn group_of(&self, image: ImageReader<'_>, event: Gva) -> Option<String> {
        let class = image.pointer(event.wrapping_add(self.class))?;
        let system = image.text(image.pointer(class.wrapping_add(self.system))?)?;
        is_name(&system).then_some(system)
    }

    /// The name of the tracepoint whose variable is at `at`, by the variable itself.
    pub(super) fn name_of(&self, image: ImageReader<'_>, at: Gva) -> Option<String> {
        let name = image.text(image.pointer(at.wrapping_add(self.name?))?)?;
        is_name(&name).then_some(name)
    }

    /// The tracepoint whose variable is at `at`.
    pub(super) fn variable(&self, image: ImageReader<'_>, at: Gva) -> TracepointVariable {
        let call = self.call.as_ref().and_then(|call| {
            let pointer = |offset| image.pointer(at.wrapping_add(offset));
            Some(TracepointCall {
                key: pointer(call.key)?,
                trampoline: pointer(call.trampoline)?,
                iterator: pointer(call.iterator)?,
            })
        });
        TracepointVariable {
            key: at.wrapping_add(self.key),
            funcs: at.wrapping_add(self.funcs),
            call,
            is_prepared: self.is_prepared(image, at),
        }
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
}

/// Whether `text` can be a group or a name: colons and `@` would be parts of a probe's name.
pub(super) fn is_name(text: &str) -> bool {
    let is_usual = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    !text.is_empty() && text.chars().all(is_usual)
}
