//! Stacks of a program of one segment, in a fake kernel.

use address::Gva;
use introspect::btf::synthetic::Blob;
use introspect::orc::SavedRegisters;

use super::files::ProgramFiles;
use super::frame::{FoundBy, ProgramStack, StackEnd};
use super::registers::{BP, IP, ProgramRegisters, SP};
use super::stack::ProgramStacks;
use crate::fake::{BASE, Fake, at};

const TASK: u64 = 0x100;
pub(super) const MM: u64 = 0x200;
pub(super) const AREA: u64 = 0x300;
pub(super) const FILE: u64 = 0x400;
pub(super) const PAGES: u64 = 0x500;
pub(super) const INODE: u64 = 0x600;
pub(super) const SUPER_BLOCK: u64 = 0x640;
pub(super) const DENTRY: u64 = 0x680;
const MOUNT: u64 = 0x700;
pub(super) const FOLIOS: u64 = 0x2000;
pub(super) const HEADERS: u64 = 0x8000;
/// The bit of a folio of several pages.
pub(super) const PG_HEAD: u32 = 6;
const PGD: u64 = 0x10000;
const CODE: u64 = 0x40_0000;
const STACK: u64 = 0x50_0000;
const SAVED: u64 = 0x20000;

pub(super) fn kernel() -> Fake {
    let mut b = Blob::new();
    let byte = b.int("unsigned char", 1);
    let int = b.int("unsigned int", 4);
    let long = b.int("unsigned long", 8);
    b.structure("task_struct", 16, &[("mm", long, 0), ("stack", long, 8)]);
    let root = b.structure("rb_root", 8, &[("rb_node", long, 0)]);
    let node = b.structure(
        "rb_node",
        24,
        &[
            ("__rb_parent_color", long, 0),
            ("rb_right", long, 8),
            ("rb_left", long, 16),
        ],
    );
    let count = b.structure("atomic64_t", 8, &[("counter", long, 0)]);
    let lock = b.structure("rw_semaphore", 8, &[("count", count, 0)]);
    let members = [
        ("pgd", long, 0),
        ("mm_rb", root, 8),
        ("mmap_lock", lock, 16),
    ];
    b.structure("mm_struct", 32, &members);
    b.structure(
        "vm_area_struct",
        0x60,
        &[
            ("vm_start", long, 0),
            ("vm_end", long, 8),
            ("vm_rb", node, 0x20),
            ("vm_pgoff", long, 0x38),
            ("vm_file", long, 0x40),
            ("anon_vma", long, 0x50),
        ],
    );
    let path = b.structure("path", 16, &[("mnt", long, 0), ("dentry", long, 8)]);
    b.structure("file", 32, &[("f_mapping", long, 0), ("f_path", path, 16)]);
    let name = b.structure("qstr", 16, &[("name", long, 8)]);
    let link = b.structure("hlist_bl_node", 16, &[("pprev", long, 8)]);
    b.structure(
        "dentry",
        64,
        &[
            ("d_hash", link, 0),
            ("d_parent", long, 16),
            ("d_name", name, 24),
            ("d_sb", long, 56),
        ],
    );
    let inner = b.structure("vfsmount", 8, &[("mnt_root", long, 0)]);
    b.structure(
        "mount",
        32,
        &[
            ("mnt_parent", long, 0),
            ("mnt_mountpoint", long, 8),
            ("mnt", inner, 16),
        ],
    );
    let slots = b.array(long, 4);
    b.structure("xa_node", 48, &[("shift", byte, 0), ("slots", slots, 16)]);
    let array = b.structure("xarray", 16, &[("xa_head", long, 8)]);
    b.structure(
        "address_space",
        32,
        &[("host", long, 0), ("i_pages", array, 8)],
    );
    let members = [
        ("i_ino", long, 0),
        ("i_generation", int, 8),
        ("i_flags", int, 12),
        ("i_sb", long, 16),
        ("i_size", long, 24),
        ("i_mtime_sec", long, 32),
        ("i_mtime_nsec", int, 40),
    ];
    b.structure("inode", 48, &members);
    b.structure("super_block", 8, &[("s_magic", long, 0)]);
    let members = [
        ("flags", long, 0),
        ("index", long, 32),
        ("_nr_pages", int, 40),
    ];
    b.structure("folio", 64, &members);
    b.enumeration(
        "pageflags",
        false,
        &[("PG_head", PG_HEAD), ("PG_locked", 0), ("PG_uptodate", 2)],
    );
    b.structure("page", 64, &[("flags", long, 0)]);
    let mut f = Fake::new(b, 0x40000, &[("page_offset_base", 0), ("vmemmap_base", 8)]);
    f.put64(0, BASE.0);
    f.point(8, FOLIOS);
    f.point(TASK, MM);
    f.point(MM, PGD);
    f.point(MM + 8, AREA + 0x20);
    f.put64(AREA, CODE);
    f.put64(AREA + 8, CODE + 0x1000);
    f.point(AREA + 0x40, FILE);
    f.point(FILE, PAGES);
    f.point(FILE + 16, MOUNT + 16);
    f.point(FILE + 24, DENTRY);
    f.put64(DENTRY + 8, 1);
    f.point(DENTRY + 16, DENTRY);
    f.point(DENTRY + 56, SUPER_BLOCK);
    f.point(DENTRY + 32, DENTRY + 0x40);
    f.put(DENTRY + 0x40, b"a\0");
    f.point(MOUNT, MOUNT);
    f.point(MOUNT + 16, DENTRY);
    f.point(PAGES, INODE);
    f.put64(INODE, 7);
    f.point(INODE + 16, SUPER_BLOCK);
    // The stack's page tables: 4 levels to a page at 0x14000.
    f.put64(PGD, 0x11000 | 7);
    f.put64(0x11000, 0x12000 | 7);
    f.put64(0x12000 + 8 * (STACK >> 21), 0x13000 | 7);
    f.put64(0x13000 + 8 * (STACK >> 12 & 511), 0x14000 | 7);
    // Headers of a program of one segment, in page 8.
    let mut h = vec![0; 120];
    h[..6].copy_from_slice(b"\x7fELF\x02\x01");
    h[32] = 64;
    h[54] = 56;
    h[56] = 1;
    h[64] = 1;
    h[80..88].copy_from_slice(&CODE.to_le_bytes());
    h[96..104].copy_from_slice(&0x1000_u64.to_le_bytes());
    f.put(HEADERS, &h);
    f
}

pub(super) fn cache(f: &mut Fake) {
    f.point(PAGES + 16, FOLIOS + 8 * 64);
}

/// The stack from `ip` on, with `bp` in rbp.
fn look_with_frame(f: &Fake, ip: u64, bp: u64) -> ProgramStack {
    let view = f.view();
    let stacks = ProgramStacks::new(view.types().expect("types")).expect("layout");
    let files = ProgramFiles::default();
    let reader = stacks.reader(&view, &files, 1 << 20).expect("reader");
    let mut values = [0; 17];
    (values[IP], values[SP], values[BP]) = (ip, STACK, bp);
    reader.stack(at(TASK), &ProgramRegisters::of_vcpu(values, true))
}

/// Code with a call at offset 0x20, of which the page tables have the page.
fn code_with_call(f: &mut Fake) {
    f.put64(0x13000, 0x15000 | 7);
    f.put(0x15000 + 0x20, &[0xe8, 0, 0, 0, 0]);
}

#[test]
fn code_of_a_file_without_headers_in_memory_may_have_rules() {
    let mut f = kernel();
    code_with_call(&mut f);
    f.put64(0x14008, CODE + 0x25);
    let stack = look_with_frame(&f, CODE + 0x10, STACK);
    assert_eq!(
        stack.incomplete,
        Some(StackEnd::NoHeaders(Gva(CODE + 0x10)))
    );
    assert_eq!(stack.frames.len(), 1);
}

#[test]
fn frame_pointer_leads_to_a_caller_with_a_mark_and_on() {
    let mut f = kernel();
    cache(&mut f);
    code_with_call(&mut f);
    f.put64(0x14000, STACK + 16);
    f.put64(0x14008, CODE + 0x25);
    let stack = look_with_frame(&f, CODE + 0x10, STACK);
    let found = stack.frames.iter().map(|frame| frame.found_by);
    assert_eq!(
        found.collect::<Vec<_>>(),
        [FoundBy::Registers, FoundBy::FramePointer],
        "{stack:?}"
    );
}

#[test]
fn frame_pointer_into_the_kernel_leads_nowhere() {
    let mut f = kernel();
    cache(&mut f);
    code_with_call(&mut f);
    f.put64(PGD + 8 * 511, 0x16000 | 3);
    f.put64(0x16000 + 8 * 510, 0x17000 | 3);
    f.put64(0x17000 + 8 * 8, 0x18000 | 3);
    f.put64(0x18000 + 8 * 0x30, 0x30000 | 3);
    f.put64(0x30008, CODE + 0x25);
    let stack = look_with_frame(&f, CODE + 0x10, BASE.0 + 0x30000);
    assert_eq!(stack.frames.len(), 1, "{stack:?}");
}

fn look(f: &Fake, files: &ProgramFiles, limit: usize, ip: u64) -> ProgramStack {
    let view = f.view();
    let stacks = ProgramStacks::new(view.types().expect("types")).expect("layout");
    let reader = stacks.reader(&view, files, limit).expect("reader");
    let mut values = [0; 17];
    (values[IP], values[SP]) = (ip, STACK);
    reader.stack(at(TASK), &ProgramRegisters::of_vcpu(values, true))
}

#[test]
fn exhausted_budget_is_the_reason() {
    let mut f = kernel();
    cache(&mut f);
    let files = ProgramFiles::default();
    let whole = look(&f, &files, 1 << 20, CODE + 0x10).incomplete;
    assert!(
        matches!(whole, Some(StackEnd::NoCaller { .. })),
        "{whole:?}"
    );
    let short = look(&f, &ProgramFiles::default(), 600, CODE + 0x10).incomplete;
    assert_eq!(short, Some(StackEnd::TooMuch(600)));
}

#[test]
fn look_without_budget_does_not_blind_later_looks() {
    let mut f = kernel();
    cache(&mut f);
    let good = look(&f, &ProgramFiles::default(), 1 << 20, CODE + 0x10);
    let mut bad = Vec::new();
    for limit in (528..12000).step_by(100) {
        let files = ProgramFiles::default();
        let _ = look(&f, &files, limit, CODE + 0x10);
        let later = look(&f, &files, 1 << 20, CODE + 0x10);
        if later != good {
            bad.push((limit, later));
        }
    }
    assert!(
        bad.is_empty(),
        "{} limits, e.g. {:?} want {good:?}",
        bad.len(),
        bad.first().zip(bad.last())
    );
}

#[test]
fn headers_paged_in_later_are_found() {
    let mut f = kernel();
    let files = ProgramFiles::default();
    let _ = look(&f, &files, 1 << 20, CODE + 0x10);
    cache(&mut f);
    let later = look(&f, &files, 1 << 20, CODE + 0x10).incomplete;
    assert!(
        matches!(later, Some(StackEnd::NoCaller { .. })),
        "{later:?}"
    );
}

#[test]
fn call_of_null_is_no_whole_stack() {
    let f = kernel();
    let s = look(&f, &ProgramFiles::default(), 1 << 20, 0);
    assert!(s.incomplete.is_some() || !s.frames.is_empty(), "{s:?}");
}

#[test]
fn segment_of_the_largest_size_is_read() {
    let mut f = kernel();
    cache(&mut f);
    // p_offset 0x12, p_filesz the largest: the byte at 0x10.
    f.put64(HEADERS + 64 + 8, 0x12);
    f.put64(HEADERS + 64 + 32, u64::MAX);
    let _ = look(&f, &ProgramFiles::default(), 1 << 20, CODE + 0x10);
}

/// The registers that the kernel saves lie at the end of the task's stack.
#[test]
fn registers_elsewhere_than_on_the_task_s_stack_are_not_its_own() {
    let mut f = kernel();
    cache(&mut f);
    f.point(TASK + 8, SAVED);
    f.put64(SAVED + 0x100 + 16 * 8, CODE + 0x10);
    f.put64(SAVED + 0x100 + 17 * 8, 0x33);
    let view = f.view();
    let stacks = ProgramStacks::new(view.types().expect("types")).expect("layout");
    let files = ProgramFiles::default();
    let reader = stacks.reader(&view, &files, 1 << 20).expect("reader");
    let behind = |place| reader.stack_behind(at(TASK), SavedRegisters::All(at(place)));
    let own = behind(SAVED + 0x100);
    assert_eq!(
        own.frames.first().map(|frame| frame.ip),
        Some(Gva(CODE + 0x10))
    );
    for place in [SAVED - 8, SAVED + 0x4000] {
        assert_eq!(behind(place).incomplete, Some(StackEnd::NotSaved));
    }
}
