//! Beside other libraries: a renderer lends its wgpu device, its passes read tensors, its buffers
//! become tensors; with features, arrays of `ndarray` (`ndarray`), NumPy's files (`npy`) and files
//! of named tensors (`safetensors`).
//!
//! - [`Device::from_wgpu`](crate::Device::from_wgpu),
//!   [`DeviceBuilder::build_on_wgpu`](crate::DeviceBuilder::build_on_wgpu) and
//!   [`region_usages`](crate::DeviceBuilder::region_usages);
//! - [`Tensor::wgpu_binding`](crate::Tensor::wgpu_binding),
//!   [`Tensor::from_wgpu_buffer`](crate::Tensor::from_wgpu_buffer),
//!   [`Device::submit`](crate::Device::submit).
//!
//! Only this module names wgpu types in public; [`wgpu`] is the version to use, and with its feature `ndarray`.

#[cfg(feature = "ndarray")]
mod arrays;
mod buffers;
#[cfg(any(feature = "npy", feature = "safetensors"))]
mod file;
mod lend;
#[cfg(feature = "npy")]
mod npy;
#[cfg(feature = "safetensors")]
mod safetensors;

#[cfg(feature = "npy")]
pub use self::npy::{NpyMatrix, NpyMatrixMut};
#[cfg(feature = "safetensors")]
pub use self::safetensors::{SafeTensorInfo, SafeTensors, save_safetensors, write_safetensors};
pub use buffers::WgpuBinding;
#[cfg(feature = "ndarray")]
pub use ndarray;
pub use wgpu;
