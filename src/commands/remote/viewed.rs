//! The kernel that a view is about: a run's, or a dump's.

use std::fs::File;
use std::path::Path;

use control::api::{ListedModule, ListedStack, ListedTask, Log, Printed};
use control::{Client, StacksOf};
use dump::DumpedKernel;
use inspect::{ModuleList, TaskList, expression};

use super::debug_file::identity;
use super::dump_error::DumpViewError;
use super::error::RemoteError;
use crate::cli::KernelArgs;
use crate::source_lines::KernelIdentity;

/// A kernel, behind a control socket or in a file. Both give the same objects.
pub(super) enum Viewed {
    Run(Client),
    Dump(Box<DumpedKernel>),
}

impl Viewed {
    /// Connects to the run, or opens the dump. The dump comes first: the socket may be a variable of the environment.
    pub(super) fn open(args: &KernelArgs) -> Result<Self, RemoteError> {
        match (&args.dump, &args.socket) {
            (Some(path), _) => Ok(Self::Dump(Box::new(open_dump(path)?))),
            (None, socket) => {
                let socket = socket.as_deref().unwrap_or(Path::new(""));
                Ok(Self::Run(Client::new(socket)?))
            }
        }
    }

    pub(super) fn tasks(&mut self, threads: bool) -> Result<Vec<ListedTask>, RemoteError> {
        let kernel = match self {
            Self::Run(client) => return Ok(client.tasks(threads)?.tasks),
            Self::Dump(kernel) => kernel,
        };
        let view = kernel.view();
        let tasks = TaskList::new(&view).and_then(|list| list.read(&view, threads));
        let tasks = tasks.map_err(DumpViewError::from)?;
        Ok(tasks.into_iter().map(Into::into).collect())
    }

    pub(super) fn modules(&mut self) -> Result<Vec<ListedModule>, RemoteError> {
        let kernel = match self {
            Self::Run(client) => return Ok(client.modules()?.modules),
            Self::Dump(kernel) => kernel,
        };
        let view = kernel.view();
        let modules = ModuleList::new(&view).and_then(|list| list.read(&view));
        let modules = modules.map_err(DumpViewError::from)?;
        Ok(modules.into_iter().map(Into::into).collect())
    }

    pub(super) fn log(&mut self) -> Result<Log, RemoteError> {
        match self {
            Self::Run(client) => Ok(client.log()?),
            Self::Dump(kernel) => {
                let log = inspect::Log::read(&kernel.view()).map_err(DumpViewError::from)?;
                Ok(log.into())
            }
        }
    }

    pub(super) fn stacks(&mut self, of: StacksOf) -> Result<Vec<ListedStack>, RemoteError> {
        match self {
            Self::Run(client) => Ok(client.stacks(of)?.stacks),
            Self::Dump(kernel) => {
                let stacks = kernel.stacks(of).map_err(DumpViewError::from)?;
                Ok(stacks.into_iter().map(Into::into).collect())
            }
        }
    }

    pub(super) fn print(
        &mut self,
        expression: &str,
        declared: Option<&str>,
        depth: Option<u8>,
    ) -> Result<Printed, RemoteError> {
        match self {
            Self::Run(client) => Ok(client.print(expression, declared, depth)?),
            Self::Dump(kernel) => {
                let (view, depth) = (kernel.view(), depth.map(usize::from));
                let printed = expression::Printed::evaluate(&view, expression, declared, depth);
                Ok(printed.map_err(DumpViewError::from)?.into())
            }
        }
    }

    /// The kernel to which debug information must belong.
    pub(super) fn identity(&mut self) -> Result<KernelIdentity<'static>, RemoteError> {
        match self {
            Self::Run(client) => Ok(identity(client)?.0),
            Self::Dump(kernel) => Ok(KernelIdentity {
                build_id: kernel.build_id().map(|id| id.to_string()),
                banner: kernel.banner(),
                own: None,
            }),
        }
    }
}

/// Opens the dump at `path`, of any size: only the parts that a view needs are read.
pub(crate) fn open_dump(path: &Path) -> Result<DumpedKernel, DumpViewError> {
    let opened = files::open_regular(path, u64::MAX);
    let (file, size): (File, u64) = opened.map_err(|source| DumpViewError::Read {
        path: path.to_owned(),
        source,
    })?;
    DumpedKernel::open(file, size).map_err(|source| DumpViewError::Open {
        path: path.to_owned(),
        source,
    })
}
