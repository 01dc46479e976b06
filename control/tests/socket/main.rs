//! Tests of the server with real sockets and a fake machine: allowed requests, refusals and hostile clients.

mod dumps;
mod hostile;
mod link;
mod requests;
mod rig;
