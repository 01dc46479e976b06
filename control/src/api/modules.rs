//! Modules of the guest's kernel.

use events::Hex;
use introspect::ModuleState;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Pause;

/// State of a module, in the words of the guest's `/proc/modules`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LoadState {
    /// The init function has succeeded.
    Live,
    /// The init function runs or is about to run.
    Loading,
    /// The exit function runs or has run.
    Unloading,
}

/// A loaded module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListedModule {
    /// Name of the module.
    pub name: String,
    /// Size of code and data in bytes, as in `/proc/modules`.
    pub size: u64,
    /// Number of references; absent if the kernel cannot unload modules.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub refcount: Option<i32>,
    /// Modules that use this module.
    pub users: Vec<String>,
    /// Whether the kernel cannot unload this module: the module has no exit function.
    pub permanent: bool,
    /// State of the module.
    pub state: LoadState,
    /// First address of the module's code.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub address: Option<Hex>,
    /// Build-id of the module's file in hexadecimal digits; absent if the module has none, or the kernel keeps no notes of modules.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub build_id: Option<String>,
}

/// Loaded modules, the latest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Modules {
    /// The modules.
    pub modules: Vec<ListedModule>,
    /// Pause of the guest for the read.
    pub pause: Pause,
}

impl From<inspect::ListedModule> for ListedModule {
    fn from(module: inspect::ListedModule) -> Self {
        Self {
            name: module.name,
            size: module.size_bytes,
            refcount: module.references,
            users: module.users,
            permanent: module.permanent,
            state: match module.state {
                ModuleState::Live => LoadState::Live,
                ModuleState::Coming | ModuleState::Unformed => LoadState::Loading,
                ModuleState::Going => LoadState::Unloading,
            },
            address: module.address.map(Hex::from),
            build_id: module.build_id.map(|id| id.to_string()),
        }
    }
}
