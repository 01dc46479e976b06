//! The paths of cgroups, kept from hit to hit.

use std::collections::HashMap;
use std::sync::Arc;

use address::Gva;
use arc_swap::ArcSwap;
use introspect::tasks::{CgroupLayout, ReadAt};

/// The most cgroups whose paths are kept. A server has some hundred.
pub(super) const MAX_PATHS: usize = 1024;
/// Longer paths are left out: many events may wait for a reader.
const MAX_PATH_BYTES: usize = 1024;

/// The paths of cgroups, by the numbers of their kernfs nodes. Every event looks a path up, without a lock; a new path replaces the map.
#[derive(Debug, Default)]
pub struct CgroupPaths(pub(super) ArcSwap<HashMap<u64, Option<Arc<str>>>>);

impl CgroupPaths {
    /// The path of the cgroup of the `css_set` at `set`.
    pub(super) fn of(&self, layout: &CgroupLayout, set: Gva, read: ReadAt<'_>) -> Option<Arc<str>> {
        let node = layout.node(set, read)?;
        let id = layout.id(node, read)?;
        if let Some(known) = self.0.load().get(&id) {
            return known.clone();
        }
        let path = layout.path(node, read)?;
        let path: Option<Arc<str>> = (path.len() <= MAX_PATH_BYTES).then(|| path.into());
        // Another vCPU may have moved the task, and the memory may be another node's by now.
        if layout.id(node, read) == Some(id) {
            // Of two vCPUs with new paths, both are kept: the closure may run again.
            self.0.rcu(|paths| match paths.len() {
                MAX_PATHS.. => HashMap::from([(id, path.clone())]),
                _ => {
                    let mut paths = HashMap::clone(paths);
                    paths.insert(id, path.clone());
                    paths
                }
            });
        }
        path
    }

    /// Forgets the paths: another kernel gives the numbers anew.
    pub fn forget(&self) {
        self.0.store(Arc::default());
    }
}
