//! The tables of patch sites, and the verdicts on jumps, in a guest's kernel.

#![cfg_attr(fuzzing, no_main)]

use std::collections::BTreeSet;

use address::{Gpa, Gva};
use hyprobe_fuzz::arbitrary::{self, Arbitrary};
use hyprobe_fuzz::{Damage, fuzz_target};
use introspect::image::Segment;
use introspect::image::synthetic::elf;
use introspect::optimise::{MAX_REGION_BYTES, Survey};
use introspect::patchsites::synthetic::{Kernel, SLIDE, TEXT, TEXT_BYTES};
use introspect::{FlatMemory, GuestImage, KernelImage, PatchKind, PatchSites, SymbolTable};

/// The kinds of the sample's sites: all.
const KINDS: usize = 12;

/// Labels with addresses from the input.
const LABELS: [&str; 14] = [
    "_text",
    "_etext",
    "__init_begin",
    "__init_end",
    "__start_mcount_loc",
    "__stop_mcount_loc",
    "__alt_instructions",
    "__alt_instructions_end",
    "__start___jump_table",
    "__stop___jump_table",
    "__start___ex_table",
    "__start_runtime_mask_x",
    "__stop_runtime_mask_x",
    "__x86_indirect_thunk_array",
];

/// Symbols in addition to the sample's, a slide in addition to [`SLIDE`], and changes to the kernel's bytes.
#[derive(Arbitrary, Debug)]
struct Case {
    labels: Vec<(u8, Place)>,
    functions: Vec<u16>,
    slide: i64,
    changes: Vec<Damage>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Place {
    Near(u16),
    Anywhere(u64),
}

fuzz_target!(|case: Case| {
    let is_whole = case.labels.is_empty()
        && case.functions.is_empty()
        && case.slide == 0
        && case.changes.is_empty();
    let slide = SLIDE.wrapping_add(case.slide);
    let mut kernel = Kernel::sample();
    for change in &case.changes {
        change.apply(&mut kernel.bytes, TEXT);
    }
    for (label, place) in &case.labels {
        let address = match *place {
            Place::Near(offset) => TEXT + u64::from(offset),
            Place::Anywhere(address) => address,
        };
        let name = LABELS[usize::from(*label) % LABELS.len()];
        kernel.symbols.push(Gva(address), 't', name);
    }
    for offset in &case.functions {
        kernel
            .symbols
            .push(Gva(TEXT + u64::from(*offset)), 't', "function");
    }
    let Kernel { bytes, symbols } = kernel;
    let symbols = symbols.build();
    let sites = sites(bytes.clone(), slide, &symbols);
    if is_whole {
        let kinds: BTreeSet<PatchKind> = sites.iter().map(|site| site.kind).collect();
        assert_eq!(kinds.len(), KINDS, "{kinds:?}");
    }
    verdicts(&bytes, &symbols, &sites);
});

fn sites(bytes: Vec<u8>, slide: i64, symbols: &SymbolTable) -> PatchSites {
    let memory = FlatMemory::new(Gpa(0), bytes);
    let source = GuestImage::new(memory, Gva(TEXT), Gpa(0), slide);
    let sites = PatchSites::read(&source, symbols);
    for site in sites.iter() {
        let mut overlapping = sites.all_overlapping(site.address, 1);
        assert!(overlapping.any(|found| found == site), "{site:?}");
    }
    let moved = sites.rebased(slide);
    assert!(
        moved.rebased(slide.wrapping_neg()) == sites,
        "a site is lost"
    );
    sites
}

fn verdicts(bytes: &[u8], symbols: &SymbolTable, sites: &PatchSites) {
    let segment = Segment {
        file_offset: 0,
        file_size: 0,
        memory_size: bytes.len() as u64,
        physical: Gpa(0x100_0000),
        virt: Gva(TEXT),
    };
    let image = KernelImage::parse(elf(0x100_0000, &[(segment, bytes)])).expect("an ELF file");
    let survey = Survey::of_kernel(&image, symbols);
    for offset in (0..TEXT_BYTES as u64).step_by(0x20) {
        let at = Gva(TEXT + offset);
        let code = image.bytes_at(at, MAX_REGION_BYTES).unwrap_or_default();
        match survey.verdict(sites, at, code) {
            Ok(verdict) => assert!((5..=MAX_REGION_BYTES).contains(&verdict.region_len)),
            Err(why) => drop(why.to_string()),
        }
    }
}
