use address::Gva;
use proptest::prelude::*;

use super::{
    PatchKind, PatchSite, PatchSites, PatchTime,
    synthetic::{Kernel, SLIDE, TEXT, TEXT_BYTES},
};
use crate::SymbolTable;

fn sites(kernel: Kernel) -> PatchSites {
    let (source, symbols) = kernel.finish();
    PatchSites::read(&source, &symbols)
}

const fn site(kind: PatchKind, offset: u64, len: u8) -> PatchSite {
    PatchSite {
        address: Gva(TEXT + offset),
        len,
        kind,
        target: None,
    }
}

/// A jump label with the target at `target`.
const fn jump_label(offset: u64, len: u8, target: u64) -> PatchSite {
    PatchSite {
        target: Some(Gva(TEXT + target)),
        ..site(PatchKind::JumpLabel, offset, len)
    }
}

fn all(sites: &PatchSites) -> Vec<PatchSite> {
    sites.iter().collect()
}

#[test]
fn ftrace_sites_are_absolute_and_move_with_the_kernel() {
    let mut kernel = Kernel::new();
    kernel.table("__start_mcount_loc", "__stop_mcount_loc", |kernel| {
        kernel.absolute(0x40);
        kernel.bytes.extend([0; 8]);
        kernel.absolute(0x10);
        kernel.absolute(0x10_0000);
    });
    let sites = sites(kernel);
    let expected = [
        site(PatchKind::Ftrace, 0x10, 5),
        site(PatchKind::Ftrace, 0x40, 5),
    ];
    assert_eq!(all(&sites), expected);
    let moved = sites.rebased(SLIDE);
    assert_eq!(moved.overlapping(Gva(TEXT + 0x10), 1), None);
    let there = Gva((TEXT + 0x44).wrapping_add_signed(SLIDE));
    assert_eq!(
        moved.overlapping(there, 1).map(|site| site.kind),
        Some(PatchKind::Ftrace)
    );
}

#[test]
fn jump_labels_and_calls_are_as_long_as_their_instruction() {
    let mut kernel = Kernel::new();
    kernel.code(0x20, &[0x66, 0x90]);
    kernel.code(0x30, &[0x0f, 0x1f, 0x44, 0, 0]);
    kernel.code(0x40, &[0x2e, 0xe8, 0, 0, 0, 0]);
    kernel.code(0x50, &[0x0f, 0x84, 0, 0, 0, 0]);
    kernel.table("__start___jump_table", "__stop___jump_table", |kernel| {
        // The target of the second jump label is no code.
        for (site, target) in [(0x20, 0x80), (0x30, TEXT_BYTES as u64)] {
            kernel.relative(site);
            kernel.relative(target);
            kernel.bytes.extend([0; 8]);
        }
    });
    kernel.table("__retpoline_sites", "__retpoline_sites_end", |kernel| {
        kernel.relative(0x40)
    });
    kernel.table(
        "__start_static_call_sites",
        "__stop_static_call_sites",
        |kernel| {
            kernel.relative(0x50);
            kernel.bytes.extend([1; 4]);
        },
    );
    kernel
        .symbols
        .push(Gva(TEXT + 0x60), 't', "__SCT__might_resched");
    let expected = [
        jump_label(0x20, 2, 0x80),
        site(PatchKind::JumpLabel, 0x30, 5),
        site(PatchKind::Retpoline, 0x40, 6),
        site(PatchKind::StaticCall, 0x50, 6),
        site(PatchKind::StaticCall, 0x60, 8),
    ];
    let sites = sites(kernel);
    assert_eq!(all(&sites), expected);
    let moved = sites.rebased(SLIDE);
    let there = |offset: u64| Gva((TEXT + offset).wrapping_add_signed(SLIDE));
    let label = moved.overlapping(there(0x20), 1).expect("it has moved");
    assert_eq!(label.target, Some(there(0x80)));
}

#[test]
fn every_layout_of_alternatives_is_recognised() {
    for (between, behind) in [(2, 2), (2, 1), (4, 1)] {
        let mut kernel = Kernel::new();
        kernel.table("__alt_instructions", "__alt_instructions_end", |kernel| {
            for number in 0..30 {
                kernel.relative(0x100 + number * 0x10);
                kernel.relative(0x800 + number * 0x10);
                kernel.bytes.extend(vec![0xee; between]);
                kernel.bytes.push(6);
                kernel.bytes.extend(vec![0; behind]);
            }
        });
        let sites = all(&sites(kernel));
        assert_eq!(
            sites.len(),
            30,
            "{between} and {behind} bytes around the length"
        );
        assert_eq!(sites[1], site(PatchKind::Alternative, 0x110, 6));
    }
}

#[test]
fn the_other_tables() {
    let mut kernel = Kernel::new();
    kernel.code(0x20, &[0xe9, 0, 0, 0, 0]);
    kernel.table("__smp_locks", "__smp_locks_end", |kernel| {
        kernel.relative(0x10)
    });
    kernel.table("__return_sites", "__return_sites_end", |kernel| {
        kernel.relative(0x20)
    });
    kernel.table("__ibt_endbr_seal", "__ibt_endbr_seal_end", |kernel| {
        kernel.relative(0x30)
    });
    kernel.table("__parainstructions", "__parainstructions_end", |kernel| {
        kernel.absolute(0x40);
        kernel.bytes.extend([3, 7, 0, 0, 0, 0, 0, 0]);
        // The last entry lacks the padding.
        kernel.absolute(0x50);
        kernel.bytes.extend([3, 6, 0, 0]);
    });
    kernel.table("__start_runtime_ptr_x", "__stop_runtime_ptr_x", |kernel| {
        kernel.relative(0x60)
    });
    kernel.table(
        "__start_runtime_shift_x",
        "__stop_runtime_shift_x",
        |kernel| kernel.relative(0x70),
    );
    kernel.table("__cfi_sites", "__cfi_sites_end", |kernel| {
        kernel.relative(0x90)
    });
    let expected = [
        site(PatchKind::SmpLock, 0x10, 1),
        site(PatchKind::ReturnThunk, 0x20, 5),
        site(PatchKind::Endbr, 0x30, 4),
        site(PatchKind::Paravirt, 0x40, 7),
        site(PatchKind::Paravirt, 0x50, 6),
        site(PatchKind::RuntimeConst, 0x60, 8),
        site(PatchKind::RuntimeConst, 0x70, 1),
        site(PatchKind::Cfi, 0x80, 16),
    ];
    assert_eq!(all(&sites(kernel)), expected);
}

#[test]
fn overlap_is_by_bytes_and_prefers_run_time_patch_sites() {
    let sites: PatchSites = [
        site(PatchKind::Alternative, 0x10, 10),
        site(PatchKind::JumpLabel, 0x18, 2),
        site(PatchKind::SmpLock, 0x40, 1),
    ]
    .into_iter()
    .collect();
    let kind = |offset, len| {
        sites
            .overlapping(Gva(TEXT + offset), len)
            .map(|site| site.kind)
    };
    assert_eq!(kind(0x0b, 5), None);
    assert_eq!(kind(0x0c, 5), Some(PatchKind::Alternative));
    assert_eq!(kind(0x14, 5), Some(PatchKind::JumpLabel));
    assert_eq!(kind(0x19, 1), Some(PatchKind::JumpLabel));
    assert_eq!(kind(0x1a, 5), None);
    assert_eq!(kind(0x3f, 2), Some(PatchKind::SmpLock));
    assert_eq!(kind(0x12, 0), None, "no bytes, no overlap");
    assert_eq!(sites.all_overlapping(Gva(TEXT), 0x100).count(), 3);
    assert_eq!(PatchKind::JumpLabel.when(), PatchTime::Runtime);
    assert_eq!(PatchKind::Alternative.when(), PatchTime::BootOnly);
}

#[test]
fn labels_that_make_no_sense_give_no_sites() {
    let mut kernel = Kernel::new();
    kernel
        .symbols
        .push(Gva(TEXT + 0x2000), 'D', "__start_mcount_loc");
    kernel
        .symbols
        .push(Gva(TEXT + 0x1000), 'D', "__stop_mcount_loc");
    kernel.symbols.push(Gva(0), 'D', "__smp_locks");
    kernel.symbols.push(Gva(u64::MAX), 'D', "__smp_locks_end");
    kernel
        .symbols
        .push(Gva(u64::MAX - 8), 'D', "__return_sites");
    kernel
        .symbols
        .push(Gva(u64::MAX), 'D', "__return_sites_end");
    assert!(sites(kernel).is_empty());
    let (source, _) = Kernel::new().finish();
    assert!(PatchSites::read(&source, &SymbolTable::default()).is_empty());
}

proptest! {
    #[test]
    fn no_tables_break_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        const LABELS: [(&str, &str); 8] = [
            ("__start_mcount_loc", "__stop_mcount_loc"),
            ("__start___jump_table", "__stop___jump_table"),
            ("__start_static_call_sites", "__stop_static_call_sites"),
            ("__alt_instructions", "__alt_instructions_end"),
            ("__parainstructions", "__parainstructions_end"),
            ("__return_sites", "__return_sites_end"),
            ("__cfi_sites", "__cfi_sites_end"),
            ("__start_runtime_ptr_x", "__stop_runtime_ptr_x"),
        ];
        let mut kernel = Kernel::new();
        for (start, end) in LABELS {
            kernel.table(start, end, |kernel| kernel.bytes.extend(&bytes));
        }
        for site in sites(kernel).iter() {
            prop_assert!((TEXT..TEXT + TEXT_BYTES as u64).contains(&site.address.0));
        }
    }
}

/// The fuzz target `patch_sites` begins with the sample.
#[test]
fn the_sample_has_sites_of_every_kind() {
    let kinds: std::collections::BTreeSet<PatchKind> = sites(Kernel::sample())
        .iter()
        .map(|site| site.kind)
        .collect();
    assert_eq!(kinds.len(), 12, "{kinds:?}");
}
