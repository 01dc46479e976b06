//! The records of the ring.

use address::Gva;

use super::error::LogError;
use super::layout::RingLayout;
use crate::reads::until_zero;
use crate::{KernelView, NotReadable};

/// The kernel's pointer to the ring.
const RING: &str = "prb";
/// Whether the kernel prints times: the parameter `printk.time`.
const PRINTS_TIMES: &str = "printk_time";
/// A log of 128 KiB has 2^12 descriptors.
const MAX_COUNT_BITS: u32 = 19;
/// 16 MiB; Debian's kernels have 128 KiB.
const MAX_SIZE_BITS: u32 = 24;
/// The largest array: the infos of the largest ring have 88 bytes each. The sizes of the elements are the types' own, and may lie.
const MAX_ARRAY_BYTES: usize = 64 << 20;
/// The state is in the two highest bits of a descriptor's word, the descriptor's number in the others.
const NUMBER_BITS: u32 = 62;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
/// The states of whole records: committed (the kernel may still add text), finalised.
const COMMITTED: u64 = 1;
const FINALISED: u64 = 2;
/// A position with this bit has no text: `NO_LPOS` for an empty line, `FAILED_LPOS` for a record without room for the text.
const NO_TEXT: u64 = 1;
const EMPTY_LINE: u64 = 3;
/// A block of text begins with the descriptor's number.
const BLOCK_HEAD_BYTES: usize = 8;
/// In `caller_id`, the bit of a processor in place of a task.
const ON_PROCESSOR: u64 = 1 << 31;

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// The record's number, from 0 on. Numbers are missing at the beginning if the ring has dropped old records.
    pub seq: u64,
    /// The time of the kernel's clock, in nanoseconds.
    pub time_ns: u64,
    /// The syslog facility; 0 for the kernel's own messages.
    pub facility: u8,
    /// The level from 0, an emergency, to 7, debugging.
    pub level: u8,
    /// The writer: `T` and the thread's number, or `C` and the processor's number.
    pub caller: String,
    /// The subsystem and the device, if the message is about a device.
    pub device: Option<(String, String)>,
    /// The text: a line, or several.
    pub text: String,
}

/// The kernel's log at the time of the read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// The records, the oldest first.
    pub records: Vec<LogRecord>,
    /// Whether the kernel prints the time in front of each line.
    pub prints_times: bool,
}

/// Copies of the ring's arrays.
struct Arrays {
    count: usize,
    descriptors: Vec<u8>,
    infos: Vec<u8>,
    text: Vec<u8>,
    /// The descriptors, read after the others.
    later: Vec<u8>,
}

impl Log {
    /// Reads the log of a running, paused, hung or dumped kernel.
    ///
    /// # Errors
    ///
    /// If the kernel's symbols or types lack the ring, or the ring is damaged.
    pub fn read(view: &KernelView<'_>) -> Result<Self, LogError> {
        let layout = RingLayout::new(view.types().ok_or(LogError::NoTypes)?)?;
        let pointer = view.address_of(RING).ok_or(LogError::NoRing)?;
        let at = view.pointer(pointer).map_err(unreadable("pointer"))?;
        let mut ring = vec![0; layout.size];
        view.read(at, &mut ring).map_err(unreadable("ring"))?;
        let arrays = Arrays::read(view, &layout, at, &ring)?;
        let word = |slot: introspect::btf::Slot| slot.read(&ring).unwrap_or_default();
        let (head, tail) = (word(layout.head), word(layout.tail));
        let between = usize::try_from(head.wrapping_sub(tail) & NUMBER_MASK);
        let used = between
            .unwrap_or(usize::MAX)
            .saturating_add(1)
            .min(arrays.count);
        // The newest are whole, even if the tail is damaged.
        let oldest = head.wrapping_sub(used as u64 - 1);
        let numbers = (0..used as u64).map(|n| oldest.wrapping_add(n) & NUMBER_MASK);
        // Whole blocks do not overlap. Those of a false ring may, and would have far more text than the ring.
        let mut left = arrays.text.len();
        let records = numbers.filter_map(|number| arrays.record(&layout, number, &mut left));
        Ok(Self {
            records: records.collect(),
            prints_times: prints_times(view),
        })
    }
}

/// A kernel without the parameter prints times.
fn prints_times(view: &KernelView<'_>) -> bool {
    let mut byte = [1];
    let read = view
        .address_of(PRINTS_TIMES)
        .map(|at| view.read(at, &mut byte));
    !matches!(read, Some(Ok(()))) || byte != [0]
}

fn unreadable(what: &'static str) -> impl FnOnce(NotReadable) -> LogError {
    move |source| LogError::Unreadable { what, source }
}

impl Arrays {
    fn read(
        view: &KernelView<'_>,
        layout: &RingLayout,
        at: Gva,
        ring: &[u8],
    ) -> Result<Self, LogError> {
        let word = |slot: introspect::btf::Slot| slot.read(ring).unwrap_or_default();
        let count = power(at, "descriptors", word(layout.count_bits), MAX_COUNT_BITS)?;
        let size = power(at, "bytes of text", word(layout.size_bits), MAX_SIZE_BITS)?;
        let array = |what, at, len: usize| {
            if len > MAX_ARRAY_BYTES {
                return Err(LogError::LargeElements { what, len });
            }
            let mut bytes = vec![0; len];
            view.read(Gva(at), &mut bytes).map_err(unreadable(what))?;
            Ok::<_, LogError>(bytes)
        };
        let descriptors = || {
            let len = count * layout.descriptor.size;
            array("descriptors", word(layout.descriptors), len)
        };
        Ok(Self {
            count,
            descriptors: descriptors()?,
            infos: array("infos", word(layout.infos), count * layout.info.size)?,
            text: array("text", word(layout.text), size)?,
            later: descriptors()?,
        })
    }

    /// The record of the descriptor `number`; `None` if the record is not whole, has been overwritten, or has more text than `left`
    /// bytes. The text is subtracted from `left`.
    fn record(&self, layout: &RingLayout, number: u64, left: &mut usize) -> Option<LogRecord> {
        let index = usize::try_from(number).ok()? & (self.count - 1);
        let descriptor = element(&self.descriptors, index, layout.descriptor.size)?;
        let state = layout.descriptor.state.read(descriptor)?;
        let later = element(&self.later, index, layout.descriptor.size)?;
        let is_whole = matches!(state >> NUMBER_BITS, COMMITTED | FINALISED);
        if state & NUMBER_MASK != number
            || !is_whole
            || layout.descriptor.state.read(later)? != state
        {
            return None;
        }
        let info = element(&self.infos, index, layout.info.size)?;
        let begin = layout.descriptor.begin.read(descriptor)?;
        let next = layout.descriptor.next.read(descriptor)?;
        let text = self.block(number, begin, next)?;
        let len = usize::try_from(layout.info.text_len.read(info)?).ok()?;
        let text = &text[..len.min(text.len())];
        *left = left.checked_sub(text.len())?;
        let name = |range: &std::ops::Range<usize>| info.get(range.clone()).map(until_zero);
        let (subsystem, device) = (name(&layout.info.subsystem)?, name(&layout.info.device)?);
        let caller = layout.info.caller.read(info)?;
        Some(LogRecord {
            seq: layout.info.seq.read(info)?,
            time_ns: layout.info.time.read(info)?,
            facility: u8::try_from(layout.info.facility.read(info)?).ok()?,
            level: layout.info.level(info),
            caller: match caller & ON_PROCESSOR {
                0 => format!("T{caller}"),
                _ => format!("C{}", caller & !ON_PROCESSOR),
            },
            device: (!subsystem.is_empty()).then_some((subsystem, device)),
            text: String::from_utf8_lossy(text).into_owned(),
        })
    }

    /// The text of the block between two positions. Positions grow for ever; the place in the text is the rest by its size.
    fn block(&self, number: u64, begin: u64, next: u64) -> Option<&[u8]> {
        if begin & NO_TEXT != 0 || next & NO_TEXT != 0 {
            return (begin == EMPTY_LINE && next == EMPTY_LINE).then_some(&[]);
        }
        let size = self.text.len() as u64;
        let place = |position: u64| usize::try_from(position % size).ok();
        let len = usize::try_from(next.wrapping_sub(begin)).ok()?;
        if len == 0 {
            return None;
        }
        // `next` is no part of the block.
        let rounds = (next.wrapping_sub(1) / size).wrapping_sub(begin / size) & (u64::MAX / size);
        let block = match rounds {
            0 => {
                let start = place(begin)?;
                self.text.get(start..start.checked_add(len)?)?
            }
            // The block did not fit behind `begin`, and is at the start of the text.
            1 => self.text.get(..place(next)?)?,
            _ => return None,
        };
        let (head, text) = block.split_at_checked(BLOCK_HEAD_BYTES)?;
        (u64::from_le_bytes(head.try_into().ok()?) == number).then_some(text)
    }
}

/// 2 to the power of `bits`, at most of `limit`.
fn power(at: Gva, what: &'static str, bits: u64, limit: u32) -> Result<usize, LogError> {
    let exponent = u32::try_from(bits).ok().filter(|bits| *bits <= limit);
    match exponent {
        Some(exponent) => Ok(1 << exponent),
        None => Err(LogError::TooLarge {
            at,
            what,
            bits,
            limit,
        }),
    }
}

fn element(array: &[u8], index: usize, size: usize) -> Option<&[u8]> {
    let start = index.checked_mul(size)?;
    array.get(start..start.checked_add(size)?)
}
