//! Files that are no dumps, as `--dump FILE`: each view refuses each file with the same words.

use crate::Folder;

const VIEWS: [&[&str]; 7] = [
    &["ps"],
    &["bt"],
    &["lsmod"],
    &["dmesg"],
    &["percpu"],
    &["print", "init_task"],
    &["types", "file"],
];

#[track_caller]
fn refuses(folder: &Folder, file: &str, stderr: &str) {
    for view in VIEWS {
        folder.refuses(&[view, &["--dump", file]].concat(), 2, stderr);
    }
}

#[test]
fn file_that_is_no_dump_is_refused_by_each_view() {
    let folder = Folder::new();
    folder.file("text", [b'x'; 100]).file("empty", "");
    for file in ["text", "empty"] {
        let expected = format!(
            "error: cannot use the dump {file}
  caused by: not an ELF core file of a 64-bit x86 machine
  help: `hyprobe dump FILE` writes such a file"
        );
        refuses(&folder, file, &expected);
    }
    refuses(
        &folder,
        "/dev/zero",
        "error: cannot read the dump /dev/zero
  caused by: it is a device, not a regular file: give a file with the contents",
    );
}

#[test]
fn dump_that_is_cut_is_refused_with_both_sizes() {
    // An ELF core file for x86-64 with one program header: a segment of a gigabyte at byte 4096.
    let mut core = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x04\0\x3e\0\x01\0\0\0".to_vec();
    for word in [0_u64, 64, 0] {
        core.extend(word.to_le_bytes());
    }
    for half in [0_u16, 0, 64, 56, 1, 0, 0, 0] {
        core.extend(half.to_le_bytes());
    }
    for word in [7 << 32 | 1, 4096, 0, 0, 1 << 30, 1 << 30, 4096_u64] {
        core.extend(word.to_le_bytes());
    }
    core.resize(8192, 0);
    let folder = Folder::new();
    folder.file("cut", core);
    refuses(
        &folder,
        "cut",
        "error: cannot use the dump cut
  caused by: the file has 8192 bytes, and its headers describe 1073745920: the dump is not complete
  help: take the dump again, and copy it with all its bytes",
    );
}
