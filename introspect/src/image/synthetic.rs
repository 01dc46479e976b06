//! Writes small ELF files.

use super::Segment;

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;

/// An x86-64 ELF file with `segments`. The function takes the bytes from the slice beside each
/// segment, and fills in file offsets and sizes.
pub fn elf(entry: u64, segments: &[(Segment, &[u8])]) -> Vec<u8> {
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut offset = HEADER_BYTES + PROGRAM_HEADER_BYTES * segments.len();
    let count = u16::try_from(segments.len()).expect("few segments");
    put16(&mut file, &[2, 62]);
    put32(&mut file, &[1]);
    put64(&mut file, &[entry, HEADER_BYTES as u64, 0]);
    put32(&mut file, &[0]);
    put16(&mut file, &[64, 56, count, 64, 0, 0]);
    for (segment, contents) in segments {
        put32(&mut file, &[1, 7]);
        put64(
            &mut file,
            &[offset as u64, segment.virt.0, segment.physical.0],
        );
        put64(
            &mut file,
            &[contents.len() as u64, segment.memory_size, 4096],
        );
        offset += contents.len();
    }
    for (_, contents) in segments {
        file.extend_from_slice(contents);
    }
    file
}

fn put16(file: &mut Vec<u8>, values: &[u16]) {
    file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

fn put32(file: &mut Vec<u8>, values: &[u32]) {
    file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

fn put64(file: &mut Vec<u8>, values: &[u64]) {
    file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}
