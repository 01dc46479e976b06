//! The places of the ring's members.

use std::ops::Range;

use introspect::Btf;
use introspect::btf::Slot;

use crate::structs::{NoType, StructType};

/// The members of `dev_printk_info` have 16 and 48 bytes.
const MAX_NAME_BYTES: u64 = 64;

/// The members of `struct printk_ringbuffer` and of the structs behind it.
#[derive(Debug)]
pub(super) struct RingLayout {
    pub(super) size: usize,
    /// The logarithm of the number of descriptors.
    pub(super) count_bits: Slot,
    pub(super) descriptors: Slot,
    pub(super) infos: Slot,
    pub(super) head: Slot,
    pub(super) tail: Slot,
    /// The logarithm of the number of the text's bytes.
    pub(super) size_bits: Slot,
    pub(super) text: Slot,
    pub(super) descriptor: DescriptorLayout,
    pub(super) info: InfoLayout,
}

/// `struct prb_desc`.
#[derive(Debug)]
pub(super) struct DescriptorLayout {
    pub(super) size: usize,
    pub(super) state: Slot,
    pub(super) begin: Slot,
    pub(super) next: Slot,
}

/// `struct printk_info`.
#[derive(Debug)]
pub(super) struct InfoLayout {
    pub(super) size: usize,
    pub(super) seq: Slot,
    pub(super) time: Slot,
    pub(super) text_len: Slot,
    pub(super) facility: Slot,
    pub(super) caller: Slot,
    /// The byte, the shift and the mask.
    pub(super) level: (usize, u8, u8),
    pub(super) subsystem: Range<usize>,
    pub(super) device: Range<usize>,
}

impl RingLayout {
    pub(super) fn new(btf: &Btf) -> Result<Self, NoType> {
        let ring = StructType::named(btf, "printk_ringbuffer")?;
        let descriptor = StructType::named(btf, "prb_desc")?;
        let info = StructType::named(btf, "printk_info")?;
        Ok(Self {
            size: ring.size()?,
            count_bits: ring.slot("desc_ring.count_bits")?,
            descriptors: ring.slot("desc_ring.descs")?,
            infos: ring.slot("desc_ring.infos")?,
            head: ring.slot("desc_ring.head_id.counter")?,
            tail: ring.slot("desc_ring.tail_id.counter")?,
            size_bits: ring.slot("text_data_ring.size_bits")?,
            text: ring.slot("text_data_ring.data")?,
            descriptor: DescriptorLayout {
                size: descriptor.size()?,
                state: descriptor.slot("state_var.counter")?,
                begin: descriptor.slot("text_blk_lpos.begin")?,
                next: descriptor.slot("text_blk_lpos.next")?,
            },
            info: InfoLayout {
                size: info.size()?,
                seq: info.slot("seq")?,
                time: info.slot("ts_nsec")?,
                text_len: info.slot("text_len")?,
                facility: info.slot("facility")?,
                caller: info.slot("caller_id")?,
                level: info.bits("level")?,
                subsystem: info.bytes("dev_info.subsystem", MAX_NAME_BYTES)?,
                device: info.bytes("dev_info.device", MAX_NAME_BYTES)?,
            },
        })
    }
}

impl InfoLayout {
    /// The level in the bytes of an info.
    pub(super) fn level(&self, bytes: &[u8]) -> u8 {
        let (at, shift, mask) = self.level;
        bytes.get(at).map_or(0, |byte| byte >> shift & mask)
    }
}
