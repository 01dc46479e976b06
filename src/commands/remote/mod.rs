//! Commands for a run in progress: clients of the run's control socket. Views of a kernel also read a dump.

mod bt;
mod connect;
mod ctl;
mod debug_file;
mod dmesg;
mod dump;
mod dump_error;
mod error;
mod events;
mod list;
mod lsmod;
mod objects;
mod percpu;
mod places;
mod print;
mod probe;
mod ps;
mod refused_probes;
mod top;
mod viewed;
mod words;

pub(crate) use self::bt::bt;
pub(crate) use self::ctl::ctl;
pub(crate) use self::dmesg::dmesg;
pub(crate) use self::dump::dump;
pub(crate) use self::dump_error::DumpViewError;
pub(crate) use self::error::RemoteError;
pub(crate) use self::events::events;
pub(crate) use self::lsmod::lsmod;
pub(crate) use self::percpu::percpu;
pub(crate) use self::print::print;
pub(crate) use self::probe::probe;
pub(crate) use self::ps::ps;
pub(crate) use self::top::top;
pub(crate) use self::viewed::DumpFile;
