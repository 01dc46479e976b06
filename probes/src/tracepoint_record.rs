//! The fields of a tracepoint's record, which no code of the guest has computed: see [`introspect::tracepoints`].

use address::Gva;
use events::{Field, FieldValue, Fields, Hex, Number};
use introspect::insn::Features;
use introspect::tracepoints::{
    ArgumentBlock, FieldValue as RecordValue, Integer, NoLayout, NoRecord, RecordLayout,
    RecordWriter,
};
use introspect::{ImageSource, NotInImage, PagingState, PhysMemory};

use crate::arguments::{ArgumentSource, snapshot};
use crate::handler::{AccessError, HitContext};
use crate::kernel::Kernel;
use crate::resolve::Place;

const RESERVE: &str = "trace_event_buffer_reserve";
const COMMIT: &str = "trace_event_buffer_commit";

/// Why hits of a tracepoint have no fields.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum NoFields {
    /// The kernel has no such tracepoint, or no types.
    #[error("the kernel's tables do not describe the event")]
    NoEvent,
    /// The list of fields is not known.
    #[error(transparent)]
    Layout(#[from] NoLayout),
    /// The kernel's symbols do not have a function of ftrace.
    #[error("the kernel has no function `{name}`")]
    NoFunction {
        /// The function's name.
        name: &'static str,
    },
    /// The registers of the vCPU cannot be read.
    #[error(transparent)]
    Registers(#[from] AccessError),
    /// The code that writes the record cannot be interpreted.
    #[error(transparent)]
    Record(#[from] NoRecord),
}

/// The record of a tracepoint at the site of a probe.
#[derive(Debug)]
pub(crate) struct TracepointRecord {
    layout: RecordLayout,
    /// The probed instruction, and the code in the same address space.
    site: Gva,
    writer: RecordWriter,
    features: Features,
}

/// The record at a site, or why it is not known.
pub(crate) type RecordAtSite = Result<TracepointRecord, NoFields>;

impl TracepointRecord {
    /// The record of the tracepoint `name`, with its group, at a site in the kernel proper.
    pub(crate) fn in_kernel(
        kernel: &Kernel,
        name: &str,
        place: &Place,
        features: Features,
    ) -> RecordAtSite {
        let layout = layout_in_kernel(kernel, name)?;
        Self::at(kernel, layout, place, 0, features)
    }

    /// The record with `layout` at `place`, for a kernel that has moved by `slide` bytes; `place` and `layout` have run-time addresses.
    pub(crate) fn at(
        kernel: &Kernel,
        layout: RecordLayout,
        place: &Place,
        slide: i64,
        features: Features,
    ) -> RecordAtSite {
        let ArgumentSource::Block { block, funcs } = place.arguments else {
            return Err(NoFields::NoEvent);
        };
        let function = |name| {
            let at = kernel.symbols().address_of(name);
            let at = at.ok_or(NoFields::NoFunction { name })?;
            Ok::<_, NoFields>(at.wrapping_add(slide.cast_unsigned()))
        };
        let writer = RecordWriter {
            block: ArgumentBlock {
                at: place.ip.wrapping_add(block.cast_unsigned()),
                funcs: place.ip.wrapping_add(funcs.cast_unsigned()),
            },
            function: layout.function,
            reserve: function(RESERVE)?,
            commit: function(COMMIT)?,
        };
        Ok(Self {
            layout,
            site: place.ip,
            writer,
            features,
        })
    }

    /// The fields, on the thread of the vCPU with the hit.
    pub(crate) fn fields(&self, hit: &mut HitContext<'_>) -> Result<Fields, NoFields> {
        let slide = hit.regs.rip.wrapping_sub(self.site.0).cast_signed();
        let snapshot = snapshot(hit, self.features)?;
        let mut read = |at: Gva, buf: &mut [u8]| hit.read(at, buf).is_ok();
        let record = self.writer.rebased(slide).record(&snapshot, &mut read)?;
        let values = self.layout.values(&record).into_iter();
        let field = |(name, value)| Field {
            name,
            value: shown(value),
        };
        Ok(Fields(values.map(field).collect()))
    }
}

/// The list of fields of the tracepoint `name`, with its group, at link-time addresses.
pub(crate) fn layout_in_kernel(kernel: &Kernel, name: &str) -> Result<RecordLayout, NoFields> {
    let types = kernel.types().map_err(|_| NoFields::NoEvent)?;
    let known = kernel.tracepoints().map_err(|_| NoFields::NoEvent)?;
    let event = known.get(name).ok_or(NoFields::NoEvent)?.event;
    Ok(RecordLayout::read(&KernelFile(kernel), types, event)?)
}

/// The list of fields of the event of a module at `event`.
pub(crate) fn layout_in_module(
    kernel: &Kernel,
    memory: &dyn PhysMemory,
    paging: &PagingState,
    event: Gva,
) -> Result<RecordLayout, NoFields> {
    let types = kernel.types().map_err(|_| NoFields::NoEvent)?;
    Ok(RecordLayout::read_mapped(memory, paging, types, event)?)
}

/// The name of the tracepoint of the probe `name`, with its group: the site follows if there are several.
pub(crate) fn tracepoint_of(name: &str) -> Option<&str> {
    let (_, name) = name.split_once(':')?;
    name.split('@').next()
}

/// The bytes of the kernel's file.
struct KernelFile<'k>(&'k Kernel);

impl ImageSource for KernelFile<'_> {
    fn read_linked(&self, address: Gva, buf: &mut [u8]) -> Result<(), NotInImage> {
        let len = buf.len();
        let found = self.0.bytes_at(address, len);
        buf.copy_from_slice(found.ok_or(NotInImage { address, len })?);
        Ok(())
    }
}

fn shown(value: RecordValue) -> FieldValue {
    match value {
        RecordValue::Bool(value) => FieldValue::Number(Number::Bool(value)),
        RecordValue::Integer(value) => FieldValue::Number(number(value)),
        RecordValue::Address(value) => FieldValue::Number(Number::Hex(Hex(value))),
        RecordValue::Text(text) => FieldValue::Text(text),
        RecordValue::Integers(all) => FieldValue::List(all.into_iter().map(number).collect()),
        RecordValue::Unknown => FieldValue::Unknown,
    }
}

fn number(value: Integer) -> Number {
    match value {
        Integer::Signed(value) => Number::signed(value),
        Integer::Unsigned(value) => Number::unsigned(value),
    }
}
