//! What the user wrote for each place.

use std::collections::HashMap;

use manifest::ProbeSpec;

/// The source lines and inlined copies that stand for each place. Several may stand for the same place.
#[derive(Debug, Default)]
pub(crate) struct Spellings(HashMap<ProbeSpec, Vec<ProbeSpec>>);

impl Spellings {
    /// Notes that `spec` stands for `site`.
    pub(super) fn add(&mut self, site: &ProbeSpec, spec: &ProbeSpec) {
        let specs = self.0.entry(site.clone()).or_default();
        if !specs.contains(spec) {
            specs.push(spec.clone());
        }
    }

    /// ``; `kprobe:vfs_read+0x165` is a place of `kprobe:fs/read_write.c:470` `` for each of `sites` that the user has spelled otherwise.
    pub(crate) fn explain(&self, sites: &[&ProbeSpec]) -> String {
        let explained = sites.iter().filter_map(|site| {
            let specs = self.0.get(site)?.iter();
            let specs: Vec<String> = specs.map(|spec| format!("`{spec}`")).collect();
            Some(format!(
                "; `{site}` is a place of {}",
                specs.join(" and of ")
            ))
        });
        explained.collect()
    }
}
