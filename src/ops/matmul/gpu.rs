use crate::capabilities::Capabilities;
use crate::error::{Error, Result};
use crate::launch::{KernelKey, Launch};
use crate::road::Problem;
pub(in crate::ops) fn specialisations() -> Vec<KernelKey> {
    Vec::new()
}
pub(super) fn launch(_p: &Problem<'_>, _c: &Capabilities) -> Result<Launch> {
    Err(Error::invalid("matmul", "todo"))
}
