//! Beside a program's own wgpu: a renderer lends its device, its passes read tensors, its buffers
//! become tensors. Only this module names wgpu types in public; [`wgpu`] is the version to use.

mod buffers;
mod lend;

pub use buffers::WgpuBinding;
pub use wgpu;
