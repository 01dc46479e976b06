use introspect::Btf;
use introspect::btf::synthetic::Blob;
use proptest::prelude::*;

use super::*;
use crate::NotReadable;
use crate::fake::{Fake, at};

const RING: u64 = 0x100;
const DESCRIPTORS: u64 = 0x1000;
const INFOS: u64 = 0x2000;
const TEXT: u64 = 0x3000;
/// `printk_time`.
const TIMES: u64 = 0x80;
const COUNT: u64 = 8;
const SIZE: u64 = 256;
/// The kernel's first positions: the ring wraps soon.
const FIRST_POSITION: u64 = SIZE.wrapping_neg();
const NUMBERS: u64 = (1 << 62) - 1;
const FINALISED: u64 = 2 << 62;
const COMMITTED: u64 = 1 << 62;
const RESERVED: u64 = 0;

/// The types of a ring whose descriptors have this size.
fn types(descriptor_bytes: u32) -> Blob {
    let mut blob = Blob::new();
    let char = blob.int("char", 1);
    let short = blob.int("u16", 2);
    let int = blob.int("unsigned int", 4);
    let long = blob.int("unsigned long", 8);
    let pointer = blob.pointer(char);
    let atomic = blob.structure("atomic64_t", 8, &[("counter", long, 0)]);
    let lpos = blob.structure(
        "prb_data_blk_lpos",
        16,
        &[("begin", long, 0), ("next", long, 8)],
    );
    blob.structure(
        "prb_desc",
        descriptor_bytes,
        &[("state_var", atomic, 0), ("text_blk_lpos", lpos, 8)],
    );
    let data = [("size_bits", int, 0), ("data", pointer, 8)];
    let data = blob.structure("prb_data_ring", 16, &data);
    let ring = [
        ("count_bits", int, 0),
        ("descs", pointer, 8),
        ("infos", pointer, 16),
        ("head_id", atomic, 24),
        ("tail_id", atomic, 32),
    ];
    let ring = blob.structure("prb_desc_ring", 40, &ring);
    let whole = [("desc_ring", ring, 0), ("text_data_ring", data, 40)];
    blob.structure("printk_ringbuffer", 56, &whole);
    let (subsystem, device) = (blob.array(char, 16), blob.array(char, 48));
    let names = [("subsystem", subsystem, 0), ("device", device, 16)];
    let names = blob.structure("dev_printk_info", 64, &names);
    // Flags have 5 bits, the level 3.
    let info = [
        ("seq", long, 0),
        ("ts_nsec", long, 64),
        ("text_len", short, 128),
        ("facility", char, 144),
        ("flags", char, 5 << 24 | 152),
        ("level", char, 3 << 24 | 157),
        ("caller_id", int, 160),
        ("dev_info", names, 192),
    ];
    // `BTF_KIND_STRUCT` with bit fields.
    blob.structure_in_bits("printk_info", (4, true), 88, &info);
    blob
}

/// A ring as the kernel writes it.
struct Writer {
    fake: Fake,
    head: u64,
    seq: u64,
    position: u64,
}

impl Writer {
    fn new() -> Self {
        let symbols = [("prb", 8), ("printk_time", TIMES)];
        let mut fake = Fake::new(types(24), 0x4000, &symbols);
        fake.point(8, RING);
        fake.put(TIMES, &[1]);
        fake.put(RING, &[3, 0, 0, 0]);
        fake.point(RING + 8, DESCRIPTORS);
        fake.point(RING + 16, INFOS);
        fake.put(RING + 40, &[8, 0, 0, 0]);
        fake.point(RING + 48, TEXT);
        let first = NUMBERS & (COUNT + 1).wrapping_neg();
        let mut writer = Self {
            fake,
            head: first,
            seq: 0,
            position: FIRST_POSITION,
        };
        // The first descriptor is reusable.
        writer.descriptor(first, 3 << 62, (1, 1));
        writer.ids(first, first);
        writer
    }

    fn ids(&mut self, head: u64, tail: u64) {
        self.fake.put64(RING + 24, head);
        self.fake.put64(RING + 32, tail);
    }

    fn descriptor(&mut self, number: u64, state: u64, (begin, next): (u64, u64)) {
        let place = DESCRIPTORS + number % COUNT * 24;
        self.fake.put64(place, state | number);
        self.fake.put64(place + 8, begin);
        self.fake.put64(place + 16, next);
    }

    /// Writes a record with a number, as the kernel does.
    fn record(&mut self, text: &str, state: u64) {
        let number = (self.head + 1) & NUMBERS;
        let bytes = text.as_bytes();
        let block = (8 + bytes.len() as u64).next_multiple_of(8);
        let begin = self.position;
        let end = begin.wrapping_add(block);
        let wraps = begin / SIZE != end.wrapping_sub(1) / SIZE;
        let start = if wraps { end / SIZE * SIZE } else { begin };
        let next = start.wrapping_add(block);
        let place = TEXT + start % SIZE;
        let positions = if bytes.is_empty() {
            (3, 3)
        } else {
            (begin, next)
        };
        if !bytes.is_empty() {
            self.fake.put64(place, number);
            self.fake.put(place + 8, bytes);
            self.position = next;
        }
        self.descriptor(number, state, positions);
        let info = INFOS + number % COUNT * 88;
        self.fake.put64(info, self.seq);
        self.fake.put64(info + 8, 1_000_001_000 * self.seq);
        let len = u16::try_from(bytes.len()).expect("short");
        self.fake.put(info + 16, &len.to_le_bytes());
        // Facility 3, level 6.
        self.fake.put(info + 18, &[3, 6 << 5 | 2]);
        self.fake.put(info + 20, &(1_u32 << 31 | 5).to_le_bytes());
        self.head = number;
        self.seq += 1;
        let tail = number.wrapping_sub((self.seq - 1).min(COUNT - 1)) & NUMBERS;
        self.ids(number, tail);
    }

    fn read(&self) -> Log {
        Log::read(&self.fake.view()).expect("a log")
    }
}

fn texts(log: &Log) -> Vec<&str> {
    log.records
        .iter()
        .map(|record| record.text.as_str())
        .collect()
}

fn printed(log: &Log) -> String {
    let text = |record| LogText::new(record, log.prints_times).to_string();
    log.records.iter().map(text).collect()
}

#[test]
fn records_are_printed_with_the_time_in_front_of_each_line() {
    let mut writer = Writer::new();
    assert_eq!(writer.read().records, []);
    writer.record("first", FINALISED);
    writer.record("two\nlines", FINALISED);
    writer.record("", FINALISED);
    let log = writer.read();
    let expected =
        "[    0.000000] first\n[    1.000001] two\n[    1.000001] lines\n[    2.000002] \n";
    assert_eq!(printed(&log), expected);
    let first = &log.records[0];
    assert_eq!((first.facility, first.level, &*first.caller), (3, 6, "C5"));
    assert_eq!(first.device, None);
    writer.fake.put(INFOS + 24, b"pci\0");
    writer.fake.put(INFOS + 40, b"+pci:0\0");
    let device = Some(("pci".to_owned(), "+pci:0".to_owned()));
    assert_eq!(writer.read().records[0].device, device);
    writer.fake.put(TIMES, &[0]);
    assert_eq!(printed(&writer.read()), "first\ntwo\nlines\n\n");
}

#[test]
fn wrapped_ring_has_the_last_records_in_order() {
    let mut writer = Writer::new();
    let texts_written: Vec<String> = (0..40).map(|n| format!("record {n} of forty")).collect();
    for (n, text) in texts_written.iter().enumerate() {
        writer.record(text, FINALISED);
        let log = writer.read();
        let from = (n + 1).saturating_sub(8);
        let expected: Vec<_> = texts_written[from..=n].iter().map(String::as_str).collect();
        assert_eq!(texts(&log), expected);
        assert_eq!(log.records[0].seq, from as u64);
    }
}

#[test]
fn block_that_ends_with_the_text_is_whole() {
    let mut writer = Writer::new();
    let fills = "x".repeat(248);
    writer.record(&fills, FINALISED);
    assert_eq!(texts(&writer.read()), [fills]);
}

#[test]
fn unfinished_and_overwritten_records_are_left_out() {
    let mut writer = Writer::new();
    writer.record("whole", FINALISED);
    writer.record("reserved", RESERVED);
    writer.record("committed", COMMITTED);
    assert_eq!(texts(&writer.read()), ["whole", "committed"]);
    // The text of the first record belongs to another descriptor by now.
    writer.fake.put64(TEXT, 77);
    assert_eq!(texts(&writer.read()), ["committed"]);
}

#[test]
fn overlapping_blocks_have_no_more_text_than_the_ring() {
    let mut writer = Writer::new();
    for _ in 0..COUNT {
        writer.record("x", FINALISED);
    }
    // Each block lasts from its beginning to the end of the text, over all later blocks.
    let numbers = writer.head + 1 - COUNT..=writer.head;
    for (number, begin) in numbers.zip((0..).step_by(16)) {
        writer.descriptor(number, FINALISED, (begin, SIZE));
        writer.fake.put64(TEXT + begin, number);
        let info = INFOS + number % COUNT * 88;
        writer.fake.put(info + 16, &[0xff, 0xff]);
    }
    let log = writer.read();
    let numbers: Vec<_> = log.records.iter().map(|record| record.seq).collect();
    assert_eq!(numbers, [0]);
}

#[test]
fn elements_have_no_size_beyond_that_of_any_log() {
    let mut writer = Writer::new();
    writer.fake.put(RING, &[19]);
    let types = Btf::parse(types(0x1000).finish()).expect("types");
    writer.fake.types = Some(types);
    let error = Log::read(&writer.fake.view()).expect_err("too large");
    let (what, len) = ("descriptors", 0x1000 << 19);
    assert_eq!(error, LogError::LargeElements { what, len });
}

#[test]
fn damaged_rings_are_refused() {
    let error = |change: &dyn Fn(&mut Fake)| {
        let mut writer = Writer::new();
        change(&mut writer.fake);
        Log::read(&writer.fake.view()).expect_err("damaged")
    };
    assert_eq!(error(&|fake| fake.types = None), LogError::NoTypes);
    assert_eq!(
        error(&|fake| fake.symbols = introspect::SymbolTable::default()),
        LogError::NoRing
    );
    let large = |what, bits, limit| LogError::TooLarge {
        at: at(RING),
        what,
        bits,
        limit,
    };
    assert_eq!(
        error(&|fake| fake.put(RING, &[20])),
        large("descriptors", 20, 19)
    );
    assert_eq!(
        error(&|fake| fake.put(RING + 40, &[64])),
        large("bytes of text", 64, 24)
    );
    let missing = error(&|fake| fake.put64(RING + 48, 0x10));
    let source = NotReadable {
        at: address::Gva(0x10),
        len: 256,
    };
    assert_eq!(
        missing,
        LogError::Unreadable {
            what: "text",
            source
        }
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_damage_breaks_the_reader(
        damage in proptest::collection::vec((0_u64..0x3100, any::<u8>()), 0..64),
        head in any::<u64>(),
    ) {
        let mut writer = Writer::new();
        for n in 0..12 {
            writer.record(&"y".repeat(n * 3), FINALISED);
        }
        for (at, byte) in damage {
            writer.fake.put(at, &[byte]);
        }
        let _ = Log::read(&writer.fake.view());
        writer.ids(head, 0);
        if let Ok(log) = Log::read(&writer.fake.view()) {
            prop_assert!(log.records.len() <= 8);
        }
    }
}
