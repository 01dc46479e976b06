//! The server with real sockets and a machine of straw: what clients may do to it, and what they are told.

mod fake;
mod hostile;
mod link;
mod requests;
mod rig;
