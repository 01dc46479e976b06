//! The reasons for a self-test without answers.

/// The self-test could not be run.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    /// KVM refused a request that any KVM must accept.
    #[error("KVM refused {request} during the self-test")]
    Request {
        /// The ioctl.
        request: &'static str,
        /// KVM's answer.
        #[source]
        source: kvm_ioctls::Error,
    },
    /// No memory for the tiny guest.
    #[error(transparent)]
    Memory(#[from] crate::memory::RamError),
    /// The tiny guest's memory could not be reached.
    #[error("cannot write the self-test guest's memory")]
    Guest(#[from] vm_memory::GuestMemoryError),
}
