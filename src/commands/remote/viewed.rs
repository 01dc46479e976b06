//! The kernel that a view is about: a run's, or a dump's.

use std::fs::File;
use std::path::{Path, PathBuf};

use control::api::{ListedModule, ListedStack, ListedTask, Log, PerCpuVariables, Printed};
use control::{Client, StacksOf};
use dump::DumpedKernel;
use inspect::{ModuleList, PerCpuList, TaskList, expression};
use introspect::{Btf, BtfError};

use super::debug_file::identity;
use super::dump_error::DumpViewError;
use super::error::RemoteError;
use crate::cli::KernelArgs;
use crate::source_lines::KernelIdentity;

/// A kernel, behind a control socket or in a file. Both give the same objects.
pub(super) enum Viewed {
    Run(Client),
    Dump(Box<DumpFile>),
}

/// The kernel in a file.
pub(crate) struct DumpFile {
    path: PathBuf,
    kernel: DumpedKernel,
}

impl DumpFile {
    /// Opens the dump at `path`, of any size: only the parts that a view needs are read.
    pub(crate) fn open(path: &Path) -> Result<Self, DumpViewError> {
        let opened = files::open_regular(path, u64::MAX);
        let (file, size): (File, u64) = opened.map_err(|source| DumpViewError::Read {
            path: path.to_owned(),
            source,
        })?;
        let kernel = DumpedKernel::open(file, size).map_err(|source| DumpViewError::Open {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            path: path.to_owned(),
            kernel,
        })
    }

    /// The kernel's types, which are read when the file is opened.
    pub(crate) fn types(&self) -> Result<&Btf, &BtfError> {
        self.kernel.types()
    }

    /// The answer of the kernel. If a read of the file failed meanwhile, the result is this error, also in place of an answer.
    pub(crate) fn ask<T>(
        &self,
        question: impl FnOnce(&DumpedKernel) -> Result<T, DumpViewError>,
    ) -> Result<T, DumpViewError> {
        let answer = question(&self.kernel);
        self.kernel
            .check_reads()
            .map_err(|source| DumpViewError::FailedRead {
                path: self.path.clone(),
                source,
            })?;
        answer
    }
}

impl Viewed {
    /// Connects to the run, or opens the dump. The dump comes first: the socket may be a variable of the environment.
    pub(super) fn open(args: &KernelArgs) -> Result<Self, RemoteError> {
        match (&args.dump, &args.socket) {
            (Some(path), _) => Ok(Self::Dump(Box::new(DumpFile::open(path)?))),
            (None, socket) => {
                let socket = socket.as_deref().unwrap_or(Path::new(""));
                Ok(Self::Run(Client::new(socket)?))
            }
        }
    }

    pub(super) fn tasks(&mut self, threads: bool) -> Result<Vec<ListedTask>, RemoteError> {
        let dump = match self {
            Self::Run(client) => return Ok(client.tasks(threads)?.tasks),
            Self::Dump(dump) => dump,
        };
        let tasks = dump.ask(|kernel| {
            let view = kernel.view();
            Ok(TaskList::new(&view).and_then(|list| list.read(&view, threads))?)
        })?;
        Ok(tasks.into_iter().map(Into::into).collect())
    }

    pub(super) fn modules(&mut self) -> Result<Vec<ListedModule>, RemoteError> {
        let dump = match self {
            Self::Run(client) => return Ok(client.modules()?.modules),
            Self::Dump(dump) => dump,
        };
        let modules = dump.ask(|kernel| {
            let view = kernel.view();
            Ok(ModuleList::new(&view).and_then(|list| list.read(&view))?)
        })?;
        Ok(modules.into_iter().map(Into::into).collect())
    }

    pub(super) fn log(&mut self) -> Result<Log, RemoteError> {
        match self {
            Self::Run(client) => Ok(client.log()?),
            Self::Dump(dump) => {
                let log = dump.ask(|kernel| Ok(inspect::Log::read(&kernel.view())?))?;
                Ok(log.into())
            }
        }
    }

    pub(super) fn per_cpu(&mut self, pattern: &str) -> Result<PerCpuVariables, RemoteError> {
        match self {
            Self::Run(client) => Ok(client.per_cpu(pattern)?),
            Self::Dump(dump) => {
                let list = dump.ask(|kernel| Ok(PerCpuList::read(&kernel.view(), pattern)?))?;
                Ok(list.into())
            }
        }
    }

    pub(super) fn stacks(&mut self, of: StacksOf) -> Result<Vec<ListedStack>, RemoteError> {
        match self {
            Self::Run(client) => Ok(client.stacks(of)?.stacks),
            Self::Dump(dump) => {
                let stacks = dump.ask(|kernel| Ok(kernel.stacks(of)?))?;
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
            Self::Dump(dump) => {
                let depth = depth.map(usize::from);
                let printed = dump.ask(|kernel| {
                    let view = kernel.view();
                    let printed = expression::Printed::evaluate(&view, expression, declared, depth);
                    Ok(printed?)
                })?;
                Ok(printed.into())
            }
        }
    }

    /// The kernel to which debug information must belong.
    pub(super) fn identity(&mut self) -> Result<KernelIdentity<'static>, RemoteError> {
        match self {
            Self::Run(client) => Ok(identity(client)?.0),
            Self::Dump(dump) => Ok(dump.ask(|kernel| {
                Ok(KernelIdentity {
                    build_id: kernel.build_id().map(|id| id.to_string()),
                    banner: kernel.banner(),
                    own: None,
                })
            })?),
        }
    }
}
