//! The builds of modules, as far as they are known without the guest's memory: servers of debuginfod have files by build-id.

use std::collections::HashMap;

use introspect::BuildId;

use crate::kernel_input::KernelInput;

/// Where the build-ids of modules come from.
#[derive(Clone, Debug, Default)]
pub(crate) enum KnownBuilds {
    /// Nowhere: the guest may load any build.
    #[default]
    Nowhere,
    /// The modules that the guest has loaded, by names.
    Loaded(HashMap<String, String>),
    /// The package of the stock kernel with this name.
    Image(String),
}

impl KnownBuilds {
    /// The builds of the modules that belong to `kernel`.
    pub(crate) fn of_kernel(kernel: &KernelInput) -> Self {
        match kernel {
            KernelInput::Cached(file) => Self::Image(file.image().to_owned()),
            KernelInput::File(_) => Self::Nowhere,
        }
    }

    /// The build-id of the module `name`. A guest may load another build than the package's.
    pub(super) fn of(&self, name: &str) -> Option<String> {
        match self {
            Self::Nowhere => None,
            Self::Loaded(builds) => builds.get(name).cloned(),
            Self::Image(image) => {
                let image = guest_images::cached(image).ok()??;
                let module = image.modules().ok()?.get(name)?.read().ok()?;
                Some(BuildId::of_elf(&module)?.to_string())
            }
        }
    }
}
